// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/record"
)

// hookPrefix begins the name of each file of the hooks' directory; the digest of the content follows.
const hookPrefix = "fettle-hook-"

// Hook is the builds of fettle-hook on the host. A container that is restarted runs the one that its claim was prepared with, so each
// stays while a record names it.
type Hook struct {
	store *record.Store
	// source is the file to install, dir the same on the host and in the plugin's container.
	source, dir string

	mu sync.Mutex
	// current is the file of this process's build, held open and locked for as long as the process lives, so that the plugin of the other
	// version in a rolling update leaves it.
	current *os.File
}

// InstallHook makes sure that the host has this build of fettle-hook, and removes those that nobody needs.
func InstallHook(store *record.Store, source, dir string) (*Hook, error) {
	h := &Hook{store: store, source: source, dir: dir}
	return h, h.install()
}

func (h *Hook) install() error {
	content, err := os.ReadFile(h.source)
	if err != nil {
		return fmt.Errorf("read the hook to install: %w", err)
	}
	sum := sha256.Sum256(content)
	name := filepath.Join(h.dir, hookPrefix+hex.EncodeToString(sum[:]))
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of hooks: %w", err)
	}
	// A runtime may start the hook as a user of the pod's own namespace. What else is in the directory above has modes of its own.
	if err := openToAll(filepath.Dir(h.dir)); err != nil {
		return err
	}
	// What is there is compared, not believed: it is run as root.
	if there, err := os.ReadFile(name); err != nil || sha256.Sum256(there) != sum {
		if err := disk.ReplaceDurably(disk.OS{}, name, content, 0o755); err != nil {
			return fmt.Errorf("install the hook: %w", err)
		}
	}
	if h.current, err = os.Open(name); err != nil {
		return fmt.Errorf("install the hook: %w", err)
	}
	if err := filelock.Flock(h.current, filelock.Shared); err != nil {
		return errors.Join(fmt.Errorf("hold the hook %s: %w", name, err), h.current.Close())
	}
	return nil
}

// Ready is where the hook is on the host. It is installed anew on a node that was emptied and taken back.
func (h *Hook) Ready() (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := os.Stat(h.current.Name()); !errors.Is(err, fs.ErrNotExist) {
		return h.current.Name(), err
	}
	if err := errors.Join(h.current.Close(), h.install()); err != nil {
		return "", err
	}
	return h.current.Name(), nil
}

// Destroy removes every build, for a node that holds no claim any more.
func (h *Hook) Destroy() error {
	if err := os.RemoveAll(h.dir); err != nil {
		return fmt.Errorf("remove the hooks: %w", err)
	}
	return nil
}

// openToAll lets every user pass through a directory, and no more.
func openToAll(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o111 != 0o111 {
		err = os.Chmod(dir, info.Mode().Perm()|0o111)
	}
	if err != nil {
		return fmt.Errorf("let the runtime reach the hook: %w", err)
	}
	return nil
}

// Sweep removes the builds that no record names and no process holds. Who holds one may still write a record that names it, so it is asked
// for first.
func (h *Hook) Sweep() error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("list hooks: %w", err)
	}
	unheld := map[string]*os.File{}
	defer func() {
		for _, f := range unheld {
			_ = f.Close() // it was only locked
		}
	}()
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), hookPrefix) || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(h.dir, e.Name())
		f, err := lockUnheld(name)
		if err != nil {
			return err
		}
		if f != nil {
			unheld[name] = f
		}
	}
	named, err := h.named()
	if err != nil {
		return err // a record that cannot be read may name any
	}
	var errs []error
	for name := range unheld {
		if !named[name] {
			errs = append(errs, disk.RemoveIfThere(disk.OS{}, name))
		}
	}
	return errors.Join(errs...)
}

// named are the hooks that records have.
func (h *Hook) named() (map[string]bool, error) {
	uids, err := h.store.UIDs()
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, uid := range uids {
		r, err := h.store.Load(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range r.Devices {
			if added := r.Devices[i].Added; added != nil {
				for _, hook := range added.Edits.Hooks {
					named[hook.Path] = true
				}
			}
		}
	}
	return named, nil
}

// lockUnheld is nil where a process holds the hook, or it is gone.
func lockUnheld(name string) (*os.File, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented above
	}
	if err != nil {
		return nil, fmt.Errorf("look whether hook %s is held: %w", name, err)
	}
	locked, err := filelock.TryFlock(f, filelock.Exclusive)
	if locked {
		return f, nil
	}
	if err != nil {
		err = fmt.Errorf("look whether hook %s is held: %w", name, err)
	}
	return nil, errors.Join(err, f.Close())
}

// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/record"
)

// hookPrefix begins the file name of each build. The digest of its content follows.
const hookPrefix = "fettle-hook-"

// Hook keeps the builds of fettle-hook on the host. A restarted container runs the build that its claim was prepared with, so a build stays
// while a record names it.
type Hook struct {
	store *record.Store
	// source is the file to install. dir has the same path on the host and in the plugin's container.
	source, dir string

	mu sync.Mutex
	// current is the file of this process's build. It stays open and locked while the process lives, so that the plugin of another version
	// does not remove it in a rolling update.
	current *os.File
}

// InstallHook installs this build of fettle-hook on the host, unless it is there.
func InstallHook(store *record.Store, source, dir string) (*Hook, error) {
	h := &Hook{store: store, source: source, dir: dir}
	return h, h.ensure()
}

// errRemoved says that another process removed a build before this one held it.
var errRemoved = errors.New("the hook was just removed by another process: kubelet tries again")

// ensure installs this build and holds it. The process of another version may remove it at the same moment.
func (h *Hook) ensure() error {
	const tries = 3
	err := errRemoved
	for try := 0; errors.Is(err, errRemoved) && try < tries; try++ {
		err = h.install()
	}
	return err
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
	// A runtime may start the hook as a user of the pod's own namespace. Other files in the directory above have modes of their own.
	if err := allowTraversal(filepath.Dir(h.dir)); err != nil {
		return err
	}
	// The content of an existing file is checked, since it runs as root.
	if existing, err := os.ReadFile(name); err != nil || sha256.Sum256(existing) != sum {
		if err := disk.ReplaceDurably(disk.OS{}, name, content, 0o755); err != nil {
			return fmt.Errorf("install the hook: %w", err)
		}
	}
	installed, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("install the hook: %w", err)
	}
	if err := filelock.Flock(installed, filelock.Shared); err != nil {
		return errors.Join(fmt.Errorf("hold the hook %s: %w", name, err), installed.Close())
	}
	if there, err := isAt(installed, name); err != nil || !there {
		return errors.Join(cmp.Or(err, errRemoved), installed.Close())
	}
	if h.current != nil {
		_ = h.current.Close() // it was only held
	}
	h.current = installed
	return nil
}

// Ready returns the path of the hook on the host. It installs the hook again if a node was retired and came back, and holds the file that
// is there now: another process may have made it again.
func (h *Hook) Ready() (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there, err := isAt(h.current, h.current.Name())
	if err == nil && !there {
		err = h.ensure()
	}
	if err != nil {
		return "", err
	}
	return h.current.Name(), nil
}

// isAt reports whether a name still leads to an open file. A file that was made again is not the one that this process holds.
func isAt(f *os.File, name string) (bool, error) {
	now, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	held, err := f.Stat()
	return err == nil && os.SameFile(held, now), err
}

// Destroy removes every build. It is called when the node has no claim any more.
func (h *Hook) Destroy() error {
	if err := os.RemoveAll(h.dir); err != nil {
		return fmt.Errorf("remove the hooks: %w", err)
	}
	return nil
}

// allowTraversal lets every user pass through a directory, and no more.
func allowTraversal(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o111 != 0o111 {
		err = os.Chmod(dir, info.Mode().Perm()|0o111)
	}
	if err != nil {
		return fmt.Errorf("let the runtime reach the hook: %w", err)
	}
	return nil
}

// Sweep removes the builds that no record names and no process holds. It locks builds before it reads the records, since a process that
// holds a build may still write a record that names it.
func (h *Hook) Sweep() error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("list hooks: %w", err)
	}
	unused := map[string]*os.File{}
	defer func() {
		for _, f := range unused {
			_ = f.Close() // it was only locked
		}
	}()
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), hookPrefix) || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(h.dir, e.Name())
		f, err := lockUnused(name)
		if err != nil {
			return err
		}
		if f != nil {
			unused[name] = f
		}
	}
	named, err := h.referenced()
	if err != nil {
		return err // a record that cannot be read may name any
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		if !named[name] {
			errs = append(errs, disk.RemoveIfThere(disk.OS{}, name))
		}
	}
	return errors.Join(errs...)
}

// referenced returns the hooks that records name. It fails if any record cannot be read or was set aside.
func (h *Hook) referenced() (map[string]bool, error) {
	uids, err := h.store.UIDs()
	if err = errors.Join(err, h.store.CheckDoubt()); err != nil {
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
			added := cmp.Or(r.Devices[i].Added, &record.Addition{})
			for _, hook := range added.Edits.Hooks {
				named[hook.Path] = true
			}
		}
	}
	return named, nil
}

// lockUnused locks a hook. It returns nil if a process holds the hook, or if the hook is gone.
func lockUnused(name string) (*os.File, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented above
	}
	if err != nil {
		return nil, fmt.Errorf("check whether hook %s is in use: %w", name, err)
	}
	locked, err := filelock.TryFlock(f, filelock.Exclusive)
	if locked {
		return f, nil
	}
	if err != nil {
		err = fmt.Errorf("check whether hook %s is in use: %w", name, err)
	}
	return nil, errors.Join(err, f.Close())
}

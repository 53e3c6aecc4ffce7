// SPDX-License-Identifier: Apache-2.0

// Package hostmount makes mounts on a node that belong to one claim: a copy of a mount of the host, empty memory, and a directory that the
// claim may write to without changing it. The container gets the path of such a mount, and the claim keeps the mount while it is prepared.
// So a restarted container gets the same files, whatever has become of the original path.
//
// A copy is opened below a directory that an admin allowed, with no symbolic link on the way. A user who can write below that directory
// cannot lead the mount out of it, not even between the check and the mount. This needs openat2 (Linux 5.6), mount_setattr (5.12), and the
// right to mount.
package hostmount

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// StepKind is the step that makes a mount. Undo removes it.
const StepKind = "host.mount"

var (
	// ErrOutside refuses a path that leads out of the allowed directory.
	ErrOutside = errors.New("leads out of what is allowed")
	// ErrUnseen says that mounts would stay in the plugin's container.
	ErrUnseen = errors.New("nothing mounted there is seen on the node: have the volume mounted with Bidirectional propagation")
)

// Mount is a mount for a claim. It has either Copy or Scratch.
type Mount struct {
	Copy    *Copy    `json:"copy,omitempty"`
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Copy is a directory or file of the host as it is mounted there.
type Copy struct {
	// Below is the absolute path of the directory that an admin allowed. Path is relative to it, "." for the directory itself.
	Below string `json:"below"`
	Path  string `json:"path"`
	// Recursive includes what is mounted below it.
	Recursive bool `json:"recursive,omitempty"`
	ReadOnly  bool `json:"readOnly,omitempty"`
}

// HostPath returns the path of the original.
func (c *Copy) HostPath() string { return path.Join(c.Below, c.Path) }

// Scratch is memory with a limit.
type Scratch struct {
	// Bytes limits its content.
	Bytes int64 `json:"bytes"`
}

// params are the parameters of the step: the mount, and its name below the directory of mounts.
type params struct {
	Mount
	Name string `json:"name"`
}

// Dir is the directory of mounts. Its path is the same on the host and in the plugin's container.
type Dir struct {
	path     string
	hostRoot string
	// seen is the id of the last mount that passed checkShared.
	seen atomic.Uint64
	// copies opens what is copied, which a disk or a server may not answer.
	copies *sysfs.Reads
}

// In names the directory of mounts, which need not exist, and the host's root.
func In(path, hostRoot string) *Dir {
	return &Dir{path: path, hostRoot: hostRoot, copies: sysfs.NewReads(clock.RealClock{}, copyPatience)}
}

// copyPatience is how long the original of a copy may take to open. Claims of the same devices wait meanwhile.
const copyPatience = 10 * time.Second

// Plan returns the step that gives a claim a mount, and the path of the mount. key tells the mounts of a claim apart.
func (d *Dir) Plan(claim, key string, m Mount) (at string, s step.Step, err error) {
	content, err := json.Marshal(m)
	if err != nil {
		return "", step.Step{}, fmt.Errorf("encode a mount of claim %s: %w", claim, err)
	}
	sum := sha256.Sum256(append([]byte(key+"\n"), content...))
	p := params{Mount: m, Name: path.Join(claim, hex.EncodeToString(sum[:8]))}
	if err := p.check(); err != nil {
		return "", step.Step{}, err
	}
	s, err = step.New(StepKind, p.Name, p)
	return d.at(p.Name), s, err
}

func (d *Dir) at(name string) string { return filepath.Join(d.path, name) }

// LeftoverSteps returns steps for the existing mounts of a claim whose record is lost, so that they can be undone.
func (d *Dir) LeftoverSteps(claim string) ([]step.Step, error) {
	names, err := d.Names(claim)
	if err != nil {
		return nil, err
	}
	var out []step.Step
	for _, name := range names {
		s, err := step.New(StepKind, name, params{Name: name})
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// Names lists the names of a claim's mounts, CLAIM/KEY, sorted. It includes mount points where nothing is mounted any more.
func (d *Dir) Names(claim string) ([]string, error) {
	entries, err := os.ReadDir(d.at(claim))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts of claim %s: %w", claim, err)
	}
	var names []string
	for _, entry := range entries {
		if p := (params{Name: path.Join(claim, entry.Name())}); p.checkName() == nil {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

// Claims returns the claims that have mounts or mount points, by the first part of their names.
func (d *Dir) Claims() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts of claims: %w", err)
	}
	var claims []string
	for _, entry := range entries {
		if entry.IsDir() {
			claims = append(claims, entry.Name())
		}
	}
	return claims, nil
}

// Destroy removes the directory of mounts. No claim of the node may have any. It deletes nothing that is in a mount.
func (d *Dir) Destroy() error {
	err := os.Remove(d.path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("remove the directory of mounts: %w", err)
}

// check refuses parameters that Plan cannot have made, since they are read from a file.
func (p *params) check() error {
	if err := p.checkName(); err != nil {
		return err
	}
	switch {
	case (p.Copy == nil) == (p.Scratch == nil):
		return fmt.Errorf("mount %s is of neither one directory nor memory", p.Name)
	case p.Scratch != nil && p.Scratch.Bytes <= 0:
		return fmt.Errorf("mount %s of %d bytes: must be more than none", p.Name, p.Scratch.Bytes)
	case p.Copy != nil && (!filepath.IsAbs(p.Copy.Below) || !filepath.IsLocal(p.Copy.Path)):
		return fmt.Errorf("mount %s of %s below %s: %w", p.Name, p.Copy.Path, p.Copy.Below, ErrOutside)
	}
	return nil
}

// checkName wants CLAIM/KEY, both without a way out of the directory.
func (p *params) checkName() error {
	if claim, name, ok := strings.Cut(p.Name, "/"); ok && plain(claim) && plain(name) {
		return nil
	}
	return fmt.Errorf("%q names no mount of a claim", p.Name)
}

func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

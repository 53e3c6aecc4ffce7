// SPDX-License-Identifier: Apache-2.0

// Package hostmount makes the mounts on a node that one claim alone has: a copy of a mount of the host, empty memory, and a directory that
// it may write to without changing it. A container
// is given the path of such a mount, which the claim keeps for as long as it is prepared, so that whatever becomes of the path that the
// copy was made of, a container that is restarted gets the same files.
//
// A copy is made of what is opened below a directory that an administrator allowed, with no symbolic link on the way: nobody who can
// write below it leads anybody out of it, not even between a look and the mount. It needs openat2 (Linux 5.6) and mount_setattr (5.12),
// and the right to mount.
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

	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step that makes a mount, and takes it away.
const StepKind = "host.mount"

var (
	// ErrOutside is about a path that leads out of the directory that was allowed.
	ErrOutside = errors.New("leads out of what is allowed")
	// ErrUnseen is about mounts that would stay in the plugin's container.
	ErrUnseen = errors.New("nothing mounted there is seen on the node: have the volume mounted with Bidirectional propagation")
)

// Mount is a mount that a claim is to have. It has either Copy or Scratch.
type Mount struct {
	Copy    *Copy    `json:"copy,omitempty"`
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Copy is a directory or file of the host as it is mounted there.
type Copy struct {
	// Below is the directory that an administrator allowed, absolute on the host; Path is relative to it, "." for itself.
	Below string `json:"below"`
	Path  string `json:"path"`
	// Recursive has what is mounted below it come along.
	Recursive bool `json:"recursive,omitempty"`
	ReadOnly  bool `json:"readOnly,omitempty"`
}

// HostPath is the path of what is copied.
func (c *Copy) HostPath() string { return path.Join(c.Below, c.Path) }

// Scratch is memory with a limit.
type Scratch struct {
	// Bytes is the most that it holds.
	Bytes int64 `json:"bytes"`
}

// params are the step's parameters: the mount, and its name below the directory of mounts.
type params struct {
	Mount
	Name string `json:"name"`
}

// Dir is the directory of mounts. Its path is the same on the host and in the plugin's container.
type Dir struct {
	path     string
	hostRoot string
	// seen is the id of the mount below which mounts are known to be seen on the node.
	seen atomic.Uint64
}

// In names the directory of mounts, which need not be there, and the host's root.
func In(path, hostRoot string) *Dir { return &Dir{path: path, hostRoot: hostRoot} }

// Plan is the step that gives a claim a mount, and where it will be. The key tells a claim's mounts apart.
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
	s, err = encode(p)
	return d.at(p.Name), s, err
}

func encode(p params) (step.Step, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode the step for mount %s: %w", p.Name, err)
	}
	return step.Step{Kind: StepKind, Target: p.Name, Params: raw}, nil
}

func (d *Dir) at(name string) string { return filepath.Join(d.path, name) }

// Left are the steps of a claim whose record is lost, so that they can be undone: by what is there.
func (d *Dir) Left(claim string) ([]step.Step, error) {
	names, err := d.Names(claim)
	if err != nil {
		return nil, err
	}
	var out []step.Step
	for _, name := range names {
		s, err := encode(params{Name: name})
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// Names are those of a claim's mounts that are there, CLAIM/KEY, sorted; also of places where nothing is mounted any more.
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

// Destroy removes the directory of mounts of a node where no claim has any. It deletes nothing that is in it.
func (d *Dir) Destroy() error {
	err := os.Remove(d.path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("remove the directory of mounts: %w", err)
}

// check refuses what no plan has: parameters are read from a file.
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

// checkName wants a claim and a name in it, both without a way out.
func (p *params) checkName() error {
	if claim, name, ok := strings.Cut(p.Name, "/"); ok && plain(claim) && plain(name) {
		return nil
	}
	return fmt.Errorf("%q names no mount of a claim", p.Name)
}

func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

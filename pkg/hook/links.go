// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// Prefix is the directory of a container below which everything is Fettle's.
const Prefix = "/usr/local/fettle"

// maxLinks bounds one call; maxPath is Linux's bound of a path.
const (
	maxLinks = 4096
	maxPath  = 4095
)

// Link is a symbolic link of the container: Path leads to Target, which is relative to its directory or an absolute path in there.
type Link struct {
	Target, Path string
	// Yield leaves what the image has in its place.
	Yield bool
}

// ParseLink reads TARGET::PATH.
func ParseLink(text string) (Link, error) {
	target, name, ok := strings.Cut(text, hooktext.LinkSeparator)
	l := Link{Target: target, Path: name}
	if !ok {
		return l, fmt.Errorf("link %q: want TARGET::PATH", text)
	}
	if err := checkPath(name); err != nil {
		return l, fmt.Errorf("link %q: %w", text, err)
	}
	absolute := target
	if !path.IsAbs(target) {
		absolute = "/" + target
	}
	if checkText(target) != nil || len(absolute) > maxPath {
		return l, fmt.Errorf("link %q: target %q, want a clean path without control characters", text, target)
	}
	if err := hooktext.CheckLinkTarget(target); err != nil {
		return l, fmt.Errorf("link %q: target %q %w", text, target, err)
	}
	return l, nil
}

// checkPath wants the path of something below the root.
func checkPath(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || len(name) > maxPath {
		return fmt.Errorf("path %q: want an absolute, clean path below /", name)
	}
	return checkText(name)
}

func checkText(name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("path %q: want no control characters", name)
	}
	return nil
}

// CheckLinks refuses more links than one call makes.
func CheckLinks(links int) error {
	if links > maxLinks {
		return fmt.Errorf("%d links, want at most %d", links, maxLinks)
	}
	return nil
}

// Links makes links. One that is there already is fine, and one of Fettle's is replaced; something else in its place is an error.
func (c *Container) Links(links []Link) error {
	if err := CheckLinks(len(links)); err != nil {
		return err
	}
	for _, l := range links {
		if err := c.link(l); err != nil {
			return fmt.Errorf("link %s to %s: %w", l.Path, l.Target, c.explain(err))
		}
	}
	return nil
}

func (c *Container) link(l Link) error {
	dir, err := c.makeDir(path.Dir(l.Path))
	if err != nil {
		return err
	}
	defer dir.Close()
	base := path.Base(l.Path)
	err = unix.Symlinkat(l.Target, int(dir.Fd()), base)
	if !errors.Is(err, unix.EEXIST) {
		return c.pathError("link", l.Path, err)
	}
	old, err := readlinkat(dir, base)
	switch {
	case err == nil && old == l.Target:
		return nil
	case err == nil && ours(old, l.Path):
		return c.relink(dir, l)
	case l.Yield:
		return nil
	case err == nil:
		return fmt.Errorf("%s is a link of the image to %q, want nothing there: choose another path", c.root.Path(l.Path), old)
	}
	stat, err := c.root.Lstat(l.Path)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s is %s of the image, want nothing there: choose another path", c.root.Path(l.Path), rootfs.TypeName(stat.Mode))
}

// relink puts a new link in an old one's place at once.
func (c *Container) relink(dir *os.File, l Link) error {
	temporary := temporaryName()
	err := unix.Symlinkat(l.Target, int(dir.Fd()), temporary)
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), path.Base(l.Path))
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temporary, 0) // it is not there, or in a container that will not start
	}
	return c.pathError("link", l.Path, err)
}

func (c *Container) pathError(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: verb, Path: c.root.Path(name), Err: err}
}

// ours says whether a link is Fettle's: it is below the prefix, or leads there.
func ours(target, name string) bool {
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return below(name) || below(path.Clean(target))
}

func below(name string) bool { return strings.HasPrefix(name, Prefix+"/") }

func readlinkat(dir *os.File, base string) (string, error) {
	buffer := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

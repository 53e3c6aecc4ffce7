// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/pkg/hostlib"
)

// Files of the container's loader.
const (
	dropInDir = "/etc/ld.so.conf.d"
	maxDirs   = 256
	maxCache  = 64 << 20
)

// muslDefault is what musl's loader searches where it has no path file.
const muslDefault = "/lib:/usr/local/lib:/usr/lib\n"

// DefaultLdconfig are the host's files that may be the program itself: on some distributions the usual name is a script.
func DefaultLdconfig() []string {
	return []string{"/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig.real", "/usr/sbin/ldconfig"}
}

// Ldconfig adds library directories to what a container's loader searches.
type Ldconfig struct {
	// Dirs are directories of the container, in order.
	Dirs []string
	// Program is the host's ldconfig, opened before the container's root was looked at.
	Program *Program
	// Timeout bounds the program's run.
	Timeout time.Duration
	// Notes takes what an administrator may want to know.
	Notes io.Writer
}

// CheckDirs refuses directories that would mean something else in a configuration of a loader.
func CheckDirs(dirs []string) error {
	if len(dirs) == 0 || len(dirs) > maxDirs {
		return fmt.Errorf("%d directories, want 1 to %d: give each with --dir", len(dirs), maxDirs)
	}
	for _, dir := range dirs {
		if err := checkPath(dir); err != nil {
			return err
		}
		if err := hooktext.CheckLoaderDirectory(dir); err != nil {
			return fmt.Errorf("path %q: %w", dir, err)
		}
	}
	return nil
}

// machineNames are what the loaders' files are called by.
type machineNames struct{ glibc, musl string }

func names() machineNames {
	switch hostlib.Machine() {
	case elf.EM_X86_64:
		return machineNames{glibc: "/lib64/ld-linux-x86-64.so.2", musl: "x86_64"}
	case elf.EM_AARCH64:
		return machineNames{glibc: "/lib/ld-linux-aarch64.so.1", musl: "aarch64"}
	default:
		return machineNames{}
	}
}

// Apply changes the container's root. It may be called again, for the same or other directories.
func (l *Ldconfig) Apply(ctx context.Context, c *Container) error {
	if err := CheckDirs(l.Dirs); err != nil {
		return err
	}
	n := names()
	glibc, musl := c.exists(n.glibc), c.exists("/lib/ld-musl-"+n.musl+".so.1")
	if !glibc && !musl {
		fmt.Fprintf(l.Notes, "the image has no loader (%s or musl's), so nothing in it can use the libraries in %s\n",
			n.glibc, strings.Join(l.Dirs, ", "))
		return nil
	}
	if musl {
		if err := l.muslPath(c, "/etc/ld-musl-"+n.musl+".path"); err != nil {
			return fmt.Errorf("add directories to musl's search path: %w", c.explain(err))
		}
	}
	if !glibc {
		return nil
	}
	if err := l.dropIn(c); err != nil {
		return fmt.Errorf("add directories to the loader's configuration: %w", c.explain(err))
	}
	if err := l.cache(ctx, c); err != nil {
		return fmt.Errorf("make the loader's cache: %w", c.explain(err))
	}
	return nil
}

// muslPath adds directories to the file that replaces musl's own search path; they are separated by colons or lines.
func (l *Ldconfig) muslPath(c *Container, name string) error {
	content, err := c.read(name, hostlib.MaxConf)
	if err != nil {
		return err
	}
	if content == nil {
		content = []byte(muslDefault)
	}
	has := strings.FieldsFunc(string(content), func(r rune) bool { return r == ':' || r == '\n' })
	for _, dir := range l.Dirs {
		if !slices.Contains(has, dir) {
			content = appendLine(content, dir)
			has = append(has, dir)
		}
	}
	return c.write(name, content)
}

// dropIn writes a file for these directories, so that an ldconfig that the container runs later finds them as well, and sees to it that
// the configuration includes it.
func (l *Ldconfig) dropIn(c *Container) error {
	content := []byte(strings.Join(l.Dirs, "\n") + "\n")
	sum := sha256.Sum256(content)
	name := path.Join(dropInDir, "00-fettle-"+hex.EncodeToString(sum[:8])+".conf")
	// The configuration is read first: nothing is changed in a container whose configuration is refused.
	main, err := c.read(hostlib.LoaderConf, hostlib.MaxConf)
	if err != nil {
		return err
	}
	conf, err := hostlib.ReadConf(c.root, hostlib.LoaderConf)
	if err != nil {
		return err
	}
	if err := c.write(name, content); err != nil {
		return err
	}
	if slices.ContainsFunc(conf.Includes, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }) {
		return nil
	}
	return c.write(hostlib.LoaderConf, appendLine(main, "include "+dropInDir+"/*.conf"))
}

func appendLine(content []byte, line string) []byte {
	content = bytes.Clone(content)
	if len(content) > 0 && content[len(content)-1] != '\n' {
		content = append(content, '\n')
	}
	return append(content, line+"\n"...)
}

// cache has the host's ldconfig make a cache of what is in the container, and puts it in its place. The program gets a plain list of
// directories: files of the image are read by our own bounded reader.
func (l *Ldconfig) cache(ctx context.Context, c *Container) error {
	conf, err := hostlib.ReadConf(c.root, hostlib.LoaderConf)
	if err != nil {
		return err
	}
	for _, skipped := range conf.Skipped {
		// Quoted: the names are the image's.
		fmt.Fprintf(l.Notes, "skipped %q: %q\n", c.root.Path(skipped.Path), skipped.Reason)
	}
	// The host's program knows the host's system directories, which need not be the image's.
	dirs := slices.Concat(conf.Dirs, slices.DeleteFunc(hostlib.SystemDirs(hostlib.Machine()), func(dir string) bool { return !c.exists(dir) }))
	if l.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.Timeout)
		defer cancel()
	}
	cache, err := l.Program.run(ctx, c.root.Dir(), []byte(strings.Join(dirs, "\n")+"\n"))
	if err != nil {
		return err
	}
	if _, err := hostlib.ParseCache(cache); err != nil {
		return fmt.Errorf("the host's ldconfig made something that is no cache: %w", err)
	}
	return c.write(hostlib.LoaderCache, cache)
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// ourDir is where the tests' libraries are mounted.
const ourDir = Prefix + "/lib/x"

// host is a little host with a container's bundle in it.
type host struct {
	dir, root, state string
}

// newHost makes a host with files that nobody may touch, and a container with the loader and libraries of glibc.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{dir: t.TempDir()}
	bundle := filepath.Join(h.dir, "run", "bundle")
	h.root = filepath.Join(bundle, "rootfs")
	for name, content := range map[string]string{
		"etc/ld.so.conf":            "/host/lib\n",
		"etc/ld.so.conf.d/own.conf": "/host/own\n",
		"etc/ld.so.cache":           "the host's\n",
		"volume/libv.so.1":          string(elffile.File{Soname: "libv.so.1"}.Bytes()),
		"run/bundle/config.json":    `{"ociVersion": "1.2.0", "root": {"path": "rootfs", "readonly": true}}`,
	} {
		h.write(t, filepath.Join(h.dir, name), content, 0o644)
	}
	h.lib(t, names().glibc, filepath.Base(names().glibc))
	h.lib(t, "/usr/lib/libown.so.1", "libown.so.1")
	h.lib(t, ourDir+"/libfake.so.1", "libfake.so.1")
	h.state = fmt.Sprintf(`{"ociVersion": "1.2.0", "id": "c1", "status": "creating", "pid": 1, "bundle": %q}`, bundle)
	return h
}

func (h *host) write(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(t, os.WriteFile(name, []byte(content), mode))
}

// in is a path of the container from outside.
func (h *host) in(name string) string { return filepath.Join(h.root, name) }

func (h *host) lib(t *testing.T, name, soname string) {
	t.Helper()
	h.write(t, h.in(name), string(elffile.File{Soname: soname}.Bytes()), 0o644)
}

func (h *host) link(t *testing.T, target, name string) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Dir(h.in(name)), 0o755))
	check.Must(t, os.Symlink(target, h.in(name)))
}

// bind mounts a directory or a file of the host over one of the container.
func (h *host) bind(t *testing.T, source, name string, flags uintptr) {
	t.Helper()
	check.Must(t, unix.Mount(source, h.in(name), "", unix.MS_BIND, ""))
	t.Cleanup(func() { check.Must(t, unix.Unmount(h.in(name), unix.MNT_DETACH)) })
	if flags != 0 {
		check.Must(t, unix.Mount("", h.in(name), "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""))
	}
}

// ldconfig runs the hook and returns what it noted.
func (h *host) ldconfig(t *testing.T, dirs ...string) (string, error) {
	t.Helper()
	program, err := OpenProgram(DefaultLdconfig())
	check.Must(t, err)
	defer program.Close()
	c, err := Open(strings.NewReader(h.state))
	if err != nil {
		return "", err
	}
	defer c.Close()
	var notes bytes.Buffer
	l := Ldconfig{Dirs: dirs, Program: program, Timeout: time.Minute, Notes: &notes}
	err = l.Apply(t.Context(), c)
	return notes.String(), err
}

// cached are the container's libraries as its loader would find them, by name, the first.
func (h *host) cached(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(h.in(hostlib.LoaderCache))
	check.Must(t, err)
	entries, err := hostlib.ParseCache(data)
	check.Must(t, err)
	found := map[string]string{}
	for _, e := range entries {
		if _, ok := found[e.Name]; !ok {
			found[e.Name] = e.Path
		}
	}
	return found
}

// snapshot describes each file below a directory, except below the given ones and in other file systems: mode, owner, inode, time
// and content.
func snapshot(t *testing.T, dir string, except ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	var top unix.Stat_t
	check.Must(t, unix.Stat(dir, &top))
	check.Must(t, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(except, name) {
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		if stat.Dev != top.Dev && entry.IsDir() {
			return fs.SkipDir
		}
		line := fmt.Sprintf("%s %d:%d inode %d changed %s", info.Mode(), stat.Uid, stat.Gid, stat.Ino, info.ModTime().Format(time.RFC3339Nano))
		switch info.Mode().Type() {
		case 0:
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(content)
			line += " " + hex.EncodeToString(sum[:])
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " to " + target
		}
		files[name] = line
		return nil
	}))
	return files
}

// changed are the paths of the container that are not as they were, without directories that only got a new name in them.
func (h *host) changed(before, after map[string]string) []string {
	names := map[string]bool{}
	for name := range maps.Keys(after) {
		if before[name] != after[name] && (before[name] == "" || !strings.HasPrefix(after[name], "d")) {
			names[strings.TrimPrefix(name, h.root)] = true
		}
	}
	for name := range maps.Keys(before) {
		if after[name] == "" {
			names[strings.TrimPrefix(name, h.root)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts, device nodes and chroot need root")
	}
	if !slices.ContainsFunc(DefaultLdconfig(), func(name string) bool { _, err := os.Stat(name); return err == nil }) {
		t.Skip("there is no ldconfig here")
	}
}

// TestLdconfig is the honest case: the loader of the container finds what was mounted, before its own, whatever its image says.
func TestLdconfig(t *testing.T) {
	needRoot(t)
	h := newHost(t)
	h.lib(t, "/opt/own/libfake.so.1", "libfake.so.1")
	h.write(t, h.in("/etc/ld.so.conf"), "# the image's\ninclude ld.so.conf.d/*.conf\n/opt/own", 0o640)
	before := snapshot(t, h.dir)
	_, err := h.ldconfig(t, ourDir)
	check.Must(t, err)
	want := map[string]string{
		"libfake.so.1": ourDir + "/libfake.so.1", "libown.so.1": "/usr/lib/libown.so.1", filepath.Base(names().glibc): names().glibc,
	}
	if diff := cmp.Diff(want, h.cached(t)); diff != "" {
		t.Errorf("the cache (-want +got):\n%s", diff)
	}
	after := snapshot(t, h.dir)
	changes := []string{"/etc/ld.so.cache", "/etc/ld.so.conf.d", dropInName(ourDir)}
	if diff := cmp.Diff(changes, h.changed(before, after)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	_, err = h.ldconfig(t, ourDir)
	check.Must(t, err)
	if diff := cmp.Diff(after, snapshot(t, h.dir)); diff != "" {
		t.Errorf("done again (-first +second):\n%s", diff)
	}
	other := Prefix + "/lib/y"
	h.lib(t, other+"/libother.so.2", "libother.so.2")
	_, err = h.ldconfig(t, other)
	check.Must(t, err)
	want["libother.so.2"] = other + "/libother.so.2"
	if diff := cmp.Diff(want, h.cached(t)); diff != "" {
		t.Errorf("with another preset's directory (-want +got):\n%s", diff)
	}
}

// TestMountedLibraries: libraries that CDI mounted, single files and directories, are seen through the read-only copy of the mounts.
func TestMountedLibraries(t *testing.T) {
	needRoot(t)
	h := newHost(t)
	h.write(t, h.in(ourDir+"/libv.so.1"), "", 0o644)
	h.bind(t, filepath.Join(h.dir, "volume/libv.so.1"), ourDir+"/libv.so.1", unix.MS_RDONLY)
	check.Must(t, os.MkdirAll(h.in(Prefix+"/lib/dir"), 0o755))
	h.write(t, filepath.Join(h.dir, "more/libw.so.1"), string(elffile.File{Soname: "libw.so.1"}.Bytes()), 0o644)
	h.bind(t, filepath.Join(h.dir, "more"), Prefix+"/lib/dir", 0)
	before := snapshot(t, h.dir, h.root)
	_, err := h.ldconfig(t, ourDir, Prefix+"/lib/dir")
	check.Must(t, err)
	found := h.cached(t)
	if found["libv.so.1"] != ourDir+"/libv.so.1" || found["libw.so.1"] != Prefix+"/lib/dir/libw.so.1" {
		t.Errorf("cached %v", found)
	}
	if diff := cmp.Diff(before, snapshot(t, h.dir, h.root)); diff != "" {
		t.Errorf("outside the container (-before +after):\n%s", diff)
	}
}

// dropInName is the file for directories.
func dropInName(dirs ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(dirs, "\n") + "\n"))
	return "/etc/ld.so.conf.d/00-fettle-" + hex.EncodeToString(sum[:8]) + ".conf"
}

// TestConfiguration: the image's configuration keeps its content and includes the directory afterwards.
func TestConfiguration(t *testing.T) {
	needRoot(t)
	const include = "include /etc/ld.so.conf.d/*.conf\n"
	for name, test := range map[string]struct{ before, after string }{
		"absent":            {"", include},
		"without a newline": {"/opt/own", "/opt/own\n" + include},
		"with another":      {"include /etc/other/*.conf\n", "include /etc/other/*.conf\n" + include},
		"with it":           {"include   /etc/ld.so.conf.d/*.conf # x", "include   /etc/ld.so.conf.d/*.conf # x"},
		"relative":          {"include ld.so.conf.d/*", "include ld.so.conf.d/*"},
		"in a comment":      {"# include ld.so.conf.d/*.conf\n", "# include ld.so.conf.d/*.conf\n" + include},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if test.before != "" {
				h.write(t, h.in("/etc/ld.so.conf"), test.before, 0o644)
			}
			_, err := h.ldconfig(t, ourDir)
			check.Must(t, err)
			got, err := os.ReadFile(h.in("/etc/ld.so.conf"))
			check.Must(t, err)
			if diff := cmp.Diff(test.after, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if h.cached(t)["libfake.so.1"] == "" {
				t.Error("libfake.so.1 is not in the cache")
			}
		})
	}
}

// TestMusl: an image of musl gets a path file and nothing of glibc; one with neither is left alone.
func TestMusl(t *testing.T) {
	needRoot(t)
	h := newHost(t)
	check.Must(t, os.Remove(h.in(names().glibc)))
	before := snapshot(t, h.dir)
	notes, err := h.ldconfig(t, ourDir)
	check.Must(t, err)
	if !strings.Contains(notes, "no loader") {
		t.Errorf("notes %q do not say that there is no loader", notes)
	}
	if diff := cmp.Diff(before, snapshot(t, h.dir)); diff != "" {
		t.Errorf("no loader (-before +after):\n%s", diff)
	}
	h.lib(t, "/lib/ld-musl-"+names().musl+".so.1", "")
	file := "/etc/ld-musl-" + names().musl + ".path"
	for _, want := range []string{"/lib:/usr/local/lib:/usr/lib\n" + ourDir + "\n", "/own:/lib\n" + ourDir + "\n", "/own:" + ourDir} {
		before := snapshot(t, h.dir)
		for range 2 {
			_, err := h.ldconfig(t, ourDir)
			check.Must(t, err)
		}
		got, err := os.ReadFile(h.in(file))
		if err != nil || string(got) != want {
			t.Errorf("path file %q, %v, want %q", got, err, want)
		}
		if changes := h.changed(before, snapshot(t, h.dir)); len(changes) > 2 || slices.Contains(changes, "/etc/ld.so.cache") {
			t.Errorf("changed %v", changes)
		}
		next := map[bool]string{true: "/own:/lib", false: "/own:" + ourDir}[strings.HasPrefix(want, "/lib")]
		h.write(t, h.in(file), next, 0o644)
	}
}

// hostile is an image that is against us.
type hostile struct {
	prepare func(t *testing.T, h *host)
	// wantErr are parts of the error; none means that the hook succeeds.
	wantErr []string
}

// hostileImages are by name. What is outside the container must be as it was after each.
func hostileImages() map[string]hostile {
	return map[string]hostile{
		"ld.so.conf.d is a link to the host's": {
			func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc/ld.so.conf.d"), "/etc/ld.so.conf.d") },
			[]string{"/etc/ld.so.conf.d is a link of the image that leads nowhere", "repair the image"},
		},
		"ld.so.conf.d is a link out of the root": {
			func(t *testing.T, h *host) { h.link(t, "../../../../volume", "/etc/ld.so.conf.d") },
			[]string{"leads nowhere"},
		},
		"ld.so.conf.d is a link to another directory of the image": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/opt/conf"), 0o755))
				h.link(t, "/opt/conf", "/etc/ld.so.conf.d")
			}, nil,
		},
		"etc is a link to the host's": {
			func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc"), "/etc") }, []string{"leads nowhere"},
		},
		"etc is a link out of the root": {
			func(t *testing.T, h *host) { h.link(t, "../../../etc", "/etc") }, []string{"round in a circle"},
		},
		"etc is a link to the process's root": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/proc"), 0o755))
				h.bind(t, "/proc", "/proc", 0)
				h.link(t, "/proc/self/root/"+h.dir+"/etc", "/etc")
			},
			[]string{"another mount is in the way"},
		},
		"etc is a loop": {
			func(t *testing.T, h *host) { h.link(t, "/etc", "/etc") }, []string{"round in a circle"},
		},
		"etc is a file": {
			func(t *testing.T, h *host) { h.write(t, h.in("/etc"), "x", 0o644) }, []string{"not a directory"},
		},
		"ld.so.conf is a link to the host's": {
			func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc/ld.so.conf"), "/etc/ld.so.conf") }, nil,
		},
		"ld.so.conf is a loop": {
			func(t *testing.T, h *host) { h.link(t, "ld.so.conf", "/etc/ld.so.conf") }, []string{"/etc/ld.so.conf", "round in a circle"},
		},
		"ld.so.conf is a pipe": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc"), 0o755))
				check.Must(t, unix.Mkfifo(h.in("/etc/ld.so.conf"), 0o644))
			},
			[]string{"/etc/ld.so.conf", "a pipe", "want a text file"},
		},
		"ld.so.conf is a directory": {
			func(t *testing.T, h *host) { check.Must(t, os.MkdirAll(h.in("/etc/ld.so.conf"), 0o755)) }, []string{"a directory", "want a text file"},
		},
		"ld.so.conf is a device": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc"), 0o755))
				check.Must(t, unix.Mknod(h.in("/etc/ld.so.conf"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
			},
			[]string{"a device node"},
		},
		"ld.so.conf is huge": {
			func(t *testing.T, h *host) {
				h.write(t, h.in("/etc/ld.so.conf"), strings.Repeat("#\n", 600<<10), 0o644)
			},
			[]string{"/etc/ld.so.conf", "more than 1048576 bytes"},
		},
		"ld.so.conf is a hard link": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc"), 0o755))
				check.Must(t, os.Link(filepath.Join(h.dir, "etc/ld.so.conf"), h.in("/etc/ld.so.conf")))
				check.Must(t, os.Link(filepath.Join(h.dir, "etc/ld.so.cache"), h.in("/etc/ld.so.cache")))
			}, nil,
		},
		"ld.so.conf includes what blocks and loops": {
			func(t *testing.T, h *host) {
				h.write(t, h.in("/etc/ld.so.conf"), "include /etc/ld.so.conf\ninclude /etc/more/*\ninclude ld.so.conf.d/*.conf\n/../../..\n", 0o644)
				check.Must(t, os.MkdirAll(h.in("/etc/more"), 0o755))
				check.Must(t, unix.Mkfifo(h.in("/etc/more/pipe"), 0o644))
				h.link(t, filepath.Join(h.dir, "etc/ld.so.conf"), "/etc/more/link")
			}, nil,
		},
		"the drop-in's name is taken by a pipe": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc/ld.so.conf.d"), 0o755))
				check.Must(t, unix.Mkfifo(h.in(dropInName(ourDir)), 0o644))
			}, nil,
		},
		"the drop-in's name is a link to the host": {
			func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc/ld.so.cache"), dropInName(ourDir)) }, nil,
		},
		"the drop-in's name is a directory": {
			func(t *testing.T, h *host) { check.Must(t, os.MkdirAll(h.in(dropInName(ourDir)), 0o755)) }, []string{"00-fettle-", "is a directory"},
		},
		"the cache is a link to the host's": {
			func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc/ld.so.cache"), "/etc/ld.so.cache") }, nil,
		},
		"the cache is a directory": {
			func(t *testing.T, h *host) { check.Must(t, os.MkdirAll(h.in("/etc/ld.so.cache"), 0o755)) }, []string{"/etc/ld.so.cache is a directory"},
		},
		"the program's temporary files are links to the host": {
			func(t *testing.T, h *host) {
				h.link(t, filepath.Join(h.dir, "etc/ld.so.cache"), "/etc/ld.so.cache~")
				h.link(t, filepath.Join(h.dir, "etc"), "/var/cache/ldconfig")
			}, nil,
		},
		"a volume is mounted at etc": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc"), 0o755))
				h.bind(t, filepath.Join(h.dir, "etc"), "/etc", 0)
			},
			[]string{"/etc", "what is mounted is never changed", "mount it at another path"},
		},
		"a volume is mounted at ld.so.conf.d": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/etc/ld.so.conf.d"), 0o755))
				h.bind(t, filepath.Join(h.dir, "etc/ld.so.conf.d"), "/etc/ld.so.conf.d", 0)
			},
			[]string{"what is mounted is never changed"},
		},
		"a file is mounted at ld.so.conf": {
			func(t *testing.T, h *host) {
				h.write(t, h.in("/etc/ld.so.conf"), "", 0o644)
				h.bind(t, filepath.Join(h.dir, "etc/ld.so.conf"), "/etc/ld.so.conf", 0)
			},
			[]string{"/etc/ld.so.conf", "what is mounted is never changed"},
		},
		"a file is mounted at the cache": {
			func(t *testing.T, h *host) {
				h.write(t, h.in("/etc/ld.so.cache"), "", 0o644)
				h.bind(t, filepath.Join(h.dir, "etc/ld.so.cache"), "/etc/ld.so.cache", 0)
			},
			[]string{"/etc/ld.so.cache", "what is mounted is never changed"},
		},
		"a link leads into a volume": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/data"), 0o755))
				h.bind(t, filepath.Join(h.dir, "volume"), "/data", 0)
				h.link(t, "/data", "/etc/ld.so.conf.d")
			},
			[]string{"what is mounted is never changed"},
		},
		"a volume is where ldconfig keeps its own cache": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/var/cache/ldconfig"), 0o755))
				h.bind(t, filepath.Join(h.dir, "volume"), "/var/cache/ldconfig", 0)
			}, nil,
		},
		"a volume has libraries without links": {
			func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/data"), 0o755))
				h.bind(t, filepath.Join(h.dir, "volume"), "/data", 0)
				h.write(t, h.in("/etc/ld.so.conf"), "/data\n", 0o644)
			}, nil,
		},
		"the root is read-only": {
			func(t *testing.T, h *host) { h.bind(t, h.root, "/", unix.MS_RDONLY) },
			[]string{"read-only", "leave out the libraries"},
		},
		"libraries that are none": {
			func(t *testing.T, h *host) {
				check.Must(t, unix.Mkfifo(h.in("/usr/lib/libpipe.so.1"), 0o644))
				h.write(t, h.in("/usr/lib/libbroken.so.1"), "\x7fELF\x02\x01\x01", 0o644)
				h.link(t, filepath.Join(h.dir, "volume/libv.so.1"), "/usr/lib/libv.so.1")
			}, nil,
		},
	}
}

// TestHostileImages: whatever an image is made of, nothing outside the container's root changes, nothing of the image is executed, and
// in the root itself nothing changes but the loader's files.
func TestHostileImages(t *testing.T) {
	needRoot(t)
	for name, image := range hostileImages() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			for _, program := range []string{"/sbin/ldconfig", "/sbin/ldconfig.real", "/usr/sbin/ldconfig", "/bin/sh"} {
				h.write(t, h.in(program), string(elffile.Canary()), 0o755)
			}
			image.prepare(t, h)
			outside, inside := snapshot(t, h.dir, h.root), snapshot(t, h.root)
			_, err := h.ldconfig(t, ourDir)
			if diff := cmp.Diff(outside, snapshot(t, h.dir, h.root)); diff != "" {
				t.Errorf("outside the container (-before +after):\n%s", diff)
			}
			changes := h.changed(inside, snapshot(t, h.root))
			for _, change := range changes {
				if !slices.Contains(allowed(), change) && !strings.HasPrefix(change, "/opt/conf/00-fettle-") {
					t.Errorf("in the container changed %s", change)
				}
			}
			image.check(t, h, err)
		})
	}
}

// allowed are the only paths that may change.
func allowed() []string {
	return []string{"/etc", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", dropInName(ourDir)}
}

func (i hostile) check(t *testing.T, h *host, err error) {
	t.Helper()
	if len(i.wantErr) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		if got := h.cached(t)["libfake.so.1"]; got != ourDir+"/libfake.so.1" {
			t.Errorf("libfake.so.1 is cached at %q", got)
		}
		return
	}
	for _, want := range i.wantErr {
		check.WantErr(t, err, nil, want)
	}
	if err != nil && !strings.Contains(err.Error(), h.root) {
		t.Errorf("error %v does not name the file", err)
	}
}

// TestCanary: the program that TestHostileImages looks for the mark of would leave one.
func TestCanary(t *testing.T) {
	if os.Geteuid() != 0 || elffile.Canary() == nil {
		t.Skip("needs root and x86-64")
	}
	root := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(root, "canary"), elffile.Canary(), 0o755))
	command := exec.Command("/canary")
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	check.Must(t, command.Run())
	if _, err := os.Stat(filepath.Join(root, elffile.Mark)); err != nil {
		t.Error(err)
	}
}

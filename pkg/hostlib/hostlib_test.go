// SPDX-License-Identifier: Apache-2.0

package hostlib_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// tree makes files and links below a new root. A value "-> x" is a link, "lib:NAME" a library with that soname, "prog:LOADER" a
// program, "other:NAME" a library of another machine; anything else is the content.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, what := range files {
		name = filepath.Join(root, name)
		check.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		kind, rest, _ := strings.Cut(what, ":")
		switch {
		case strings.HasPrefix(what, "-> "):
			check.Must(t, os.Symlink(what[3:], name))
		case kind == "lib":
			check.Must(t, os.WriteFile(name, elffile.File{Soname: rest}.Bytes(), 0o644))
		case kind == "other":
			check.Must(t, os.WriteFile(name, elffile.File{Soname: rest, Machine: elf.EM_S390}.Bytes(), 0o644))
		case kind == "prog":
			check.Must(t, os.WriteFile(name, elffile.File{Interpreter: rest}.Bytes(), 0o755))
		default:
			check.Must(t, os.WriteFile(name, []byte(what), 0o644))
		}
	}
	return root
}

func open(t *testing.T, root string, config hostlib.Config) *hostlib.Host {
	t.Helper()
	h, err := hostlib.Open(root, config)
	check.Must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// brief is a library in a line: "libx.so.1.2 /usr/lib/libx.so.1.2 libx.so.1: libx.so libx.so.1".
func brief(libraries []hostlib.Library) []string {
	var lines []string
	for _, l := range libraries {
		line := l.Name + " " + l.HostPath + " " + l.Soname + ":"
		for _, link := range l.Links {
			line += " " + link.Name
			if link.Target != l.Name {
				line += "->" + link.Target
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// driverRoot is an installation with what real ones have: several versions, links of each kind, another machine's files.
func driverRoot(t *testing.T) string {
	t.Helper()
	return tree(t, map[string]string{
		"/etc/ld.so.conf":                  "include ld.so.conf.d/*.conf\n/opt/last  # comment\n",
		"/etc/ld.so.conf.d/10-a.conf":      "/opt/a=libc6\n/opt/missing\nhwcap 0 nosegneg\n",
		"/etc/ld.so.conf.d/20-b.conf":      "include /etc/ld.so.conf.d/20-b.conf\n/opt/b\n",
		"/opt/a/libcuda.so.550.1":          "lib:libcuda.so.1",
		"/opt/a/libcuda.so.535.9":          "lib:libcuda.so.1",
		"/opt/a/libcuda.so.1":              "-> libcuda.so.550.1",
		"/opt/a/libcuda.so":                "-> /opt/a/libcuda.so.1",
		"/opt/b/libcuda.so.1":              "-> libcuda.so.470.0",
		"/opt/b/libcuda.so.470.0":          "lib:libcuda.so.1",
		"/opt/b/libnvidia-ml.so.1":         "-> /opt/store/libnvidia-ml.so.550.1",
		"/opt/store/libnvidia-ml.so.550.1": "lib:libnvidia-ml.so.1",
		"/opt/b/libscript.so":              "GROUP ( /opt/b/libother.so )",
		"/opt/b/libother.so":               "other:libother.so",
		"/opt/b/libgone.so.1":              "-> libgone.so.1.0",
		"/usr/lib/liblate.so.2":            "lib:liblate.so.2",
		"/opt/extra/libextra.so.3":         "lib:",
		"/opt/extra/libbad.so.1":           "lib:../../etc/passwd",
		"/opt/extra/libbad.so.2\n":         "lib:x",
		"/lib":                             "-> usr/lib",
	})
}

func TestLibraries(t *testing.T) {
	root := driverRoot(t)
	h := open(t, root, hostlib.Config{LibraryDirs: []string{"/opt/extra"}})
	for _, test := range []struct {
		name          string
		patterns      []string
		want, missing []string
		skipped       []string
	}{
		{
			name: "a soname leads to the file", patterns: []string{"libcuda.so.1"},
			want: []string{"libcuda.so.550.1 /opt/a/libcuda.so.550.1 libcuda.so.1: libcuda.so libcuda.so.1"},
		}, {
			name: "a glob takes all versions, and the soname leads where the link does", patterns: []string{"libcuda.so.*"},
			want: []string{
				"libcuda.so.470.0 /opt/b/libcuda.so.470.0 libcuda.so.1:",
				"libcuda.so.535.9 /opt/a/libcuda.so.535.9 libcuda.so.1:",
				"libcuda.so.550.1 /opt/a/libcuda.so.550.1 libcuda.so.1: libcuda.so libcuda.so.1",
			},
		}, {
			name: "a link to another directory", patterns: []string{"libnvidia-ml.so.1"},
			want: []string{"libnvidia-ml.so.550.1 /opt/store/libnvidia-ml.so.550.1 libnvidia-ml.so.1: libnvidia-ml.so.1"},
		}, {
			name: "the loader's and the administrator's directories", patterns: []string{"liblate.so.2", "libextra.so.*"},
			want: []string{"libextra.so.3 /opt/extra/libextra.so.3 :", "liblate.so.2 /usr/lib/liblate.so.2 liblate.so.2:"},
		}, {
			name: "names that lead elsewhere", patterns: []string{"libbad.so.*"},
			want: []string{"libbad.so.1 /opt/extra/libbad.so.1 ../../etc/passwd:"},
		}, {
			name: "what is no library", patterns: []string{"libscript.so", "libother.so", "libgone.so.1", "libabsent*"},
			missing: []string{"libscript.so", "libother.so", "libgone.so.1", "libabsent*"},
			skipped: []string{"/opt/b/libscript.so", "/opt/b/libother.so"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := h.Libraries(test.patterns)
			check.Must(t, err)
			var missing, skipped []string
			for _, m := range got.Missing {
				missing = append(missing, m.Name)
				if !strings.Contains(m.Error(), "/opt/extra") || !strings.Contains(m.Error(), "/opt/a") {
					t.Errorf("%v does not say where it was looked for", m)
				}
			}
			for _, s := range got.Skipped {
				if !strings.Contains(s.Reason, "deep") {
					skipped = append(skipped, s.Path)
				}
			}
			if diff := cmp.Diff(test.want, brief(got.Found)); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.missing, missing); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.skipped, skipped, cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNamesRefused: what is asked for may not lead out of a directory.
func TestNamesRefused(t *testing.T) {
	h := open(t, t.TempDir(), hostlib.Config{})
	for _, name := range []string{"", ".", "..", "a/b", "../lib", "a\x00b", "a\nb", "lib[", strings.Repeat("x", 300)} {
		if _, err := h.Libraries([]string{name}); !errors.Is(err, hostlib.ErrName) {
			t.Errorf("Libraries(%q): %v, want %v", name, err, hostlib.ErrName)
		}
		if _, err := h.Tools([]string{name}); !errors.Is(err, hostlib.ErrName) {
			t.Errorf("Tools(%q): %v, want %v", name, err, hostlib.ErrName)
		}
	}
	if _, err := hostlib.Open("/", hostlib.Config{ToolDirs: []string{"opt/../x"}}); err == nil {
		t.Error("a relative directory is accepted")
	}
}

// TestDirectoriesFirst: what an administrator lists is looked at before what the system has, for libraries and for tools.
func TestDirectoriesFirst(t *testing.T) {
	root := tree(t, map[string]string{
		"/usr/lib/libx.so.1":   "lib:libx.so.1",
		"/opt/new/libx.so.1":   "lib:libx.so.1",
		"/usr/bin/smi":         "prog:",
		"/usr/bin/mps-server":  "prog:",
		"/opt/new/smi":         "prog:",
		"/opt/new/mps-control": "prog:",
		"/opt/new/mps-notes":   "text",
	})
	h := open(t, root, hostlib.Config{LibraryDirs: []string{"/opt/new"}, ToolDirs: []string{"/opt/new"}})
	libraries, err := h.Libraries([]string{"libx.so.*"})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"libx.so.1 /opt/new/libx.so.1 libx.so.1:"}, brief(libraries.Found)); diff != "" {
		t.Errorf("libraries (-want +got):\n%s", diff)
	}
	tools, err := h.Tools([]string{"smi", "mps-*", "mps-server", "none-*"})
	check.Must(t, err)
	var found []string
	for _, tool := range tools.Found {
		found = append(found, tool.Name+" "+tool.HostPath)
	}
	want := []string{"mps-control /opt/new/mps-control", "mps-server /usr/bin/mps-server", "smi /opt/new/smi"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if len(tools.Missing) != 1 || tools.Missing[0].Name != "none-*" {
		t.Errorf("missing %v, want none-*", tools.Missing)
	}
}

// TestHostileHost: pipes, loops and garbage in the loader's files cost a note, and never a wait.
func TestHostileHost(t *testing.T) {
	root := tree(t, map[string]string{
		"/etc/ld.so.conf":       "include /etc/conf.d/*\nrelative\n/opt/loop\n/opt/a\n",
		"/etc/conf.d/loop.conf": "-> loop.conf",
		"/etc/ld.so.cache":      "garbage",
		"/opt/a/libx.so.1":      "lib:libx.so.1",
		"/opt/loop":             "-> loop",
		"/usr/lib/libx.so.2":    "\x7fELF\x02\x01\x01",
	})
	check.Must(t, unix.Mkfifo(filepath.Join(root, "etc/conf.d/pipe"), 0o600))
	check.Must(t, unix.Mkfifo(filepath.Join(root, "opt/a/libx.so.3"), 0o600))
	got, err := open(t, root, hostlib.Config{}).Libraries([]string{"libx.so.*"})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"libx.so.1 /opt/a/libx.so.1 libx.so.1:"}, brief(got.Found)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	var skipped []string
	for _, s := range got.Skipped {
		skipped = append(skipped, s.Path)
	}
	want := []string{
		"/etc/conf.d/loop.conf", "/etc/conf.d/pipe", "/etc/ld.so.cache", "/etc/ld.so.conf", "/opt/a/libx.so.3", "/opt/loop", "/usr/lib/libx.so.2",
	}
	if diff := cmp.Diff(want, skipped, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func TestTools(t *testing.T) {
	root := tree(t, map[string]string{
		"/usr/bin/nvidia-smi":   "prog:/lib64/ld-linux-x86-64.so.2",
		"/usr/bin/static":       "prog:",
		"/opt/bin/script":       "#! /usr/bin/python3 -s\n",
		"/usr/sbin/not":         "#!/bin/sh\n",
		"/usr/bin/text":         "hello",
		"/usr/local/bin/linked": "-> /usr/bin/static",
		"/bin":                  "-> usr/bin",
	})
	check.Must(t, os.Chmod(filepath.Join(root, "opt/bin/script"), 0o755))
	check.Must(t, os.Chmod(filepath.Join(root, "usr/bin/text"), 0o755))
	h := open(t, root, hostlib.Config{ToolDirs: []string{"/opt/bin"}})
	got, err := h.Tools([]string{"static", "nvidia-smi", "script", "linked", "not", "text", "absent", "static"})
	check.Must(t, err)
	want := []hostlib.Tool{
		{Name: "linked", HostPath: "/usr/bin/static"},
		{Name: "nvidia-smi", HostPath: "/usr/bin/nvidia-smi", Interpreter: "/lib64/ld-linux-x86-64.so.2"},
		{Name: "script", HostPath: "/opt/bin/script", Interpreter: "/usr/bin/python3", Script: true},
		{Name: "static", HostPath: "/usr/bin/static"},
	}
	if diff := cmp.Diff(want, got.Found, cmpopts.IgnoreFields(hostlib.Tool{}, "Identity")); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if len(got.Missing) != 3 || got.Missing[0].Name != "not" || got.Missing[1].Name != "text" || got.Missing[2].Name != "absent" {
		t.Errorf("missing %v, want not, text and absent", got.Missing)
	}
	if len(got.Skipped) != 3 || !strings.Contains(got.Skipped[0].Reason, "executable") {
		t.Errorf("skipped %v, want not (no mode) and text (twice, by /bin too)", got.Skipped)
	}
}

// TestIdentity: it changes with what a mount would show, and only then.
func TestIdentity(t *testing.T) {
	root := tree(t, map[string]string{"/opt/v1/libx.so": "lib:libx.so", "/opt/v2/libx.so": "lib:libx.so", "/opt/now": "-> v1"})
	h := open(t, root, hostlib.Config{})
	first, err := h.Identity("/opt/now/libx.so")
	check.Must(t, err)
	again, err := h.Identity("/opt/v1/libx.so")
	check.Must(t, err)
	if first != again || first.HostPath != "/opt/v1/libx.so" {
		t.Errorf("through the link %+v, without it %+v", first, again)
	}
	check.Must(t, os.Remove(filepath.Join(root, "opt/now")))
	check.Must(t, os.Symlink("v2", filepath.Join(root, "opt/now")))
	if second, err := h.Identity("/opt/now/libx.so"); err != nil || second.Identity == first.Identity {
		t.Errorf("after the link was turned: %+v, %v", second, err)
	}
	if dir, err := h.Identity("/opt/now"); err != nil || !dir.Dir || dir.HostPath != "/opt/v2" {
		t.Errorf("a directory: %+v, %v", dir, err)
	}
}

// makeCache runs the machine's ldconfig for a root, in one of the formats that it knows.
func makeCache(t *testing.T, root, format string) {
	t.Helper()
	program, err := exec.LookPath("ldconfig")
	if err != nil {
		program = "/sbin/ldconfig"
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("there is no ldconfig here")
	}
	if output, err := exec.Command(program, "-X", "-r", root, "-c", format).CombinedOutput(); err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, output)
	}
}

// TestRealCache: a cache of the real ldconfig says what it says itself (ldconfig -p), in each of its formats.
func TestRealCache(t *testing.T) {
	for _, format := range []string{"old", "new", "compat"} {
		t.Run(format, func(t *testing.T) {
			root := tree(t, map[string]string{
				"/etc/ld.so.conf": "/opt/a\n/opt/b\n", "/opt/a/libone.so.1": "lib:libone.so.1", "/opt/b/libone.so.1": "lib:libone.so.1",
				"/opt/b/libtwo.so.2.3": "lib:libtwo.so.2", "/opt/b/libtwo.so.2": "-> libtwo.so.2.3", "/lib/x": "", "/usr/lib/x": "",
			})
			makeCache(t, root, format)
			data, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
			check.Must(t, err)
			entries, err := hostlib.ParseCache(data)
			check.Must(t, err)
			var got []string
			for _, e := range entries {
				if !e.For(hostlib.Machine()) || e.Hwcap != 0 {
					t.Errorf("%+v is not for %s, or only for some", e, hostlib.Machine())
				}
				got = append(got, e.Name+" "+e.Path)
			}
			want := []string{"libtwo.so.2 /opt/b/libtwo.so.2", "libone.so.1 /opt/a/libone.so.1", "libone.so.1 /opt/b/libone.so.1"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestCacheWins: what is in the cache is found where no configuration leads, and a cache that is older than the disk is no harm.
func TestCacheWins(t *testing.T) {
	root := tree(t, map[string]string{
		"/etc/ld.so.conf": "/opt/a\n/opt/b\n", "/opt/a/libone.so.1": "lib:libone.so.1", "/opt/b/libtwo.so.2": "lib:libtwo.so.2",
		"/opt/b/libtwo.so.2.0": "lib:other.so", "/usr/lib/libone.so.1": "lib:libone.so.1",
	})
	makeCache(t, root, "new")
	check.Must(t, os.Remove(filepath.Join(root, "etc/ld.so.conf")))
	h := open(t, root, hostlib.Config{})
	got, err := h.Libraries([]string{"libone.so.1", "libtwo.so.?", "libtwo.so.*.0"})
	check.Must(t, err)
	want := []string{
		"libone.so.1 /opt/a/libone.so.1 libone.so.1:", "libtwo.so.2 /opt/b/libtwo.so.2 libtwo.so.2:",
		"libtwo.so.2.0 /opt/b/libtwo.so.2.0 other.so: other.so",
	}
	if diff := cmp.Diff(want, brief(got.Found)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	check.Must(t, os.RemoveAll(filepath.Join(root, "opt")))
	got, err = h.Libraries([]string{"libone.so.1"})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"libone.so.1 /usr/lib/libone.so.1 libone.so.1:"}, brief(got.Found)); diff != "" {
		t.Errorf("after an upgrade (-want +got):\n%s", diff)
	}
}

// TestThisMachine finds libraries of the system that the test runs on, where its loader is glibc's.
func TestThisMachine(t *testing.T) {
	if _, err := os.Stat("/etc/ld.so.cache"); err != nil {
		t.Skip("there is no ld.so.cache here")
	}
	h := open(t, "/", hostlib.Config{})
	got, err := h.Libraries([]string{"libc.so.6", "libpthread.so*"})
	check.Must(t, err)
	tools, err := h.Tools([]string{"sh"})
	check.Must(t, err)
	if len(got.Found) == 0 || got.Found[0].Identity.Size == 0 || len(tools.Found) != 1 || tools.Found[0].Interpreter == "" {
		t.Errorf("found %+v and %+v, missing %v, skipped %v", got.Found, tools.Found, got.Missing, got.Skipped)
	}
}

// TestConfBounded: a configuration that includes itself again and again, over a directory with many names, comes to an end.
// Without the bounds the test would not.
func TestConfBounded(t *testing.T) {
	files := map[string]string{"/etc/ld.so.conf": strings.Repeat("include /etc/*/*\ninclude /etc/ld.so.conf\n", 10000) + "/opt/a\n"}
	for i := range 300 {
		files[fmt.Sprintf("/etc/many/%d", i)] = "/opt/b\n"
	}
	root, err := rootfs.Open(tree(t, files))
	check.Must(t, err)
	defer root.Close()
	conf, err := hostlib.ReadConf(root, hostlib.LoaderConf)
	check.Must(t, err)
	if !slices.Contains(conf.Dirs, "/opt/b") || len(conf.Skipped) == 0 {
		t.Errorf("directories %v, %d notes", conf.Dirs, len(conf.Skipped))
	}
}

// TestSearchBounded: a thousand directories, which are all the same one with many files, are not all looked through. The libraries of the
// first are found.
func TestSearchBounded(t *testing.T) {
	const dirs, many = 1000, 1000
	var conf strings.Builder
	files := map[string]string{"/big/libx.so.1": "lib:libx.so.1"}
	for i := range dirs {
		fmt.Fprintf(&conf, "/d%d\n", i)
		files[fmt.Sprintf("/d%d", i)] = "-> big"
	}
	for i := range many {
		files[fmt.Sprintf("/big/f%d", i)] = ""
	}
	files["/etc/ld.so.conf"] = conf.String()
	h := open(t, tree(t, files), hostlib.Config{})
	for _, pattern := range []string{"libx.so.*", "*"} {
		found, err := h.Libraries([]string{pattern})
		check.Must(t, err)
		if len(found.Found) != 1 {
			t.Errorf("%s: found %q", pattern, brief(found.Found))
		}
		if last := found.Skipped[max(len(found.Skipped)-1, 0):]; len(last) != 1 || !strings.Contains(last[0].Reason, "left out") {
			t.Errorf("%s: %v at the end, want a note that something was left out", pattern, last)
		}
	}
}

// TestToolsBounded: many patterns match many files that are no programs, in many directories which are all the same one. Only so many are
// looked at, and one that is a program is found before.
func TestToolsBounded(t *testing.T) {
	const dirs, many, patterns, limit = 16, 400, 16, 4096
	files := map[string]string{"/big/aprogram": "prog:/lib64/ld.so"}
	var config hostlib.Config
	for i := range dirs {
		files[fmt.Sprintf("/d%d", i)] = "-> big"
		config.ToolDirs = append(config.ToolDirs, fmt.Sprintf("/d%d", i))
	}
	for i := range many {
		files[fmt.Sprintf("/big/f%d", i)] = ""
	}
	var names []string
	for i := range patterns {
		names = append(names, strings.Repeat("*", i+1))
	}
	found, err := open(t, tree(t, files), config).Tools(names)
	check.Must(t, err)
	if len(found.Found) != 1 || len(found.Missing) > 0 {
		t.Errorf("found %v, missing %v", found.Found, found.Missing)
	}
	if len(found.Skipped) > limit+1 {
		t.Fatalf("%d notes, want at most %d", len(found.Skipped), limit+1)
	}
	if last := found.Skipped[len(found.Skipped)-1]; !strings.Contains(last.Reason, "left out") {
		t.Errorf("%v at the end, want a note that something was left out", last)
	}
}

// TestPatternsBounded: names and patterns below a root of tenants may be so long that to compare them all takes hours. What follows the
// first is left out, and a note says so.
func TestPatternsBounded(t *testing.T) {
	const many, most = 1100, 1 << 19
	var patterns []string
	for i := range 64 {
		patterns = append(patterns, strings.Repeat("z", 100)+fmt.Sprintf("%02d*", i)+strings.Repeat("z", 25))
	}
	files := map[string]string{"/zz/libx.so.1": "lib:libx.so.1", "/zz/prog": "prog:/lib64/ld.so", "/opt/a.conf": "/opt/b"}
	for i := range many {
		files[fmt.Sprintf("/big/%04d%s", i, strings.Repeat("a", 251))] = ""
	}
	files["/etc/ld.so.conf"] = "include /big/*" + strings.Repeat("b", most) + "\n" +
		strings.Repeat("include /big/"+strings.Repeat("b", 1000)+"*\n", 8) + "include /opt/*.conf\n"
	h := open(t, tree(t, files), hostlib.Config{LibraryDirs: []string{"/big", "/zz"}, ToolDirs: []string{"/big", "/zz"}})
	libraries, err := h.Libraries(append(patterns, "libx*"))
	check.Must(t, err)
	tools, err := h.Tools(append(patterns, "prog*"))
	check.Must(t, err)
	for what, skipped := range map[string][]hostlib.Skipped{"libraries": libraries.Skipped, "tools": tools.Skipped} {
		if last := skipped[max(len(skipped)-1, 0):]; len(last) != 1 || !strings.Contains(last[0].Reason, "left out") {
			t.Errorf("%s: %v at the end, want a note that something was left out", what, last)
		}
	}
	if len(libraries.Found) > 0 || len(tools.Found) > 0 {
		t.Errorf("found %v and %v behind what was left out", libraries.Found, tools.Found)
	}
	if said := fmt.Sprint(libraries.Skipped); !strings.Contains(said, "longer than any name") {
		t.Errorf("the notes say of no pattern that it is too long: %.2000s", said)
	}
	if slices.Contains(libraries.Missing[0].Places, "/opt/b") {
		t.Error("the configuration was read to its end")
	}
}

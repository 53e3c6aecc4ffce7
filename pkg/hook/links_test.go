// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// links runs the hook.
func (h *host) links(links ...Link) error {
	c, err := Open(strings.NewReader(h.state))
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Links(links)
}

func TestLinks(t *testing.T) {
	h := newHost(t)
	links := []Link{
		{Target: "libfake.so.1", Path: ourDir + "/libfake.so"},
		{Target: Prefix + "/bin/tool", Path: "/usr/bin/tool"},
		{Target: "../x/libfake.so.1", Path: Prefix + "/lib/new/deep/libfake.so"},
	}
	before := snapshot(t, h.dir)
	check.Must(t, h.links(links...))
	after := snapshot(t, h.dir)
	for _, l := range links {
		if got, err := os.Readlink(h.in(l.Path)); err != nil || got != l.Target {
			t.Errorf("%s leads to %q, %v, want %q", l.Path, got, err, l.Target)
		}
	}
	want := []string{
		"/usr/bin", "/usr/bin/tool", ourDir + "/libfake.so", Prefix + "/lib/new", Prefix + "/lib/new/deep", Prefix + "/lib/new/deep/libfake.so",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, h.changed(before, after)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	check.Must(t, h.links(links...))
	if diff := cmp.Diff(after, snapshot(t, h.dir)); diff != "" {
		t.Errorf("done again (-first +second):\n%s", diff)
	}
	links[1].Target = Prefix + "/bin/newer"
	check.Must(t, h.links(links...))
	if got, err := os.Readlink(h.in("/usr/bin/tool")); err != nil || got != links[1].Target {
		t.Errorf("a link of ours leads to %q, %v, want %q", got, err, links[1].Target)
	}
}

// TestLinksYield: a link that yields is made where nothing is, and leaves whatever the image has.
func TestLinksYield(t *testing.T) {
	h := newHost(t)
	h.write(t, h.in("/usr/bin/file"), "x", 0o755)
	h.link(t, "busybox", "/usr/bin/link")
	before := snapshot(t, h.dir)
	check.Must(t, h.links(
		Link{Target: "/opt/bin/file", Path: "/usr/bin/file", Yield: true}, Link{Target: "/opt/bin/link", Path: "/usr/bin/link", Yield: true},
		Link{Target: "/opt/bin/new", Path: "/usr/bin/new", Yield: true},
	))
	if diff := cmp.Diff([]string{"/usr/bin/new"}, h.changed(before, snapshot(t, h.dir))); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// TestLinksRefused: what the image has stays, and nothing is made outside of it.
func TestLinksRefused(t *testing.T) {
	for name, test := range map[string]struct {
		root    bool
		prepare func(t *testing.T, h *host)
		link    Link
		want    string
	}{
		"a file": {
			false, func(t *testing.T, h *host) { h.write(t, h.in("/usr/bin/tool"), "x", 0o755) },
			Link{Target: Prefix + "/bin/tool", Path: "/usr/bin/tool"},
			"/usr/bin/tool is a regular file of the image",
		},
		"a directory": {
			false, func(t *testing.T, h *host) { check.Must(t, os.MkdirAll(h.in("/usr/bin/tool"), 0o755)) },
			Link{Target: Prefix + "/bin/tool", Path: "/usr/bin/tool"},
			"/usr/bin/tool is a directory of the image",
		},
		"another link": {
			false, func(t *testing.T, h *host) { h.link(t, "busybox", "/usr/bin/tool") },
			Link{Target: Prefix + "/bin/tool", Path: "/usr/bin/tool"},
			`is a link of the image to "busybox"`,
		},
		"a link that looks like ours": {
			false, func(t *testing.T, h *host) { h.link(t, Prefix+"/../../bin/x", "/usr/bin/tool") },
			Link{Target: Prefix + "/bin/tool", Path: "/usr/bin/tool"},
			"is a link of the image",
		},
		"a directory that leads to the host": {
			false, func(t *testing.T, h *host) { h.link(t, filepath.Join(h.dir, "etc"), "/opt") },
			Link{Target: "x", Path: "/opt/link"},
			"leads nowhere",
		},
		"a directory that leads out": {
			false, func(t *testing.T, h *host) { h.link(t, "../../../volume", "/opt") }, Link{Target: "x", Path: "/opt/link"}, "leads nowhere",
		},
		"a volume": {
			true, func(t *testing.T, h *host) {
				check.Must(t, os.MkdirAll(h.in("/opt"), 0o755))
				h.bind(t, filepath.Join(h.dir, "volume"), "/opt", 0)
			},
			Link{Target: "x", Path: "/opt/link"},
			"what is mounted is never changed",
		},
		"a read-only root": {
			true, func(t *testing.T, h *host) { h.bind(t, h.root, "/", unix.MS_RDONLY) }, Link{Target: "x", Path: "/opt/link"}, "read-only already",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("mounting needs root")
			}
			h := newHost(t)
			test.prepare(t, h)
			before := snapshot(t, h.dir)
			err := h.links(test.link)
			check.WantErr(t, err, nil, test.want, test.link.Path)
			if diff := cmp.Diff(before, snapshot(t, h.dir)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	if l, err := ParseLink("libx.so.1::/opt/libx.so"); err != nil || l != (Link{Target: "libx.so.1", Path: "/opt/libx.so"}) {
		t.Errorf("%+v, %v", l, err)
	}
	for _, text := range []string{
		"", "a", "a:/b", "::/b", "a::", "a::b", "a::/", "a::/b/../c", "a::/b/", "a/../b::/c", "a\n::/b", "a::/b\x00",
		"a::/" + strings.Repeat("x", 5000),
	} {
		if _, err := ParseLink(text); err == nil {
			t.Errorf("link %q is accepted", text)
		}
	}
	if err := CheckDirs([]string{"/usr/local/fettle/lib/x-1.2_3+4"}); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"", "lib", "/", "/a/../b", "/a b", "/a=libc6", "/a#b", "/a:b", "/a\nb", "/a*", "/$LIB"} {
		if err := CheckDirs([]string{dir}); err == nil {
			t.Errorf("directory %q is accepted", dir)
		}
	}
	if CheckDirs(nil) == nil {
		t.Error("no directory is accepted")
	}
}

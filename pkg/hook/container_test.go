// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// TestOpen: what a runtime tells is checked before anything is done.
func TestOpen(t *testing.T) {
	for name, test := range map[string]struct {
		state, config, want string
	}{
		"fine":                    {config: `{"root": {"path": "rootfs"}, "unknown": 1}`},
		"absolute":                {config: `{"root": {"path": "ROOT"}}`},
		"no state":                {state: " ", want: "standard input"},
		"not JSON":                {state: "x", want: "standard input"},
		"a large state":           {state: `{"id": "` + strings.Repeat("x", maxState) + `"}`, want: "larger than 1048576 bytes"},
		"a relative bundle":       {state: `{"bundle": "x"}`, want: `the bundle "x", want an absolute path`},
		"no bundle":               {state: `{}`, want: "want an absolute path"},
		"no configuration":        {want: "config.json: no such file"},
		"broken configuration":    {config: `{"root"`, want: "config.json"},
		"no root":                 {config: `{}`, want: "root.path"},
		"another type":            {config: `{"root": {"path": 1}}`, want: "config.json"},
		"the host's own root":     {config: `{"root": {"path": "/"}}`, want: "the host's own root"},
		"the host's root by dots": {config: `{"root": {"path": "` + strings.Repeat("../", 20) + `"}}`, want: "the host's own root"},
		"the host's root by proc": {config: `{"root": {"path": "/proc/self/root"}}`, want: "open the container's root"},
		"no directory":            {config: `{"root": {"path": "config.json"}}`, want: "open the container's root"},
		"a root that is not":      {config: `{"root": {"path": "gone"}}`, want: "open the container's root"},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := t.TempDir()
			check.Must(t, os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755))
			if test.config != "" {
				config := strings.ReplaceAll(test.config, "ROOT", filepath.Join(bundle, "rootfs"))
				check.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600))
			}
			if test.state == "" {
				test.state = fmt.Sprintf(`{"id": "c1", "bundle": %q}`, bundle)
			}
			c, err := Open(strings.NewReader(test.state))
			if err == nil {
				check.Must(t, c.Close())
			}
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestConfigurationPipe: a pipe in the bundle is not waited for.
func TestConfigurationPipe(t *testing.T) {
	bundle := t.TempDir()
	check.Must(t, unix.Mkfifo(filepath.Join(bundle, "config.json"), 0o600))
	if _, err := Open(strings.NewReader(fmt.Sprintf(`{"bundle": %q}`, bundle))); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("error %v, want one about a regular file", err)
	}
}

// endless never ends.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	if e.read += int64(len(b)); e.read > 2*maxConfig {
		return 0, errors.New("read on and on")
	}
	return len(b), nil
}

func TestBounded(t *testing.T) {
	for name, read := range map[string]func(r io.Reader) error{
		"state":  func(r io.Reader) error { _, err := readState(r); return err },
		"config": func(r io.Reader) error { _, err := readConfig(r); return err },
	} {
		if err := read(&endless{}); err == nil || !strings.Contains(err.Error(), "larger than") {
			t.Errorf("%s: error %v, want one about its size", name, err)
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add(`{"ociVersion": "1.2.0", "id": "c1", "status": "creating", "pid": 1, "bundle": "/run/c1", "annotations": {"a": "b"}}`)
	f.Add(`{"bundle": ""}`)
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := readState(strings.NewReader(text)); err == nil && !filepath.IsAbs(s.Bundle) {
			t.Errorf("bundle %q", s.Bundle)
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add(`{"ociVersion": "1.2.0", "root": {"path": "rootfs", "readonly": true}, "mounts": []}`)
	f.Add(`{"root": null}`)
	f.Fuzz(func(t *testing.T, text string) {
		if root, err := readConfig(strings.NewReader(text)); err == nil && root.Path == "" {
			t.Error("no path")
		}
	})
}

func FuzzParseLink(f *testing.F) {
	f.Add("libx.so.1::/opt/libx.so")
	f.Add("::/")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLink(text)
		if err == nil && (filepath.Clean(l.Path) != l.Path || !filepath.IsAbs(l.Path) || strings.ContainsAny(l.Target+l.Path, "\x00\n")) {
			t.Errorf("link %+v", l)
		}
	})
}

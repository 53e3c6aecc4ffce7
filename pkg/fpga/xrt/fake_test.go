// SPDX-License-Identifier: Apache-2.0

package xrt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
)

// script is what the fake xbmgmt does. It lies in the driver root.
type script struct {
	// Version is what --version prints.
	Version string
	// Root is the host's tree, Image the uuid that programming makes the card show.
	Root, Image string
	// Unlocked says that the card is no longer locked afterwards.
	Unlocked bool
	// Says and Exit are how program and reset end.
	Says string
	Exit int
	// Hang and Endless are for these, too; HangVersion for --version. With Await they begin when there is a file of the name go.
	Hang, Endless, HangVersion, Await bool
}

// call is what the fake was run with.
type call struct {
	Args, Env []string
	// File is the digest of the image that it was given, Mode the file's permissions, Lock the name of what was held for it.
	File, Mode, Lock string
}

func TestMain(m *testing.M) {
	if base := filepath.Base(os.Args[0]); base == "xbmgmt2" || base == "xbmgmt" {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(fake(filepath.Join(os.Getenv("XILINX_XRT"), "../../.."), os.Args[1:]))
	}
	os.Exit(m.Run())
}

func fake(root string, args []string) int {
	var s script
	text, err := os.ReadFile(filepath.Join(root, "script.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		err = note(root, args)
	}
	// A test that fails says nothing, and this process must not outlive it for good.
	deadline := time.Now().Add(check.Patience)
	for s.Await && args[0] != "--version" && !exists(filepath.Join(root, "go")) && time.Now().Before(deadline) {
		<-time.After(time.Millisecond)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 99
	case args[0] == "--version":
		if s.HangVersion {
			check.Hang()
		}
		fmt.Print(s.Version)
		return 0
	case s.Hang:
		check.Hang()
	case s.Endless:
		for {
			fmt.Println(strings.Repeat("Downloading xclbin ", 100))
		}
	}
	card := filepath.Join(root, s.Root, "sys/bus/pci/devices/0000:3b:00.")
	if s.Image != "" {
		err = os.WriteFile(card+"1/xclbinuuid", []byte(s.Image+"\n"), 0o600)
	}
	if s.Unlocked {
		err = errors.Join(err, os.WriteFile(card+"0/config_mailbox_channel_disable", []byte("0x0\n"), 0o600))
	}
	fmt.Println(s.Says, err)
	return s.Exit
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

func note(root string, args []string) error {
	c := call{Args: args, Env: os.Environ()}
	c.Lock, _ = os.Readlink("/proc/self/fd/3")
	for i, arg := range args {
		if arg != "--user" {
			continue
		}
		data, err := os.ReadFile(args[i+1])
		if err != nil {
			return err
		}
		info, err := os.Lstat(args[i+1])
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		c.File, c.Mode = "sha256:"+hex.EncodeToString(sum[:]), info.Mode().String()
	}
	f, err := os.OpenFile(filepath.Join(root, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(c), f.Close())
}

// site is a machine with one card, XRT, and a state directory.
type site struct {
	t           *testing.T
	root, state string
	tools       string
	host        *Host
	card        Card
}

const (
	fits     = "97088961feaeda91a35bd3a1b3f8d2c5"
	loaded   = "7e1b8f6d3f0a4c559d2e51a0c4b7e963"
	wanted   = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
	printed  = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
	versions = "Version              : 2.16.204\nBranch               : 2023.2\nXOCL                 : 2.16.204, fa4c00\n"
)

func newSite(t *testing.T, o Options) *site {
	t.Helper()
	s := &site{t: t, tools: t.TempDir(), state: t.TempDir()}
	s.root = filepath.Join(s.tools, "host")
	for name, text := range map[string]string{
		"0/config_mailbox_channel_disable": "0x120\n", "1/interface_uuids": fits + "\n",
		"1/xclbinuuid": "7e1b8f6d-3f0a-4c55-9d2e-51a0c4b7e963\n",
		"1/kdsstat":    "xclbin:\t\t\t7e1b8f6d\noutstanding execs:\t0\ntotal execs:\t\t12\ncontexts:\t\t0\nclient pid:\n",
	} {
		s.set(name, text)
	}
	s.install(places()[0])
	s.script(script{Version: versions, Image: printed})
	o.Tools, o.StateDir = tool.Root{Dir: s.tools, Reach: func() *confine.Paths { return confine.Everything(os.TempDir()) }}, s.state
	if o.Clock == nil {
		o.Clock = check.Hurried()
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	var err error
	s.host, err = Open(s.root, o)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, s.host.Close()) })
	s.card = Card{
		Name: "amd-0000-3b-00-1", Management: address(t, "0000:3b:00.0"), User: address(t, "0000:3b:00.1"),
		LockFile: filepath.Join(s.state, "card.lock"),
	}
	return s
}

func address(t *testing.T, text string) pci.Address {
	t.Helper()
	a, err := pci.Parse(text)
	check.Must(t, err)
	return a
}

// set writes an attribute of one of the functions.
func (s *site) set(name, text string) {
	s.t.Helper()
	name = filepath.Join(s.root, "sys/bus/pci/devices/0000:3b:00."+name)
	check.Must(s.t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(s.t, os.WriteFile(name, []byte(text), 0o644))
}

func (s *site) install(place string) {
	s.t.Helper()
	exe, err := os.Executable()
	check.Must(s.t, err)
	to := filepath.Join(s.tools, place)
	check.Must(s.t, os.MkdirAll(filepath.Dir(to), 0o755))
	if os.Link(exe, to) == nil {
		return
	}
	from, err := os.Open(exe)
	check.Must(s.t, err)
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check.Must(s.t, err)
	_, err = io.Copy(f, from)
	check.Must(s.t, errors.Join(err, f.Close()))
}

func (s *site) script(x script) {
	s.t.Helper()
	x.Root = "host"
	text, err := json.Marshal(x)
	check.Must(s.t, err)
	check.Must(s.t, os.WriteFile(filepath.Join(s.tools, "script.json"), text, 0o600))
}

// calls are the runs so far, apart from those that asked for the version.
func (s *site) calls() []call {
	s.t.Helper()
	return slices.DeleteFunc(s.runs(), func(c call) bool { return c.Args[0] == "--version" })
}

// runs are all runs so far.
func (s *site) runs() []call {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.tools, "calls"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	check.Must(s.t, err)
	defer f.Close()
	var calls []call
	for d := json.NewDecoder(f); ; {
		var c call
		if err := d.Decode(&c); errors.Is(err, io.EOF) {
			return calls
		}
		calls = append(calls, c)
	}
}

func (s *site) acquire() *Lease {
	s.t.Helper()
	l, err := s.host.Acquire(s.t.Context(), s.card, fits)
	check.Must(s.t, err)
	s.t.Cleanup(func() { _ = l.Release() })
	return l
}

// copies are the images in the state directory.
func (s *site) copies() []string {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.state, "*"+suffix))
	check.Must(s.t, err)
	return names
}

// image is bytes that stay as they are.
type image struct {
	*bytes.Reader
	digest string
}

func (i image) Size() int64    { return i.Reader.Size() }
func (i image) Digest() string { return i.digest }

func newImage(raw string) image {
	sum := sha256.Sum256([]byte(raw))
	return image{bytes.NewReader([]byte(raw)), "sha256:" + hex.EncodeToString(sum[:])}
}

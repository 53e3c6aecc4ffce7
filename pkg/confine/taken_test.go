// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// node is a little node with what a taken-over program wants, and what the program has.
type node struct {
	// CDI is a directory of CDI specs, Token a file with a token, Kubelet a directory with a key, Other another claim's directory.
	CDI, Token, Kubelet, Other string
	// Unix, Abstract and TCP are addresses that somebody listens at.
	Unix, Abstract, TCP string
	// Process is a process of the same user.
	Process int
	// Own and Nodes are the program's directories.
	Own, Nodes string
}

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("", "node") //nolint:usetesting // short: sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := node{
		CDI: filepath.Join(dir, "cdi"), Token: filepath.Join(dir, "token/token"), Kubelet: filepath.Join(dir, "kubelet"),
		Other: filepath.Join(dir, "mps/other"), Own: filepath.Join(dir, "mps/own"), Nodes: filepath.Join(dir, "dev"),
		Unix: filepath.Join(dir, "containerd.sock"), Abstract: "@fettle-test-" + filepath.Base(dir), Process: os.Getpid(),
	}
	for _, name := range []string{n.CDI, filepath.Dir(n.Token), n.Kubelet, n.Other, n.Own, n.Nodes} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{filepath.Join(n.CDI, "spec.json"), n.Token, n.Kubelet + "/key", n.Other + "/file"} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for network, address := range map[string]*string{"unix": &n.Unix, "tcp": &n.TCP, "abstract": &n.Abstract} {
		listen := *address
		switch network {
		case "tcp":
			listen = "127.0.0.1:0"
		case "abstract":
			network = "unix"
		}
		l, err := new(net.ListenConfig).Listen(t.Context(), network, listen)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		*address = l.Addr().String()
	}
	return n
}

// paths are those of the program.
func (n *node) paths() *Paths {
	return &Paths{Read: []string{"/proc", os.Args[0], "/lib64", "/lib", "/usr/lib", "/etc/ld.so.cache"}, Own: []string{n.Own}}
}

// attack tries to do what a taken-over program wants.
func (n *node) attack() map[string]error {
	write := func(name string) error { return os.WriteFile(name, []byte("y"), 0o600) }
	read := func(name string) error {
		_, err := os.ReadFile(name)
		return err
	}
	dial := func(network, address string) error {
		conn, err := net.Dial(network, address) //nolint:noctx // it is refused at once
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	chmod := func(name string) error {
		before, err := os.Stat(name)
		if err != nil {
			return err
		}
		if err := os.Chmod(name, before.Mode().Perm()^0o022); err != nil {
			return err
		}
		if after, err := os.Stat(name); err != nil || after.Mode() == before.Mode() {
			return errors.Join(err, errors.New("the mode is as before"))
		}
		return nil
	}
	spec, at := filepath.Join(n.CDI, "spec.json"), func(name string) string { return fmt.Sprintf("/proc/%d/%s", n.Process, name) }
	link := filepath.Join(n.Own, "link")
	linked := os.Symlink(n.Other, link)
	if linked == nil || errors.Is(linked, fs.ErrExist) {
		linked = write(filepath.Join(link, "file"))
	}
	return map[string]error{
		"write a CDI spec": write(spec), "make a CDI spec": write(filepath.Join(n.CDI, "new.json")), "remove a CDI spec": os.Remove(spec),
		"rename a CDI spec": os.Rename(spec, spec+".old"), "cut a CDI spec": os.Truncate(spec, 0),
		"make a directory":                os.Mkdir(n.CDI+"/d", 0o700),
		"open the directory of CDI specs": chmod(n.CDI), "read the token": read(n.Token),
		"read kubelet's key":       read(n.Kubelet + "/key"),
		"list kubelet's directory": errors.Join(ignore(os.ReadDir(n.Kubelet))),
		"dial TCP":                 dial("tcp", n.TCP), "dial an abstract socket": dial("unix", n.Abstract),
		"dial a socket":                        dial("unix", n.Unix),
		"write into another claim's directory": write(filepath.Join(n.Other, "file")), "follow a link there": linked,
		"bring a file of another claim": os.Link(filepath.Join(n.Other, "file"), filepath.Join(n.Own, "brought")),
		"send a signal":                 unix.Kill(n.Process, 0), "trace a process": unix.PtraceAttach(n.Process),
		"read a process's environment": read(at("environ")), "read the files of a process": read(at("root" + n.Token)),
		"write to a process's memory": write(at("mem")), "mount": unix.Mount("none", n.Own, "tmpfs", 0, ""),
		"make a disk's node":       unix.Mknod(filepath.Join(n.Own, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))),
		"make the memory's node":   unix.Mknod(filepath.Join(n.Nodes, "mem"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))),
		"make a disk's node there": unix.Mknod(filepath.Join(n.Nodes, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))),
		"execute what it wrote":    execute(n.Own),
	}
}

func ignore(_ []os.DirEntry, err error) error { return err }

func execute(dir string) error {
	name := filepath.Join(dir, "program")
	if err := os.WriteFile(name, []byte("#!/bin/true\n"), 0o700); err != nil {
		return err
	}
	cmd := exec.Command(name) //nolint:noctx // it is refused at once
	cmd.Env = []string{}
	return cmd.Run()
}

// work does what the program is there for.
func (n *node) work() map[string]error {
	state, socket := filepath.Join(n.Own, "state"), filepath.Join(n.Own, "s")
	out := map[string]error{
		"keep its state": errors.Join(os.WriteFile(state+".new", []byte("z"), 0o600), os.Rename(state+".new", state)),
		"make a pipe":    unix.Mkfifo(filepath.Join(n.Own, "pipe"), 0o666),
	}
	if l, err := net.Listen("unix", socket); err != nil { //nolint:noctx // it is local
		out["use its socket"] = err
	} else {
		conn, err := net.Dial("unix", socket) //nolint:noctx // it is local
		if err == nil {
			err = conn.Close()
		}
		out["use its socket"] = errors.Join(err, l.Close())
	}
	out["make a node of its driver"] = unix.Mknod(filepath.Join(n.Nodes, "cap"), unix.S_IFCHR|0o400, int(unix.Mkdev(5, 2)))
	return out
}

// taken is the taken-over program.
func taken(arg string) error {
	var n node
	if err := json.Unmarshal([]byte(arg), &n); err != nil {
		return err
	}
	errs := n.work()
	for name, err := range n.attack() {
		errs["attack: "+name] = err
	}
	return report(errs)
}

// TestTakenOverProgramReachesNothing: a program that somebody took over cannot get at anything that it is not for, and still does its work.
func TestTakenOverProgramReachesNothing(t *testing.T) {
	rootOnly(t)
	version, err := Landlock()
	if err != nil {
		t.Fatal(err)
	}
	if version < 6 {
		t.Skipf("Landlock %d of this kernel cannot hold signals", version)
	}
	// The daemon sets modes of its own pipes, and connects to its own socket. What it sees of others' is up to its mounts.
	mpsMay := []string{"open the directory of CDI specs"}
	if version < 9 {
		mpsMay = append(mpsMay, "dial a socket")
	}
	const device = 5 // the major of the driver here
	for name, tc := range map[string]struct {
		start func(n *node, cmd *exec.Cmd) error
		// works says what of its work the program does.
		works []string
		// may are attacks that succeed, and why that is borne stands beside them.
		may []string
	}{
		"fettle-nvml asks": {start: func(n *node, cmd *exec.Cmd) error {
			return Child{Memory: 1 << 30, Paths: n.paths()}.Start(cmd)
		}, works: []string{"keep its state", "make a pipe"}},
		"fettle-nvml makes an instance": {start: func(n *node, cmd *exec.Cmd) error {
			paths := n.paths()
			paths.Nodes = []string{n.Nodes}
			return Child{Keep: MakesNodes(), Majors: []uint32{device}, Memory: 1 << 30, Paths: paths}.Start(cmd)
		}, works: []string{"keep its state", "make a pipe", "make a node of its driver"}},
		"nvidia-smi sets a time slice": {start: func(n *node, cmd *exec.Cmd) error {
			return Child{Keep: Setting(), Memory: 1 << 30, Paths: n.paths()}.Start(cmd)
			// The kernel takes CAP_SYS_ADMIN for CAP_PERFMON, which reads that. Nothing secret is in the plugin's.
		}, works: []string{"keep its state", "make a pipe"}, may: []string{"read a process's environment"}},
		"MPS": {start: func(n *node, cmd *exec.Cmd) error {
			started := make(chan error)
			go func() {
				err := MPSDaemon{Paths: n.paths()}.confineThread()
				if err == nil {
					err = cmd.Start()
				}
				started <- err
			}()
			return <-started
		}, works: []string{"keep its state", "make a pipe", "use its socket"}, may: mpsMay},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			arg, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			o := run(t, func(cmd *exec.Cmd) error { return tc.start(&n, cmd) }, asTaken+"="+string(arg))
			for what, failed := range o.Errors {
				attack, isAttack := strings.CutPrefix(what, "attack: ")
				if isAttack && failed == "" && !slices.Contains(tc.may, attack) {
					t.Errorf("it could %s", attack)
				}
			}
			for _, what := range tc.works {
				if o.Errors[what] != "" {
					t.Errorf("it could not %s: %s", what, o.Errors[what])
				}
			}
		})
	}
}

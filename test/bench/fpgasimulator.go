// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/fpgasim"
)

// simulator is a child that answers for the FPGAs of a machine. It ends with its input, so it does whatever becomes of the bench.
type simulator struct {
	*process
	input io.Closer
	// root is where it serves the machine's sys, mounts where parts of that are mounted too.
	root   string
	mounts []string
}

// simulate serves the machine of a file at root, a directory that it makes. It leaves no digests: they are not what a card does.
func simulate(ctx context.Context, program, file, root string) (_ *simulator, err error) {
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	command := exec.Command(program, "-root", root, "-machine", file, "-no-digests")
	// An interrupt is for the bench, which then ends this in order.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s := &simulator{root: root}
	if s.input, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	if s.process, err = startCommand(command); err != nil {
		return nil, err
	}
	nodes := filepath.Join(root, filepath.Base(fpgasim.SysNodes))
	_, err = await(ctx, s.begin, "the simulated FPGAs", func() (bool, error) {
		_, err := os.Stat(nodes)
		if errors.Is(err, os.ErrNotExist) {
			return false, s.running()
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// join mounts the directories that react into a host tree that was expanded. The simulator could serve all of sys, but to walk through
// a dozen directories of it for each attribute would take longer than anything that is measured; in a real sysfs that takes no time.
func (s *simulator) join(m fpgasim.Machine, host string) error {
	if err := os.Mkdir(filepath.Join(host, m.Nodes), 0o755); err != nil {
		return err
	}
	directories := map[string]bool{m.Nodes: true}
	for i, card := range m.Cards {
		for j := range card.Ports {
			at := m.Place(i, j)
			directories[at.Attributes], directories[at.Region], directories[at.Manager] = true, true, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(directories)) {
		from, to := filepath.Join(s.root, strings.TrimPrefix(name, m.Base+"/")), filepath.Join(host, name)
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", from, to, err)
		}
		s.mounts = append(s.mounts, to)
	}
	return nil
}

// stop ends the simulator, which unmounts its root, and sees to that where it did not.
func (s *simulator) stop() error {
	const grace = 20 * time.Second
	var errs []error
	for _, name := range s.mounts {
		errs = append(errs, unmount(name))
	}
	if err := s.input.Close(); err != nil && !errors.Is(err, os.ErrClosed) { // closed: it had ended already
		errs = append(errs, err)
	}
	select {
	case <-s.ended:
	case <-time.After(grace):
		errs = append(errs, s.command.Process.Kill())
		<-s.ended
	}
	if s.err != nil {
		errs = append(errs, fmt.Errorf("%s: %w\n%s", s.command.Path, s.err, s.output.tail()))
	}
	return errors.Join(append(errs, unmount(s.root))...)
}

// unmount is fine with a directory where nothing is mounted.
func unmount(name string) error {
	if err := unix.Unmount(name, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("unmount "+name, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// The names in the supervisor's own directory, which the plugin has too. Pods have neither.
const (
	SocketName = "socket"
	// ListName is the directory with a file for each daemon that the supervisor shall run.
	ListName = "daemons"
)

var (
	// ErrNoSupervisor says that no supervisor runs on the node.
	ErrNoSupervisor = errors.New("no MPS supervisor runs on this node: set mps.enabled in the chart's values and look at pods of fettle-mps")
	// ErrNotReady says that a daemon does not answer yet, or any more.
	ErrNotReady = errors.New("is not ready yet: retried")
)

// Client asks the supervisor of the node.
type Client struct {
	// Dir is the supervisor's directory.
	Dir string
}

// Run has a daemon run, and returns how far it is now.
func (c Client) Run(ctx context.Context, d *Daemon) (Status, error) {
	if err := d.Validate(); err != nil {
		return Status{}, err
	}
	a, err := c.ask(ctx, request{Op: opRun, Daemon: d})
	if err != nil {
		return Status{}, fmt.Errorf("run MPS daemon %s: %w", d.ID, err)
	}
	if len(a.Daemons) != 1 || a.Daemons[0].ID != d.ID {
		return Status{}, fmt.Errorf("run MPS daemon %s: the supervisor answers about %d daemons", d.ID, len(a.Daemons))
	}
	return a.Daemons[0], nil
}

// Stop ends a daemon, and returns when it is gone. Without a supervisor no daemon runs, since they end with it; Stop then takes the daemon
// from the list, so that the next supervisor does not start it.
func (c Client) Stop(ctx context.Context, id string) error {
	if err := validID(id); err != nil {
		return err
	}
	_, err := c.ask(ctx, request{Op: opStop, ID: id})
	if errors.Is(err, ErrNoSupervisor) {
		if err := c.forget(id); err != nil {
			return fmt.Errorf("stop MPS daemon %s without a supervisor: %w", id, err)
		}
		// A supervisor listens before it reads the list. So one that read it before the file was gone is there now.
		if _, err = c.ask(ctx, request{Op: opStop, ID: id}); errors.Is(err, ErrNoSupervisor) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("stop MPS daemon %s: %w", id, err)
	}
	return nil
}

func (c Client) forget(id string) error {
	dir := filepath.Join(c.Dir, ListName)
	err := disk.RemoveIfThere(disk.OS{}, filepath.Join(dir, id))
	if err == nil {
		err = disk.OS{}.SyncDir(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns how far all daemons of the node are.
func (c Client) List(ctx context.Context) ([]Status, error) {
	a, err := c.ask(ctx, request{Op: opList})
	if err != nil {
		return nil, fmt.Errorf("list MPS daemons: %w", err)
	}
	return a.Daemons, nil
}

// Memory reports whether the directories of a daemon can be in memory that the plugin mounts. Supervisors of earlier versions do not see
// what is mounted after their start, and a daemon that runs keeps the directories that it has.
func (c Client) Memory(ctx context.Context, id string) (bool, error) {
	a, err := c.ask(ctx, request{Op: opList})
	if err != nil {
		return false, fmt.Errorf("ask where MPS daemon %s has its directories: %w", id, err)
	}
	plain := func(s Status) bool { return s.ID == id && !s.Memory }
	return a.Memory && !slices.ContainsFunc(a.Daemons, plain), nil
}

// ask asks one question on a connection of its own.
func (c Client) ask(ctx context.Context, r request) (*answer, error) {
	r.Version = protocolVersion
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	dialer := net.Dialer{Timeout: patience}
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(c.Dir, SocketName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the MPS supervisor: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer is checked for being whole
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a, err := exchange(conn, data)
	if err != nil {
		return nil, fmt.Errorf("ask the MPS supervisor: %w", errors.Join(err, context.Cause(ctx)))
	}
	switch {
	case a.Fault == faultConflict:
		return nil, fmt.Errorf("%w: %s", ErrConflict, a.Error)
	case a.Fault == faultInvalid:
		return nil, fmt.Errorf("%w: %s", ErrInvalid, a.Error)
	case a.Error != "":
		return nil, errors.New(a.Error)
	}
	return a, nil
}

func exchange(conn net.Conn, data []byte) (*answer, error) {
	if _, err := conn.Write(data); err != nil {
		return nil, err
	}
	if half, ok := conn.(*net.UnixConn); ok {
		if err := half.CloseWrite(); err != nil {
			return nil, err
		}
	}
	reply, err := readAll(conn, maxAnswer)
	if err != nil {
		return nil, err
	}
	return parseAnswer(reply)
}

// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// maxClients limits the questions that are answered at once. Others wait.
const maxClients = 64

// ErrConflict refuses to run a daemon that runs with other settings.
var ErrConflict = errors.New("runs with other settings")

// Supervisor runs daemons. Its methods are called concurrently.
type Supervisor interface {
	// Run has a daemon run from now on, and says how far it is. It fails with ErrConflict if one of that id has other settings.
	Run(d Daemon) (Status, error)
	// Stop ends a daemon and returns when it is gone, with its directory. One that there is not is gone.
	Stop(ctx context.Context, id string) error
	// List returns all daemons, sorted by id.
	List() []Status
	// Memory reports whether daemons can have their directories in MemoryDir.
	Memory() bool
}

// Listen makes the socket, for its owner only. It replaces one that an earlier process left.
func Listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := disk.RemoveIfThere(disk.OS{}, socket); err != nil {
		return nil, fmt.Errorf("replace the socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the plugin: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the plugin: %w", err), listener.Close())
	}
	return listener, nil
}

// Serve answers the plugin until ctx ends, and returns when no question is open. It refuses clients of any other user than uid, however
// they came to the socket: the kernel says who they are.
func Serve(ctx context.Context, listener net.Listener, uid uint32, s Supervisor) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, maxClients)
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !isShort(err) {
			return fmt.Errorf("wait for the plugin: %w", err)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot answer the plugin now, which is tried again")
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		places <- struct{}{}
		open.Go(func() {
			defer func() { <-places }()
			reply(ctx, client, uid, s)
		})
	}
}

// isShort reports that the process or the node is short of files or memory now. To end for it would end all daemons.
func isShort(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}

// reply answers one client. A client that does not get the whole answer asks again.
func reply(ctx context.Context, client net.Conn, uid uint32, s Supervisor) {
	defer client.Close() //nolint:errcheck // the client checks that the answer is whole
	a := answer{}
	if err := client.SetDeadline(time.Now().Add(patience)); err != nil {
		return
	}
	data, err := readAll(client, maxRequest) // also a stranger's: closing a socket with unread data would lose the answer
	if err != nil {
		err = fmt.Errorf("read the request: %w", err)
	} else if err = checkPeer(client, uid); err == nil {
		a.Memory = s.Memory()
		a.Daemons, err = question(ctx, data, s)
	}
	a.Version = protocolVersion
	if err != nil {
		a.Error = err.Error()
		switch {
		case errors.Is(err, ErrConflict):
			a.Fault = faultConflict
		case errors.Is(err, ErrInvalid):
			a.Fault = faultInvalid
		}
	}
	if client.SetDeadline(time.Now().Add(patience)) == nil {
		_ = json.NewEncoder(client).Encode(a)
	}
}

func question(ctx context.Context, data []byte, s Supervisor) ([]Status, error) {
	r, err := parseRequest(data)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case opRun:
		status, err := s.Run(*r.Daemon)
		return []Status{status}, err
	case opStop:
		return nil, s.Stop(ctx, r.ID)
	case opList:
	}
	return s.List(), nil
}

// checkPeer refuses a client of another user.
func checkPeer(client net.Conn, uid uint32) error {
	conn, ok := client.(*net.UnixConn)
	if !ok {
		return errors.New("the client is not on a unix socket")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("ask who the client is: %w", err)
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("ask who the client is: %w", err)
	}
	if peer.Uid != uid {
		return fmt.Errorf("user %d may not ask: only user %d, the kubelet plugin's, may", peer.Uid, uid)
	}
	return nil
}

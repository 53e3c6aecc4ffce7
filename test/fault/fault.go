// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// What Injector.Before may return, besides an error that the operation then returns without being done.
var (
	// ErrKill ends the process with SIGKILL before the operation.
	ErrKill = errors.New("kill the process")
	// ErrTear does half of a write, then ends the process. Before any other operation it is ErrKill.
	ErrTear = errors.New("kill the process in the middle of a write")
	// ErrShort does half of a write, which then fails for want of space. Any other operation fails at once.
	ErrShort = fmt.Errorf("cut short: %w", syscall.ENOSPC)
	// ErrLie returns success without doing anything.
	ErrLie = errors.New("lie about a sync")
)

// Action is what a Fault does.
type Action string

// The actions.
const (
	ActKill  Action = "kill"
	ActTear  Action = "tear"
	ActFail  Action = "fail"
	ActShort Action = "short"
	ActLie   Action = "lie"
	ActLose  Action = "lose"
	ActDelay Action = "delay"
	ActFull  Action = "full"
	ActRO    Action = "readonly"
)

// Fault is one thing that goes wrong, as data, so that a child process can be given it. The functions below make them.
type Fault struct {
	// Do is what happens.
	Do Action `json:"do"`
	// At is the number of the operation; Read says that it counts reads, Sync that it counts syncs.
	At   int  `json:"at,omitempty"`
	Read bool `json:"read,omitempty"`
	Sync bool `json:"sync,omitempty"`
	// Site, instead of At, is a call site as in Op.Site: it happens at each sync from there.
	Site string `json:"site,omitempty"`
	// Errno is what the operation returns.
	Errno syscall.Errno `json:"errno,omitempty"`
	// For is how long ActDelay takes.
	For time.Duration `json:"for,omitempty"`
}

// Kill ends the process before the n-th operation that is not a read.
func Kill(n int) Fault { return Fault{Do: ActKill, At: n} }

// Tear ends the process in the n-th operation, after half of it, if it is a write, and before it otherwise.
func Tear(n int) Fault { return Fault{Do: ActTear, At: n} }

// Fail makes the n-th operation fail without being done.
func Fail(n int, errno syscall.Errno) Fault { return Fault{Do: ActFail, At: n, Errno: errno} }

// FailRead makes the n-th read fail.
func FailRead(n int, errno syscall.Errno) Fault {
	return Fault{Do: ActFail, At: n, Read: true, Errno: errno}
}

// Short makes the n-th operation, if it is a write, write half and fail with ENOSPC, and fail at once otherwise.
func Short(n int) Fault { return Fault{Do: ActShort, At: n} }

// Lose does the n-th operation and returns an error all the same, as where an API server's answer is lost.
func Lose(n int, errno syscall.Errno) Fault { return Fault{Do: ActLose, At: n, Errno: errno} }

// Delay makes the n-th operation wait first; a call not longer than its context lives.
func Delay(n int, d time.Duration) Fault { return Fault{Do: ActDelay, At: n, For: d} }

// Full is a full disk from the n-th operation on: nothing is made or written, but removed, moved and synced. A first write is cut
// short.
func Full(n int) Fault { return Fault{Do: ActFull, At: n, Errno: syscall.ENOSPC} }

// ReadOnly is a disk that became read-only at the n-th operation.
func ReadOnly(n int) Fault { return Fault{Do: ActRO, At: n, Errno: syscall.EROFS} }

// DropSync makes the n-th sync a lie: it returns nil and nothing is durable.
func DropSync(n int) Fault { return Fault{Do: ActLie, At: n, Sync: true} }

// DropSyncAt makes every sync from a call site a lie; Syncs lists the sites of a run.
func DropSyncAt(site string) Fault { return Fault{Do: ActLie, Site: site} }

// at says whether the fault is meant for this very operation.
func (f Fault) at(op Op) bool {
	switch {
	case f.Site != "":
		return op.Kind.Sync() && op.Site == f.Site
	case f.Sync:
		return op.Sync == f.At
	}
	return op.N == f.At && op.Kind.Read() == f.Read
}

// before is what the fault does to an operation, one of the errors above or what it returns instead. Changes is how many there
// were, which tells a read whether a fault that stays has begun.
func (f Fault) before(op Op, changes int) error {
	if f.Do == ActFull {
		return f.full(op)
	}
	if f.Do == ActRO {
		return f.readOnly(op, changes)
	}
	if !f.at(op) {
		return nil
	}
	switch f.Do {
	case ActKill:
		return ErrKill
	case ActTear:
		return ErrTear
	case ActShort:
		return ErrShort
	case ActLie:
		return ErrLie
	case ActFail:
		return f.Errno
	default:
		return nil // a delay has no verdict, and a loss comes after
	}
}

func (f Fault) readOnly(op Op, changes int) error {
	opens := op.Kind == Open && op.Flag&(os.O_WRONLY|os.O_RDWR) != 0 && changes+1 >= f.At
	if opens || op.onDisk() && !op.Kind.Read() && op.N >= f.At {
		return f.Errno
	}
	return nil
}

func (f Fault) full(op Op) error {
	switch {
	case op.N < f.At:
		return nil
	case op.Kind == Write && op.N == f.At:
		return ErrShort
	case slices.Contains([]Kind{Create, Write, Mkdir, Symlink}, op.Kind):
		return f.Errno
	}
	return nil
}

// onDisk says whether it touches a file system.
func (o *Op) onDisk() bool { return o.Kind != Call && o.Kind != Effect }

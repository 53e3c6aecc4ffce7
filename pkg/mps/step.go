// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/step"
)

const (
	// DefaultWait leaves a step the time to fail within the 45 seconds that kubelet waits.
	DefaultWait = 15 * time.Second
	// pause is that between two questions whether a daemon is ready.
	pause = 50 * time.Millisecond
)

// ErrNoMemory says that a daemon does not have the directories that its claim's containers have.
var ErrNoMemory = errors.New("does not have the directories that the plugin mounted for its claim: the pod of fettle-mps on this node is " +
	"of an earlier version, or mounts of the node do not reach it: when no claim with MPS is left on the node, delete it")

// Runner has daemons run for claims.
type Runner struct {
	Client Client
	// Memory is the directory of the claims' mounts, HostMemoryDir.
	Memory *hostmount.Dir
	// Wait limits how long Apply waits for a daemon to be ready, and Undo for it to be gone. Default DefaultWait.
	Wait time.Duration
}

// Kinds returns the step kind. The mounts are no step of their own: a kind that the version before does not know would keep it from ending
// the claim.
func (r Runner) Kinds() step.Kinds {
	return step.Kinds{StepKind: {Apply: step.Do(r.Ensure), Undo: step.Do(r.undo), Needs: needs}}
}

// mount makes the directories of a claim. It keeps those that exist.
func (r Runner) mount(id string) error {
	for _, name := range Directories() {
		if err := r.Memory.MountMemory(path.Join(id, name), hostmount.Memory{Free: directoryBytes, NoExec: true}); err != nil {
			return err
		}
	}
	// The server of a client that is not root must reach its pipes.
	return os.Chmod(r.Memory.Path(id), 0o711)
}

// undo ends a daemon, and then removes the claim's mounts, whatever the parameters say: the record may be lost.
func (r Runner) undo(ctx context.Context, p *Params) error {
	if err := r.stop(ctx, p.ID); err != nil {
		return err
	}
	for _, name := range Directories() {
		if err := r.Memory.Detach(path.Join(p.ID, name)); err != nil {
			return err
		}
	}
	return nil
}

// Ensure makes the mounts of a claim, has its daemon run, and waits until that is ready. A daemon that is not ready in time goes on
// starting, so a later call finds it further. The error is ErrNotReady then.
func (r Runner) Ensure(ctx context.Context, p *Params) error {
	if p.Memory {
		if err := r.mount(p.ID); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Wait, DefaultWait))
	defer cancel()
	var last Status
	for {
		status, err := r.Client.Run(ctx, &p.Daemon)
		switch {
		case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
			last.ID = p.ID
			return fmt.Errorf("%w: %w", notReady(last), err) // the time ended during the question
		case err != nil:
			return err
		case p.Memory && !status.Memory:
			return fmt.Errorf("MPS daemon %s %w", p.ID, ErrNoMemory)
		case status.State == Ready:
			return nil
		}
		last = status
		select {
		case <-ctx.Done():
			return notReady(last)
		case <-time.After(pause):
		}
	}
}

func notReady(s Status) error {
	err := fmt.Errorf("MPS daemon %s %w (%s, started again %d times)", s.ID, ErrNotReady, cmp.Or(s.State, Starting), s.Restarts)
	if s.Reason != "" {
		err = fmt.Errorf("%w: %s", err, s.Reason)
	}
	return err
}

func (r Runner) stop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Wait, DefaultWait))
	defer cancel()
	return r.Client.Stop(ctx, id)
}

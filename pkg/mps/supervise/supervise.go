// SPDX-License-Identifier: Apache-2.0

// Package supervise runs the control daemons of NVIDIA's MPS that package mps asks for: it starts them, gives them their limits, starts
// again those that die, and ends those that are not wanted any more. What it shall run is on disk, so the next supervisor runs the same.
package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/mps"
)

// Config configures a Supervisor. Durations that are 0 get defaults.
type Config struct {
	// Root is the driver root as this process sees it. The daemons have it as their root directory.
	Root string
	// Dir is the supervisor's own directory, with the socket and the list.
	Dir string
	// BootID is the host's. Daemons of an earlier boot are not run again: the plugin asks for those that are still wanted.
	BootID string
	// FS is where the list is kept.
	FS disk.FS
	// ReadyIn limits how long a daemon may take to answer after its start: NVIDIA's library initialises every GPU first.
	ReadyIn time.Duration
	// Grace is how long a daemon may take to end after it was asked to, and again after it was killed.
	Grace time.Duration
	// Check is the time between two looks at a daemon that is ready.
	Check time.Duration
	// Relabel gives a directory an SELinux context. Default: as extended attribute.
	Relabel func(path, context string) error `json:"-"`
	// Pause is the time before a daemon that died is started again. It doubles with each death, up to a minute.
	Pause time.Duration
}

const (
	defaultReadyIn = time.Minute
	defaultGrace   = 5 * time.Second
	defaultCheck   = 10 * time.Second
	defaultPause   = time.Second
	maxPause       = time.Minute
)

// ErrRunning says that another supervisor runs on the node.
var ErrRunning = errors.New("another MPS supervisor runs on this node")

// Supervisor runs daemons. It is a mps.Supervisor.
type Supervisor struct {
	config Config
	list   list
	lock   *os.File
	// ctx ends with Close.
	ctx    context.Context //nolint:containedctx // the daemons live as long as the supervisor, not as the call that starts them
	cancel context.CancelFunc

	mu      sync.Mutex
	daemons map[string]*daemon
	running sync.WaitGroup
}

// Open makes the only supervisor of the directory. The caller then listens, and calls Start.
func Open(ctx context.Context, c Config) (*Supervisor, error) {
	c.ReadyIn, c.Grace = cmp.Or(c.ReadyIn, defaultReadyIn), cmp.Or(c.Grace, defaultGrace)
	c.Check, c.Pause = cmp.Or(c.Check, defaultCheck), cmp.Or(c.Pause, defaultPause)
	if c.Relabel == nil {
		c.Relabel = relabel
	}
	s := &Supervisor{
		config: c, list: list{fs: c.FS, dir: filepath.Join(c.Dir, mps.ListName), bootID: c.BootID}, daemons: map[string]*daemon{},
	}
	if err := s.list.makeDir(); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(c.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the supervisor's directory: %w", err)
	}
	if ok, err := filelock.TryFlock(lock, filelock.Exclusive); err != nil || !ok {
		return nil, errors.Join(cmp.Or(err, ErrRunning), lock.Close())
	}
	s.lock = lock
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// Start starts the daemons of the list, and removes the directories of all others.
func (s *Supervisor) Start() error {
	wanted, err := s.list.load()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wanted {
		s.start(&wanted[i])
	}
	entries, err := os.ReadDir(s.claimsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for directories that daemons left: %w", err)
	}
	var faults []error
	for _, e := range entries {
		if s.daemons[e.Name()] == nil {
			faults = append(faults, s.config.remove(s.ctx, e.Name()))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("remove directories that daemons left: %w", err)
	}
	return nil
}

func (s *Supervisor) claimsDir() string { return filepath.Join(s.config.Root, mps.ClaimsDir) }

// start starts a daemon. The caller holds the lock.
func (s *Supervisor) start(wanted *mps.Daemon) *daemon {
	ctx, cancel := context.WithCancel(klog.NewContext(s.ctx, klog.FromContext(s.ctx).WithValues("daemon", wanted.ID)))
	d := &daemon{
		Daemon: *wanted, config: &s.config, base: s.config.base(wanted.ID), cancel: cancel, ended: make(chan struct{}),
		status: mps.Status{ID: wanted.ID, State: mps.Starting, Devices: wanted.Devices},
	}
	d.status.Memory = d.base == mps.MemoryDir
	s.daemons[wanted.ID] = d
	s.running.Go(func() { d.run(ctx) })
	return d
}

var errClosed = errors.New("the MPS supervisor is ending: retried")

// Run has a daemon run. It is on disk before it is started.
func (s *Supervisor) Run(wanted mps.Daemon) (mps.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return mps.Status{}, errClosed
	}
	d := s.daemons[wanted.ID]
	if d == nil {
		if err := s.list.add(&wanted); err != nil {
			return mps.Status{}, err
		}
		d = s.start(&wanted)
	}
	if !d.Same(&wanted) {
		return mps.Status{}, fmt.Errorf("MPS daemon %s %w", wanted.ID, mps.ErrConflict)
	}
	return d.look(), nil
}

// Stop ends a daemon. It leaves the list first, so that a supervisor that is killed meanwhile is followed by one without it.
func (s *Supervisor) Stop(ctx context.Context, id string) error {
	s.mu.Lock()
	d := s.daemons[id]
	err := s.list.remove(id)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if d != nil {
		d.stop()
		select {
		case <-d.ended:
		case <-ctx.Done():
			return fmt.Errorf("wait for MPS daemon %s to end: %w", id, context.Cause(ctx))
		}
		if err := d.left(); err != nil {
			return err
		}
		if err := d.remove(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemons[id] != d {
		return nil // another Stop was first, and it runs again
	}
	delete(s.daemons, id)
	if d != nil {
		return nil
	}
	return s.config.remove(ctx, id)
}

// List returns the status of all daemons.
func (s *Supervisor) List() []mps.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]mps.Status, 0, len(s.daemons))
	for _, d := range s.daemons {
		out = append(out, d.look())
	}
	slices.SortFunc(out, func(a, b mps.Status) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Memory reports whether the process has the directory in which the plugin mounts those of daemons.
func (s *Supervisor) Memory() bool {
	info, err := os.Stat(filepath.Join(s.config.Root, mps.MemoryDir))
	return err == nil && info.IsDir()
}

// Close ends all daemons, which stay on the list.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.running.Wait()
	return s.lock.Close()
}

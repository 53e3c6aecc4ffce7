// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stateDisk is below the run's directory: a small file system on which the plugin has its state, and others what fills it.
const stateDisk = "disk"

// fill leaves no bytes, no inodes, or none of both where the plugin has its state.
func (r *run) fill(ctx context.Context, f fault) error {
	r.calm()
	filler := filepath.Join(r.dir, stateDisk, "filler")
	if err := os.Mkdir(filler, 0o700); err != nil {
		return err
	}
	kinds := []func(string) error{fillInodes, fillBytes}
	switch f.choice % 3 {
	case 0:
		kinds = kinds[:1]
	case 1:
		kinds = kinds[1:]
	}
	for _, do := range kinds {
		if err := do(filler); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("the disk does not get full: %w", err)
		}
	}
	r.later(ctx, f.length, func() error {
		r.trace.note("there is space again")
		return os.RemoveAll(filler)
	})
	return nil
}

// fillBytes writes until there is no space.
func fillBytes(dir string) error {
	f, err := os.Create(filepath.Join(dir, "bytes"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, size := range []int{1 << 16, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	return err
}

// fillInodes makes files until there can be no more.
func fillInodes(dir string) error {
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			return err
		}
	}
}

// needsSpace is a violation where a claim could not be given back because a disk is full.
func (r *run) needsSpace(t *tenancy, text string) {
	if strings.Contains(text, syscall.ENOSPC.Error()) {
		r.report(violation{leaked, t.name, "giving it back needs space: " + text})
	}
}

// unload takes the GPUs' driver away for a while, whoever uses them. Their nodes stay in /dev, as those that nvidia-modprobe made do.
func (r *run) unload(ctx context.Context, f fault) error {
	r.calm()
	away := filepath.Join(r.dir, "away")
	bound, err := fs.Glob(os.DirFS(r.root), "sys/devices/*/*/driver")
	if err != nil {
		return err
	}
	var moved []string
	move := func(from, to, name string) error {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755); err != nil {
			return err
		}
		return os.Rename(filepath.Join(from, name), filepath.Join(to, name))
	}
	for _, name := range append(bound, "sys/bus/pci/drivers/nvidia", "proc/driver/nvidia", "sys/module/nvidia") {
		if err := move(r.root, away, name); err != nil {
			return err
		}
		moved = append(moved, name)
	}
	r.later(ctx, f.length, func() error {
		r.trace.note("the driver is back")
		for i := len(moved) - 1; i >= 0; i-- {
			if err := move(away, r.root, moved[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// rename lets two directories have each other's name while a claim each holds them. Neither claim may be given the other's directory, and
// what one gives back is its own.
func (r *run) rename(ctx context.Context, f fault) error {
	const firstRename = 950_000_000
	r.calm()
	one, other, ok := r.reserveDirs(ctx, f.choice)
	if !ok {
		return ctx.Err()
	}
	r.visits++
	p := pod{claims: []want{{dirs: 1}, {dirs: 1}}, rounds: 1, patience: callLimit, attempts: -1}
	claims := tenancies(firstRename+r.visits, 0, p, [][]deviceID{{one}, {other}})
	if _, err := r.admit(ctx, claims, nil); err != nil {
		return err
	}
	if err := r.kubelet.add(claims); err != nil {
		return err
	}
	if r.prepare(ctx, p, claims) {
		if err := r.exchanged(ctx, f, claims); err != nil {
			return err
		}
	}
	r.unprepare(ctx, claims)
	for _, t := range claims {
		r.ledger.end(t)
		r.unprepares.Add(1)
		r.operations.Add(1)
	}
	return errors.Join(r.kubelet.forget(claims), r.release(ctx, claims, true))
}

// reserveDirs takes two free directories that are no file systems of their own.
func (r *run) reserveDirs(ctx context.Context, choice uint64) (one, other deviceID, ok bool) {
	var got []deviceID
	err := r.eventually(ctx, soon/10, "two directories are free", func() bool { // fragile: where they never are, the fault is left out
		r.goOn()
		for i := 0; i < dirCount-slowCount && len(got) < 2; i++ {
			id := r.slowID(dirName(slowCount + (int(choice%64)+i)%(dirCount-slowCount)))
			if r.scheduler.reserve(id) {
				got = append(got, id)
			}
		}
		return len(got) == 2
	})
	if err != nil {
		r.scheduler.give(got, false)
		return one, other, false
	}
	return got[0], got[1], true
}

// exchanged is the time in which the directories of two claims have each other's name.
func (r *run) exchanged(ctx context.Context, f fault, claims []*tenancy) error {
	paths := []string{filepath.Join(r.root, claims[0].grants[0].hardware.dir), filepath.Join(r.root, claims[1].grants[0].hardware.dir)}
	swap := func() error {
		return unix.Renameat2(unix.AT_FDCWD, paths[0], unix.AT_FDCWD, paths[1], unix.RENAME_EXCHANGE)
	}
	if err := swap(); err != nil {
		return err
	}
	if f.early {
		if err := r.kill(ctx, f); err != nil {
			return errors.Join(err, swap())
		}
	}
	r.goOn()
	wait(ctx, f.length)
	for i, t := range claims {
		// Whoever is asked again may not answer that all is well.
		if r.ask(ctx, callLimit, claims[i:i+1]) {
			r.report(violation{doublyUsed, t.name, "was prepared again while its directory had the other's name"})
		}
	}
	if f.choice%2 == 0 {
		r.askBack(ctx, claims[:1])
		if _, err := os.Stat(filepath.Join(paths[0], "tenant-"+claims[1].name)); err != nil {
			r.report(violation{lost, claims[1].name, fmt.Sprintf("its file went with the other's claim: %v", err)})
		}
	}
	return swap()
}

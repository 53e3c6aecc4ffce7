// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// slack is by how many operations the pods may be ahead of the faults.
	slack = 40
	// soon is the deadline of what the plugin does in its own time.
	soon = 30 * time.Second
)

// wreck does the plan's faults, each when so many operations are done.
func (r *run) wreck(ctx context.Context) error {
	boots := 0
	for _, f := range r.plan.faults {
		if f.kind == faultReboot {
			boots++
		}
	}
	for _, f := range r.plan.faults {
		r.horizon.Store(int64(f.at) + r.offset + slack)
		for r.operations.Load() < int64(f.at)+r.offset {
			if !wait(ctx, time.Millisecond) {
				return ctx.Err()
			}
		}
		r.trace.note("fault: %s", f.kind)
		if f.kind == faultReboot {
			boots--
		}
		if err := r.do(ctx, f, boots == 0); err != nil {
			return fmt.Errorf("%s: %w", f.kind, err)
		}
		r.done[f.kind]++
	}
	r.horizon.Store(math.MaxInt64)
	r.calm()
	return nil
}

// do does one fault. last is for the last reboot, after which the machine's numbers are those of the first boot.
func (r *run) do(ctx context.Context, f fault, last bool) error {
	switch f.kind {
	case faultKill:
		return r.kill(ctx, f)
	case faultReboot:
		return r.reboot(ctx, f, last)
	case faultPause:
		return r.pause(ctx, f)
	case faultHang:
		return r.hang(ctx, f)
	case faultStop:
		return r.stop(ctx, f)
	case faultRestart:
		r.generation.Add(1)
		return r.api.withdraw(ctx)
	case faultRoll:
		r.fleet.add(ctx)
		return nil
	case faultRolled:
		return r.rolled(ctx)
	case faultWipe:
		return r.wipe(ctx)
	case faultFill:
		return r.fill(ctx, f)
	case faultUnload:
		return r.unload(ctx, f)
	case faultRename:
		return r.rename(ctx, f)
	case faultLook:
		return r.look(ctx)
	}
	return fmt.Errorf("unknown fault %q", f.kind)
}

// victim waits for a plugin to do something to: one that was called, or with early any process.
func (r *run) victim(ctx context.Context, f fault, early bool) (*instance, error) {
	deadline := time.Now().Add(retryLimit)
	for ctx.Err() == nil {
		members := r.fleet.members()
		for n := range members {
			i := members[(int(f.choice%64)+n)%len(members)]
			if i.busy(early) {
				return i, nil
			}
		}
		r.goOn()
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no plugin serves within %s, see its log in %s", retryLimit, r.dir)
		}
		wait(ctx, time.Millisecond)
	}
	return nil, ctx.Err()
}

// goOn lets the pods go on while a fault waits for what they do.
func (r *run) goOn() { r.horizon.Store(r.operations.Load() + slack) }

func (r *run) kill(ctx context.Context, f fault) error {
	const startUp = 10 // an early kill meets the plugin anywhere in its start, which takes longer than a call
	for ctx.Err() == nil {
		i, err := r.victim(ctx, f, f.early)
		if err != nil {
			return err
		}
		if f.early {
			wait(ctx, startUp*f.wait)
		} else {
			wait(ctx, f.wait)
		}
		if i.signal(syscall.SIGKILL) {
			return nil
		}
	}
	return ctx.Err()
}

// calm waits until what lasts a while is over.
func (r *run) calm() { r.lasting.Wait() }

// later ends what lasts a while after its time, or when the test ends.
func (r *run) later(ctx context.Context, d time.Duration, end func() error) {
	r.lasting.Go(func() {
		wait(ctx, d)
		r.fail(end())
	})
}

// reboot switches the node off at once and on again. Everything on a tmpfs is gone; what is on disks stays.
func (r *run) reboot(ctx context.Context, f fault, last bool) error {
	r.calm()
	r.fleet.shutDown()
	r.gate.Lock()
	defer r.gate.Unlock()
	var err error
	if f.early {
		err = os.RemoveAll(r.cdi)
	} else {
		err = empty(r.cdi)
	}
	if err != nil {
		return err
	}
	numbers := firstNumbering()
	if !last {
		numbers = otherNumbering(rand.New(rand.NewPCG(f.choice, 0)))
	}
	if err := r.boot(numbers); err != nil {
		return err
	}
	r.ledger.rebooted(r.hardware)
	r.generation.Add(1)
	r.fleet.startUp()
	return r.api.withdraw(ctx)
}

// boot writes the host tree as it is after a boot.
func (r *run) boot(n numbering) error {
	r.boots++
	if err := boot(r.root, n, fmt.Sprintf("00000000-0000-4000-9000-%012d", r.boots)); err != nil {
		return err
	}
	host, err := readHost(r.root)
	if err != nil {
		return err
	}
	r.nodes, r.devices, r.hardware = host.nodes, n.hardware(), map[string]hardware{}
	for _, hw := range r.devices {
		r.hardware[hw.key] = hw
	}
	return nil
}

// empty removes what is in a directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// pause stops the API server for a while.
func (r *run) pause(ctx context.Context, f fault) error {
	pid, err := child("kube-apiserver")
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	r.later(ctx, f.length, func() error {
		r.trace.note("the API server goes on")
		return syscall.Kill(pid, syscall.SIGCONT)
	})
	return nil
}

// child finds a process of this test by its name, see proc_pid_stat(5).
func child(name string) (int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		before, after, _ := strings.Cut(string(data), ") ")
		first, command, _ := strings.Cut(before, " (")
		fields := strings.Fields(after)
		if command == name && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			return strconv.Atoi(first)
		}
	}
	return 0, fmt.Errorf("no child process is called %s", name)
}

// stop stops a plugin for a while, as a node that is out of memory or CPU time does.
func (r *run) stop(ctx context.Context, f fault) error {
	i, err := r.victim(ctx, f, false)
	if err != nil {
		return err
	}
	i.signal(syscall.SIGSTOP)
	r.later(ctx, f.length, func() error {
		i.resume()
		return nil
	})
	return nil
}

// rolled ends the older of two plugins once the newer serves.
func (r *run) rolled(ctx context.Context) error {
	members := r.fleet.members()
	if len(members) < 2 {
		return errors.New("there are no two plugins")
	}
	r.calm()
	if err := r.eventually(ctx, retryLimit, "the newer plugin serves", func() bool {
		r.goOn()
		return members[1].busy(false)
	}); err != nil {
		return err
	}
	members[0].leave()
	begin := time.Now()
	select {
	case <-members[0].ended:
	case <-ctx.Done():
	case <-time.After(soon):
		r.report(violation{heldUp, members[0].uid, fmt.Sprintf("did not end within %s after it was told to", soon)})
		members[0].force()
	}
	r.trace.note("plugin %s left after %s", members[0].uid, time.Since(begin).Round(time.Millisecond))
	return nil
}

// wipe empties the CDI directory. kubelet does not ask again, so the plugin must see to it.
func (r *run) wipe(ctx context.Context) error {
	r.calm()
	r.gate.Lock()
	defer r.gate.Unlock()
	if err := empty(r.cdi); err != nil {
		return err
	}
	return r.checkUntil(ctx, checkHeld)
}

// look checks everything at a moment at which kubelet asks for nothing.
func (r *run) look(ctx context.Context) error {
	r.calm()
	r.gate.Lock()
	defer r.gate.Unlock()
	o, err := r.observe()
	if err != nil {
		return err
	}
	r.report(checkHeld(o)...)
	altered, err := r.api.altered(ctx, o.holders)
	if err != nil {
		return err
	}
	r.report(altered...)
	return r.checkUntil(ctx, checkSettled)
}

// checkUntil repeats a check until it finds nothing, and reports what it finds after the deadline.
func (r *run) checkUntil(ctx context.Context, check func(observation) []violation) error {
	for deadline := time.Now().Add(soon); ; {
		o, err := r.observe()
		if err != nil {
			return err
		}
		found := check(o)
		if len(found) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			r.report(found...)
			return nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// observe looks at everything. The gate is held.
func (r *run) observe() (observation, error) {
	o := observation{holders: r.ledger.holders(), hardware: r.devices, vacant: r.vacant}
	var err error
	if o.specs, err = r.readSpecs(); err != nil {
		return o, err
	}
	o.host, err = readHost(r.root)
	return o, err
}

// hang freezes a disk for a while, with a pod of its own that wants it, so that the plugin feels it for certain.
func (r *run) hang(ctx context.Context, f fault) error {
	const firstVisit = 900_000_000
	r.calm()
	var disk *slowDisk
	var id deviceID
	// fragile: if all disks are in use for longer, nothing fails: the plugin feels it when that pod ends, or not at all.
	reserved := r.eventually(ctx, soon/10, "a disk is free", func() bool {
		r.goOn()
		for i := range slowCount {
			n := (int(f.choice%slowCount) + i) % slowCount
			if disk, id = r.slow[n], r.slowID(dirName(n)); r.scheduler.reserve(id) {
				return true
			}
		}
		return false
	}) == nil
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := disk.freeze(); err != nil {
		return err
	}
	window := &hangWindow{device: id}
	if !f.early {
		r.window.Store(window)
		defer r.window.Store(nil)
	}
	if reserved {
		r.visits++
		number := firstVisit + r.visits
		r.lasting.Go(func() { r.fail(r.visit(ctx, number, id)) })
	}
	if f.early {
		r.later(ctx, f.length, disk.thaw)
		return nil
	}
	return errors.Join(r.others(ctx, f, window), disk.thaw())
}

// visit is a pod that wants one device and leaves at once.
func (r *run) visit(ctx context.Context, number int, id deviceID) error {
	p := pod{claims: []want{{dirs: 1}}, rounds: 1, patience: callLimit, attempts: -1}
	claims := tenancies(number, 0, p, [][]deviceID{{id}})
	if _, err := r.admit(ctx, claims, nil); err != nil {
		return err
	}
	return r.use(ctx, p, claims, rand.New(rand.NewPCG(1, uint64(number))), true)
}

// others wants claims on other devices to be served while one does not answer, if the plugin was asked for that one.
func (r *run) others(ctx context.Context, f fault, window *hangWindow) error {
	if _, err := r.victim(ctx, f, false); err != nil {
		return err
	}
	r.goOn()
	wait(ctx, f.length)
	// A machine with much else to do may need longer.
	err := r.eventually(ctx, soon, "claims on other devices are served", func() bool {
		r.goOn()
		return window.felt.Load() == nil || window.served.Load() > 0
	})
	served := window.served.Load()
	r.trace.note("the disk goes on; %d calls for other devices were served", served)
	r.served += served
	if err != nil && ctx.Err() == nil {
		text := fmt.Sprintf("while it did not answer, no claim on another device was served for %s", soon)
		r.report(violation{heldUp, window.device.String(), text})
	}
	return nil
}

// hangWindow is the time in which a device does not answer.
type hangWindow struct {
	device deviceID
	// felt is when the plugin was first asked for the device; nil before.
	felt atomic.Pointer[time.Time]
	// served counts the calls for other devices that began and were answered some time after that.
	served atomic.Int64
}

// among says whether a claim has the device that does not answer. A look does nothing to it.
func (w *hangWindow) among(claims []*tenancy) bool {
	return slices.ContainsFunc(claims, func(t *tenancy) bool { return !t.want.look && slices.Contains(ids(t), w.device) })
}

// asking takes note of calls for a device that does not answer.
func (r *run) asking(claims []*tenancy) {
	if w := r.window.Load(); w != nil && w.among(claims) {
		now := time.Now()
		w.felt.CompareAndSwap(nil, &now)
	}
}

// answered counts calls that were served for other devices while the plugin must be stuck in one.
func (r *run) answered(begin time.Time, claims []*tenancy) {
	const stuck = 500 * time.Millisecond
	w := r.window.Load()
	if w == nil || w.among(claims) {
		return
	}
	if felt := w.felt.Load(); felt != nil && begin.After(felt.Add(stuck)) {
		w.served.Add(1)
	}
}

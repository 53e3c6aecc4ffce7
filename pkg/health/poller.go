// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Target is a device to be read.
type Target struct {
	// Name is the device's, Address its PCI function's.
	Name, Address string
}

// Polled is what was read of one device.
type Polled struct {
	Target
	Reports  []Report
	Instance string
	// Err says that something could not be read. What could is there.
	Err error
}

// Poller reads the counters of the kernel. A device whose counters cannot be had without waiting holds up nobody, and is not asked
// again while it hangs.
type Poller struct {
	// Root is the host tree; it is opened anew each time, since a driver container may mount over it.
	Root string
	// Disabled are sources that are not read.
	Disabled []string
	// Patience is how long a poll waits for a device.
	Patience time.Duration

	// reader replaces read in tests.
	reader func(Target) Polled

	mu   sync.Mutex
	busy map[string]bool
}

// errBusy is about a device that an earlier poll still waits for.
var errBusy = errors.New("reading the counters has not returned yet")

// Poll reads all targets side by side and returns one result each, in their order, after Patience at the latest.
func (p *Poller) Poll(targets []Target) []Polled {
	results := make(chan Polled, len(targets))
	read := p.read
	if p.reader != nil {
		read = p.reader
	}
	started := map[string]bool{}
	for _, target := range targets {
		if !p.begin(target.Name) {
			continue
		}
		started[target.Name] = true
		go func() {
			one := read(target)
			p.end(target.Name) // first: whoever has the result may ask again
			results <- one
		}()
	}
	done := map[string]Polled{}
	patience := time.NewTimer(p.Patience)
	defer patience.Stop()
wait:
	for range started {
		select {
		case one := <-results:
			done[one.Name] = one
		case <-patience.C:
			break wait
		}
	}
	out := make([]Polled, 0, len(targets))
	for _, target := range targets {
		one, ok := done[target.Name]
		if !ok {
			one = Polled{Target: target, Err: fmt.Errorf("%s of %s: %w", SourceAER+" and "+SourceRAS, target.Address, errBusy)}
		}
		out = append(out, one)
	}
	return out
}

func (p *Poller) begin(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[name] {
		return false
	}
	if p.busy == nil {
		p.busy = map[string]bool{}
	}
	p.busy[name] = true
	return true
}

func (p *Poller) end(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, name)
}

func (p *Poller) read(target Target) Polled {
	one := Polled{Target: target}
	tree, err := sysfs.Open(p.Root)
	if err != nil {
		one.Err = err
		return one
	}
	defer tree.Close()
	one.Instance, one.Err = Instance(tree, target.Address)
	for _, source := range []struct {
		name string
		read func(*sysfs.Tree, string) ([]Reading, error)
	}{{SourceAER, AER}, {SourceRAS, RAS}} {
		if slices.Contains(p.Disabled, source.name) {
			continue
		}
		readings, err := source.read(tree, target.Address)
		one.Err = errors.Join(one.Err, err)
		if len(readings) > 0 {
			one.Reports = append(one.Reports, Report{Device: target.Name, Source: source.name, Readings: readings})
		}
	}
	return one
}

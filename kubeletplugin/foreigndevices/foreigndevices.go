// SPDX-License-Identifier: Apache-2.0

// Package foreigndevices leaves devices of the node to other drivers, as the plugin's configuration says.
//
//	Review  takes them out of the snapshot, before any feature sees them
//	Run     follows the node's labels, by which entries select nodes
//	Check   refuses new claims with a device that a claim still holds
package foreigndevices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/record"
)

// ErrForeign refuses claims with devices that are left to another driver.
var ErrForeign = errors.New("is left to another driver: delete the pod, so that it gets another device")

// Reason returns the stable reason of an error of this package, and "" for any other.
func (f *Feature) Reason(err error) (reason string, permanent bool) {
	if errors.Is(err, ErrForeign) {
		return foreign.ReasonForeign, true
	}
	return "", false
}

// Config has the settings and functions of a Feature.
type Config struct {
	// Node is the name of the Node object.
	Node    string
	Entries []foreign.Entry
	// Interval is how often the node's labels are looked at, if an entry selects nodes.
	Interval time.Duration
	// ReadNode returns the Node, for reading only.
	ReadNode func(context.Context) (*corev1.Node, error)
	Records  *record.Store
	// PartsHeld returns the names of what claims hold of a GPU, itself included.
	PartsHeld func(p *discover.Physical) []string
	// Absent returns the GPUs that the machine does not show while claims hold something of them, as for a virtual machine.
	Absent func(s *inventory.Snapshot) []discover.Physical
	// Recheck is sent after the labels changed.
	Recheck notify.Signal
}

// Feature leaves devices to other drivers.
type Feature struct {
	Config
	// finder and said belong to Review, which runs in one goroutine. said is what the log has of each device.
	finder foreign.Finder
	said   map[string]string
	// known closes once the labels were read, or could not be for too long.
	known     chan struct{}
	closeOnce sync.Once

	mu sync.Mutex
	// labels are the node's. Nil: not known yet.
	labels map[string]string
}

var _ inventory.Reviewer = (*Feature)(nil)

// New returns the feature.
func New(c Config) *Feature {
	f := &Feature{Config: c, finder: foreign.Finder{Entries: c.Entries}, said: map[string]string{}, known: make(chan struct{})}
	if !foreign.NeedsLabels(c.Entries) {
		f.labels = map[string]string{}
		f.setKnown()
	}
	return f
}

func (f *Feature) setKnown() { f.closeOnce.Do(func() { close(f.known) }) }

const (
	// patience is how long the first Review waits for the node's labels. Then every entry counts, so that no device has two owners.
	patience = 30 * time.Second
	// longestRetry is how long a try waits at most after others that failed.
	longestRetry = 30 * time.Second
)

// Run follows the node's labels until ctx ends, if an entry selects nodes by them.
func (f *Feature) Run(ctx context.Context) {
	if !foreign.NeedsLabels(f.Entries) {
		return
	}
	giveUp := time.AfterFunc(patience, f.setKnown)
	defer giveUp.Stop()
	failing := retry.New(longestRetry)
	for {
		pause := f.Interval
		if node, err := f.ReadNode(ctx); err != nil {
			pause = failing.Next()
			klog.FromContext(ctx).V(2).Info("Cannot read the node's labels, by which devices are left to other drivers", "reason", err)
		} else {
			failing.Reset()
			f.take(node.Labels)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// take notes the node's labels.
func (f *Feature) take(labels map[string]string) {
	f.mu.Lock()
	changed := f.labels == nil || !maps.Equal(f.labels, labels)
	if f.labels = maps.Clone(labels); f.labels == nil {
		f.labels = map[string]string{}
	}
	f.mu.Unlock()
	f.setKnown()
	if changed {
		f.Recheck.Send()
	}
}

// Review takes the devices of other drivers out of the snapshot. What claims hold of them stays.
func (f *Feature) Review(ctx context.Context, s *inventory.Snapshot) {
	if len(f.Entries) == 0 {
		return
	}
	select {
	case <-f.known:
	case <-ctx.Done():
		return
	}
	f.mu.Lock()
	labels := f.labels
	f.mu.Unlock()
	absent := f.Absent(s)
	found := f.finder.Find(ctx, discover.Inventory{
		Devices: s.Devices, Physical: slices.Concat(s.Physical, absent), Problems: s.Problems,
	}, labels)
	s.Foreign = map[string]inventory.Foreign{}
	problems := found.Problems
	for i := range found.Devices {
		problems = append(problems, f.leave(s, &found.Devices[i], absent))
	}
	s.Devices = slices.DeleteFunc(s.Devices, func(d device.Device) bool {
		of, ok := s.ForeignOf(&d)
		return ok && !of.Held
	})
	s.Problems = append(s.Problems, problems...)
	f.log(ctx, problems)
}

// leave marks a device as another driver's, and returns what the node says of it. Other problems of the device are that driver's.
func (f *Feature) leave(s *inventory.Snapshot, d *foreign.Device, absent []discover.Physical) discover.Problem {
	problem := d.Problem()
	held, holders := f.holders(s, d, absent)
	if !held {
		s.Problems = slices.DeleteFunc(s.Problems, func(p discover.Problem) bool { return p.Subject == d.Subject })
	} else {
		problem.Message += fmt.Sprintf(". It is held by %s until its pod ends, and no other claim gets it: end the pod before %s has the device",
			strings.Join(holders, ", "), d.Owner)
	}
	if d.Name != "" {
		s.Foreign[d.Name] = inventory.Foreign{Kind: d.Kind, Vendor: d.Vendor, Owner: d.Owner, Held: held}
	}
	return problem
}

// holders says whether a claim holds a device or a part of it, and which.
func (f *Feature) holders(s *inventory.Snapshot, d *foreign.Device, absent []discover.Physical) (held bool, claims []string) {
	if d.Name == "" {
		return false, nil
	}
	pool, names := device.PoolName(f.Node, d.Kind), []string{d.Name}
	for _, physical := range [][]discover.Physical{s.Physical, absent} {
		i := slices.IndexFunc(physical, func(p discover.Physical) bool { return p.Device.Kind == d.Kind && p.Device.Name == d.Name })
		if i >= 0 {
			parts := f.PartsHeld(&physical[i])
			held, names = held || len(parts) > 0, append(names, parts...)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		uids, err := f.Records.Holders(pool, name)
		held = held || err != nil || len(uids) > 0
		for _, uid := range uids {
			claims = append(claims, f.nameOf(uid))
		}
	}
	if held && len(claims) == 0 {
		claims = []string{"a claim whose record cannot be read"}
	}
	slices.Sort(claims)
	return held, slices.Compact(claims)
}

func (f *Feature) nameOf(uid string) string {
	r, err := f.Records.Load(uid)
	if err != nil || r == nil {
		return "the claim with UID " + uid
	}
	return "claim " + r.Namespace + "/" + r.Name
}

// log says once what is left to whom, and what is not there.
func (f *Feature) log(ctx context.Context, problems []discover.Problem) {
	next := map[string]string{}
	for _, p := range problems {
		next[p.Subject] = p.Message
		if f.said[p.Subject] != p.Message {
			klog.FromContext(ctx).Info("Device of another driver", "device", p.Subject, "reason", p.Reason, "message", p.Message)
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(f.said)) {
		if _, still := next[subject]; !still {
			klog.FromContext(ctx).Info("Device is no longer left to another driver", "device", subject)
		}
	}
	f.said = next
}

// Check refuses a device that is left to another driver. A claim that has it already is not asked.
func (f *Feature) Check(s *inventory.Snapshot, r *claim.Result) error {
	if s == nil {
		return nil
	}
	of, ok := s.Foreign[r.Device]
	if d, known := s.Find(r.Kind, r.Device); known {
		of, ok = s.ForeignOf(&d)
	}
	if ok && of.Kind == r.Kind {
		return fmt.Errorf("device %s/%s %w (%s)", r.Pool, r.Device, ErrForeign, of.Owner)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package foreigndevices_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/foreigndevices"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

const (
	gpu0, address0 = "nvidia-0000-18-00-0", "0000:18:00.0"
	gpu1           = "nvidia-0000-19-00-0"
)

// node is a machine with eight GPUs of which some are left to others.
type node struct {
	t       *testing.T
	records *record.Store
	feature *foreigndevices.Feature
	scanner *inventory.Scanner
	holder  *inventory.Holder
	// labels are the Node's; nil: it cannot be read. mu: the feature reads it while a test goes on.
	mu     sync.Mutex
	labels map[string]string
}

func newNode(t *testing.T, entries ...foreign.Entry) *node {
	t.Helper()
	n := &node{t: t, holder: inventory.NewHolder()}
	var err error
	n.records, err = record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	n.feature = foreigndevices.New(foreigndevices.Config{
		Node: nodefixture.Node, Entries: entries, Interval: time.Minute, Records: n.records, Recheck: notify.New(),
		PartsHeld: func(*discover.Physical) []string { return nil },
		Absent:    func(*inventory.Snapshot) []discover.Physical { return nil },
		ReadNode: func(context.Context) (*corev1.Node, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.labels == nil {
				return nil, errors.New("no route to host")
			}
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.labels}}, nil
		},
	})
	file := nodeconfig.File{}.WithDefaults()
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"})
	n.scanner = inventory.NewScanner(inventory.Config{
		Node: nodefixture.Node, HostRoot: nodefixture.Expand(t, "8xh100-sxm"), File: &file, Holder: n.holder, Rescan: notify.New(),
		Review: notify.New(), Reviewers: []inventory.Reviewer{n.feature},
		Recovering:    func() map[[2]string]string { return nil },
		HeldByDeleted: func() map[[2]string]*record.Record { return nil },
		Metrics:       inventory.NewMetrics(prometheus.NewRegistry(), failures, prometheus.DefBuckets),
	})
	return n
}

// see scans the machine.
func (n *node) see() *inventory.Snapshot {
	n.t.Helper()
	n.scanner.Scan(n.t.Context())
	s, _ := n.holder.Get()
	if s == nil {
		n.t.Fatal("no snapshot")
	}
	return s
}

// hold has a claim have a device.
func (n *node) hold(uid, name string) *record.Record {
	n.t.Helper()
	r := &record.Record{
		UID: uid, Namespace: "team-a", Name: "train", BootID: "boot", Phase: record.Prepared,
		Devices: []record.Device{{Request: "r", Pool: device.PoolName(nodefixture.Node, device.KindGPU), Name: name}},
	}
	check.Must(n.t, n.records.Create(r))
	check.Must(n.t, n.records.Acquire(r))
	return r
}

func published(s *inventory.Snapshot) (names []string) {
	for _, d := range s.Published(device.KindGPU) {
		names = append(names, d.Name)
	}
	return names
}

func problemOf(s *inventory.Snapshot, subject string) (found discover.Problem) {
	for _, p := range s.Problems {
		if p.Subject == subject {
			found = p
		}
	}
	return found
}

func gpuZero() foreign.Entry {
	return foreign.Entry{Owner: "NVIDIA device plugin", PCIAddresses: []string{address0}}
}

// TestLeftDevice: a device that is left is not there for anything of Fettle, and the node says whose it is. The others stay.
func TestLeftDevice(t *testing.T) {
	n := newNode(t, gpuZero())
	s := n.see()
	if names := published(s); len(names) != 7 || slices.Contains(names, gpu0) {
		t.Errorf("published %v", names)
	}
	if _, there := s.Find(device.KindGPU, gpu0); there {
		t.Error("features see the GPU")
	}
	if slices.ContainsFunc(s.Hardware(), func(d device.Device) bool { return d.Name == gpu0 }) {
		t.Error("the GPU is watched")
	}
	if p := problemOf(s, address0); p.Reason != "LeftToAnotherDriver" || !strings.Contains(p.Message, "NVIDIA device plugin") ||
		!strings.Contains(p.Message, "foreignDevices[0]") {
		t.Errorf("problem %+v", p)
	}
}

// TestHeldAndLeft: a claim that has the device keeps it, no other gets it, and once the claim ended the device is gone.
func TestHeldAndLeft(t *testing.T) {
	n := newNode(t, gpuZero())
	r := n.hold("u1", gpu0)
	s := n.see()
	if _, there := s.Find(device.KindGPU, gpu0); !there || s.Withheld[gpu0] == "" || slices.Contains(published(s), gpu0) {
		t.Errorf("found %v, withheld %q", there, s.Withheld[gpu0])
	}
	if p := problemOf(s, address0); !strings.Contains(p.Message, "held by claim team-a/train until its pod ends") {
		t.Errorf("problem %+v", p)
	}
	err := n.feature.Check(s, &claim.Result{Kind: device.KindGPU, Pool: "p", Device: gpu0})
	if reason, permanent := n.feature.Reason(err); reason != "LeftToAnotherDriver" || !permanent {
		t.Errorf("%v has reason %q, permanent %v", err, reason, permanent)
	}
	check.Must(t, n.feature.Check(s, &claim.Result{Kind: device.KindGPU, Pool: "p", Device: gpu1}))

	check.Must(t, n.records.Advance(r, record.Change{Phase: record.Releasing}))
	check.Must(t, n.records.Release(r, record.Change{}))
	if _, there := n.see().Find(device.KindGPU, gpu0); there {
		t.Error("the GPU stays after its claim ended")
	}
}

// TestNotThere: what the configuration names and the machine lacks is said, and harms nothing.
func TestNotThere(t *testing.T) {
	n := newNode(t, foreign.Entry{Owner: "other", PCIAddresses: []string{"0000:ff:00.0"}})
	s := n.see()
	if len(published(s)) != 8 {
		t.Errorf("published %v", published(s))
	}
	p := problemOf(s, "0000:ff:00.0")
	if p.Reason != "ForeignDeviceNotFound" || !strings.Contains(p.Message, "foreignDevices[0].pciAddresses[0]") {
		t.Errorf("problem %+v", p)
	}
}

// TestNodeSelector: an entry counts on the nodes that it selects, follows the labels, and counts everywhere while they cannot be read.
func TestNodeSelector(t *testing.T) {
	entry := gpuZero()
	entry.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "mixed"}}
	n := newNode(t, entry)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n.scanner.Reviewers = nil // the bubble's own
		done := make(chan struct{})
		feature := foreigndevices.New(foreigndevices.Config{
			Node: nodefixture.Node, Entries: n.feature.Entries, Interval: time.Minute, Records: n.records, Recheck: notify.New(),
			PartsHeld: n.feature.PartsHeld, Absent: n.feature.Absent, ReadNode: n.feature.ReadNode,
		})
		go func() { feature.Run(ctx); close(done) }()
		devices := n.see().Devices
		left := func() bool {
			s := &inventory.Snapshot{Devices: slices.Clone(devices), Withheld: map[string]string{}}
			feature.Review(ctx, s)
			return len(s.Devices) == 7
		}
		if !left() {
			t.Error("published while the labels are not known")
		}
		for _, step := range []struct {
			labels map[string]string
			want   bool
		}{
			{map[string]string{"pool": "gpus"}, false}, {map[string]string{"pool": "mixed"}, true}, {nil, true}, {map[string]string{}, false},
		} {
			n.mu.Lock()
			n.labels = step.labels
			n.mu.Unlock()
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if got := left(); got != step.want {
				t.Errorf("labels %v: left %v, want %v", step.labels, got, step.want)
			}
		}
		cancel()
		<-done
	})
}

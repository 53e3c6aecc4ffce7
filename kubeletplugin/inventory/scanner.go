// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Reviewer withholds the devices that must not be allocated now, and adds attributes that the scan cannot find. A feature that keeps state
// of its devices is one.
type Reviewer interface {
	Review(ctx context.Context, s *Snapshot)
}

// Config has the settings and dependencies of a Scanner.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree.
	Node, HostRoot string
	File           *nodeconfig.File
	// Query queries NVML. Nil: NVML is disabled.
	Query func(context.Context) (nvml.Report, error)
	// Reviewers run in this order.
	Reviewers []Reviewer
	// Recovering returns the devices, by pool and name, whose claim an earlier process left unfinished, with that claim's UID.
	Recovering func() map[[2]string]string
	// HeldByDeleted returns the devices, by pool and name, that a claim holds which was deleted, with that claim's record.
	HeldByDeleted func() map[[2]string]*record.Record
	Holder        *Holder
	// Rescan signals that the hardware may have changed, Requery that NVML's last answer is out of date as well, and Review that a claim was
	// released, so that a device may be free.
	Rescan, Requery, Review notify.Signal
	Metrics                 *Metrics
}

// Scanner makes snapshots of the host tree. Only its own goroutine uses it, but for Again.
type Scanner struct {
	Config

	// queried has the devices that the kernel showed when NVML last answered, and report is its answer. The library initialises every GPU of
	// a node without persistence mode, so it is queried only if the kernel shows other devices. queried is nil if the report is incomplete, or
	// says that a GPU is on its way into its fabric.
	queried []device.Device
	report  *nvml.Report
	// whole are the GPUs that are not in MIG mode by the last answer of NVML. They stay whole while it does not answer.
	whole map[pci.Address]bool
	// locked reads what a driver may show late.
	locked *sysfs.Reads
	// scanned is the last scan before reviews. Nil before the first.
	scanned *Snapshot

	mu sync.Mutex
	// begun counts scans. done is the last one that ended well, and ended closes with the next.
	begun, done int
	ended       chan struct{}
}

// NewScanner makes a scanner. It scans nothing before Run.
func NewScanner(c Config) *Scanner {
	const limit = 5 * time.Second // a switch of the mode takes less
	return &Scanner{Config: c, locked: sysfs.NewReads(clock.RealClock{}, limit), ended: make(chan struct{})}
}

// Again asks for a scan, and waits until the holder has what was found by one that began after the call. Any goroutine may call it.
func (s *Scanner) Again(ctx context.Context) error {
	s.mu.Lock()
	wanted := s.begun + 1
	s.mu.Unlock()
	for {
		s.mu.Lock()
		done, ended := s.done, s.ended
		s.mu.Unlock()
		if done >= wanted {
			return nil
		}
		s.Rescan.Send()
		select {
		case <-ctx.Done():
			return fmt.Errorf("scan the machine again: %w", ctx.Err())
		case <-ended:
		}
	}
}

// begin counts a scan, and end notes that one has ended well.
func (s *Scanner) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	return s.begun
}

func (s *Scanner) end(scan int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = scan
	close(s.ended)
	s.ended = make(chan struct{})
}

// Run scans at once, then on every value of events and at least once per configured interval, until ctx ends. A value of events stands for
// a burst of kernel events, see WatchUevents; the channel is nil if there are none to be had.
func (s *Scanner) Run(ctx context.Context, events <-chan struct{}) {
	ticker := time.NewTicker(s.File.DiscoveryInterval.Duration)
	defer ticker.Stop()
	s.Scan(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.Scan(ctx)
		case <-events:
			s.Scan(ctx)
		case <-s.Rescan:
			s.Scan(ctx)
		case <-s.Requery:
			s.report, s.queried = nil, nil
			s.Scan(ctx)
		case <-s.Review:
			s.reviewSoon(ctx)
		}
	}
}

// Scan scans the machine once. Only one goroutine may do so at a time.
func (s *Scanner) Scan(ctx context.Context) {
	start, scan := time.Now(), s.begin()
	found, err := s.scanHost(ctx)
	if ctx.Err() != nil {
		return // the process ends: devices that were not scanned are not gone
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Scanning the machine failed; the last snapshot stays")
		s.Metrics.Errors.WithLabelValues("discovery").Inc()
		return
	}
	s.Metrics.discovery.Observe(time.Since(start).Seconds())
	s.scanned = found
	s.review(ctx)
	s.end(scan)
}

// reviewSoon reviews once for all claims that are released within a moment. Most of their cleanup ends within that time.
func (s *Scanner) reviewSoon(ctx context.Context) {
	const pause = 200 * time.Millisecond
	select {
	case <-ctx.Done():
	case <-time.After(pause):
		s.review(ctx)
	}
}

// review decides which of the devices that were found may be allocated now.
func (s *Scanner) review(ctx context.Context) {
	if s.scanned == nil {
		return // the first scan reviews
	}
	next := &Snapshot{
		Devices: slices.Clone(s.scanned.Devices), Problems: slices.Clone(s.scanned.Problems), Withheld: maps.Clone(s.scanned.Withheld),
		Physical: s.scanned.Physical, BindLate: s.File.BindLate(),
	}
	for _, r := range s.Reviewers {
		r.Review(ctx, next)
	}
	next.withholdForeign()
	s.withholdRecovering(next)
	s.markDeleted(next)
	if s.Holder.Set(next) {
		klog.FromContext(ctx).Info("Hardware changed",
			"devices", len(next.Devices), "withheld", len(next.Withheld), "problems", len(next.Problems))
	}
	whole, _ := s.Holder.Get()
	s.Metrics.observe(whole)
}

// scanHost runs discovery without NVML, and again with its report. It queries NVML only if the kernel shows other devices than before, or
// something could not be answered the last time.
func (s *Scanner) scanHost(ctx context.Context) (*Snapshot, error) {
	// The tree is opened again each time: a driver container may mount over it.
	tree, err := sysfs.Open(s.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host tree %s: %w", s.HostRoot, err)
	}
	defer tree.Close()
	opts := discover.Options{
		HostDevices: s.File.HostDevices, FPGARegions: s.File.FPGARegions, PublishUnlinked: s.File.NVML.PublishUnlinked,
		RenderNodes: s.File.NVML.RenderNodes, Locked: s.locked,
	}
	inventory := discover.Discover(ctx, tree, opts)
	if s.Query != nil && !reflect.DeepEqual(s.queried, inventory.Devices) {
		s.report, s.queried = nil, nil
	}
	if s.Query != nil {
		kernel := inventory.Devices
		opts.NVML, opts.Whole = s.cachedQuery, s.whole
		inventory = discover.Discover(ctx, tree, opts)
		if s.report != nil && len(s.report.Faults) == 0 && len(s.report.Devices) > 0 && s.report.Settled() {
			s.queried = kernel
		}
	}
	v := &Snapshot{
		Devices: inventory.Devices, Physical: inventory.Physical, Problems: inventory.Problems, Withheld: map[string]string{},
	}
	withholdUnusable(v)
	return v, nil
}

// withholdUnusable withholds devices with invalid CDI edits, so that they do not block the others.
func withholdUnusable(v *Snapshot) {
	for i := range v.Devices {
		d := &v.Devices[i]
		if err := cdi.Check(d.Edits); err != nil {
			v.Withhold(d.Name, d.Name, discover.ReasonInvalid, err)
		}
	}
}

func (s *Scanner) cachedQuery(ctx context.Context) (nvml.Report, error) {
	if s.report != nil {
		return *s.report, nil
	}
	report, err := s.Query(ctx)
	if err != nil {
		return nvml.Report{}, err
	}
	s.report, s.whole = &report, report.Whole()
	return report, nil
}

// withholdRecovering withholds the devices of claims that an earlier process left unfinished.
func (s *Scanner) withholdRecovering(v *Snapshot) {
	held := s.Recovering()
	for i := range v.Devices {
		d := &v.Devices[i]
		if uid, ok := held[[2]string{device.PoolName(s.Node, d.Kind), d.Name}]; ok {
			v.Withheld[d.Name] = "is being recovered: a Prepare or Unprepare of claim " + uid + " was interrupted"
			for _, other := range v.excluded(d) {
				v.Withheld[other] = "is the same part of its card as device " + d.Name + ", which is being recovered"
			}
		}
	}
}

// excluded lists the devices that are on the same card as a device and cannot be used beside it. The scheduler knows that only while a
// claim has the device allocated.
func (s *Snapshot) excluded(d *device.Device) []string {
	card, known := s.Card(d.Card)
	if !known {
		return nil
	}
	var names []string
	for j := range s.Devices {
		if other := &s.Devices[j]; other.Card == d.Card && other.Name != d.Name && partition.Excludes(card, *d, *other) {
			names = append(names, other.Name)
		}
	}
	return names
}

// markDeleted marks the devices that look free to the scheduler, because the claim that holds them was deleted.
func (s *Scanner) markDeleted(v *Snapshot) {
	held := s.HeldByDeleted()
	for i := range v.Devices {
		d := &v.Devices[i]
		r := held[[2]string{device.PoolName(s.Node, d.Kind), d.Name}]
		if r == nil {
			continue
		}
		if v.HeldByDeleted == nil {
			v.HeldByDeleted = map[string]bool{}
		}
		v.HeldByDeleted[d.Name] = true
		for _, other := range v.excluded(d) {
			v.HeldByDeleted[other] = true
		}
		v.Problems = append(v.Problems, discover.Problem{Subject: d.Name, Reason: ReasonClaimDeleted, Message: fmt.Sprintf(
			"device %s is held by claim %s/%s (UID %s), which was deleted while its pod runs: no other claim gets the device until that pod ends",
			d.Name, r.Namespace, r.Name, r.UID)})
	}
}

// Metrics has the metrics of a scanner.
type Metrics struct {
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors    *prometheus.CounterVec
	devices   *prometheus.GaugeVec
	withheld  *prometheus.GaugeVec
	problems  *prometheus.GaugeVec
	discovery prometheus.Histogram
}

// NewMetrics registers the metrics. The buckets are for the duration of a scan.
func NewMetrics(registry prometheus.Registerer, errors *prometheus.CounterVec, buckets []float64) *Metrics {
	m := &Metrics{
		Errors: errors,
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices", Help: "Devices found, parts of divided ones included, published or not, by kind.",
		}, []string{"kind"}),
		withheld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_withheld", Help: "Devices that are found and not published now, by kind.",
		}, []string{"kind"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_discovery_problems", Help: "Problems that discovery found on this machine, by reason.",
		}, []string{"reason"}),
		discovery: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_discovery_duration_seconds", Help: "Time of one scan of the machine.", Buckets: buckets,
		}),
	}
	registry.MustRegister(m.devices, m.withheld, m.problems, m.discovery)
	return m
}

func (m *Metrics) observe(s *Snapshot) {
	devices, withheld := map[device.Kind]int{}, map[device.Kind]int{}
	for _, d := range s.Devices {
		devices[d.Kind]++
		if _, held := s.Withheld[d.Name]; held {
			withheld[d.Kind]++
		}
	}
	for _, kind := range device.Kinds() {
		m.devices.WithLabelValues(string(kind)).Set(float64(devices[kind]))
		m.withheld.WithLabelValues(string(kind)).Set(float64(withheld[kind]))
	}
	m.problems.Reset()
	for _, p := range s.Problems {
		m.problems.WithLabelValues(p.Reason).Inc()
	}
}

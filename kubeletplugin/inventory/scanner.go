// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Reviewer says which of the devices that were found may be given out now, and adds what is known of them beside the look. A feature
// that keeps state of its devices is one.
type Reviewer interface {
	Review(ctx context.Context, s *Snapshot)
}

// Config is what a Scanner works with.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree.
	Node, HostRoot string
	File           *nodeconfig.File
	// Query asks NVML. Nil: it is switched off.
	Query func(context.Context) (nvml.Report, error)
	// Reviewers are asked in their order.
	Reviewers []Reviewer
	// Recovering are the devices, by pool and name, whose last claim an earlier process left halfway, with that claim's UID.
	Recovering func() map[[2]string]string
	Holder     *Holder
	// Rescan carries a value when the machine may look otherwise, Review when a claim gave something back, so that a device may be free.
	Rescan, Review notify.Signal
	Metrics        *Metrics
}

// Scanner turns the host tree into snapshots. Only its own goroutine uses it.
type Scanner struct {
	Config

	// asked is what the kernel told of GPUs when NVML last answered, and report its answer. The library initialises every GPU of
	// a node without persistence mode, so it is asked only when the kernel's story changed.
	asked  []device.Device
	report *nvml.Report
	// found is what the last look found, without what claims make of it. Nil before the first.
	found *Snapshot
}

// NewScanner makes a scanner, which looks at nothing before Run.
func NewScanner(c Config) *Scanner { return &Scanner{Config: c} }

// Run looks at once, then on every value of events and at the latest after the configured interval, until ctx ends. Events are a burst
// of kernel events each, see WatchUevents; the channel is nil where the kernel does not tell.
func (s *Scanner) Run(ctx context.Context, events <-chan struct{}) {
	ticker := time.NewTicker(s.File.DiscoveryInterval.Duration)
	defer ticker.Stop()
	s.Look(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.Look(ctx)
		case <-events:
			s.Look(ctx)
		case <-s.Rescan:
			s.Look(ctx)
		case <-s.Review:
			s.reviewSoon(ctx)
		}
	}
}

// Look looks at the machine once. Only one goroutine may do so at a time.
func (s *Scanner) Look(ctx context.Context) {
	start := time.Now()
	found, err := s.machine(ctx)
	if ctx.Err() != nil {
		return // the process ends: what was not looked at is not gone
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking at the machine failed; the last view stays")
		s.Metrics.Errors.WithLabelValues("discovery").Inc()
		return
	}
	s.Metrics.discovery.Observe(time.Since(start).Seconds())
	s.found = found
	s.review(ctx)
}

// reviewSoon reviews once for all that is given back within a moment: what a claim leaves is mostly gone when it is answered.
func (s *Scanner) reviewSoon(ctx context.Context) {
	const pause = 200 * time.Millisecond
	select {
	case <-ctx.Done():
	case <-time.After(pause):
		s.review(ctx)
	}
}

// review decides which of the devices that were found may be given out now.
func (s *Scanner) review(ctx context.Context) {
	if s.found == nil {
		return // the next look does
	}
	next := &Snapshot{
		Devices: slices.Clone(s.found.Devices), Problems: slices.Clone(s.found.Problems), Withheld: maps.Clone(s.found.Withheld),
		BindLate: s.File.BindLate(),
	}
	for _, r := range s.Reviewers {
		r.Review(ctx, next)
	}
	s.withholdRecovering(next)
	if s.Holder.Set(next) {
		klog.FromContext(ctx).Info("Hardware changed",
			"devices", len(next.Devices), "withheld", len(next.Withheld), "problems", len(next.Problems))
	}
	whole, _ := s.Holder.Get()
	s.Metrics.observe(whole)
}

// machine looks twice at most: first without NVML, and again with its report where the kernel's story is new.
func (s *Scanner) machine(ctx context.Context) (*Snapshot, error) {
	// The tree is opened anew each time: a driver container may mount over it.
	tree, err := sysfs.Open(s.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host tree %s: %w", s.HostRoot, err)
	}
	defer tree.Close()
	opts := discover.Options{HostDevices: s.File.HostDevices, FPGARegions: s.File.FPGARegions}
	inventory := discover.Discover(ctx, tree, opts)
	if s.Query != nil && !reflect.DeepEqual(s.asked, inventory.Devices) {
		s.report, s.asked = nil, nil
	}
	if s.Query != nil {
		kernel := inventory.Devices
		opts.NVML = s.cachedQuery
		inventory = discover.Discover(ctx, tree, opts)
		if s.report != nil {
			s.asked = kernel
		}
	}
	v := &Snapshot{Devices: inventory.Devices, Problems: inventory.Problems, Withheld: map[string]string{}}
	withholdUnusable(v)
	return v, nil
}

// withholdUnusable keeps back what no container could be given, so that it does not keep the others back.
func withholdUnusable(v *Snapshot) {
	for i := range v.Devices {
		d := &v.Devices[i]
		if _, err := cdi.Common(d.Edits); err != nil {
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
	s.report = &report
	return report, nil
}

// withholdRecovering keeps back what is not undone yet of claims that an earlier process left halfway.
func (s *Scanner) withholdRecovering(v *Snapshot) {
	held := s.Recovering()
	for i := range v.Devices {
		d := &v.Devices[i]
		if uid, ok := held[[2]string{PoolName(s.Node, d.Kind), d.Name}]; ok {
			v.Withheld[d.Name] = "is being recovered: a Prepare or Unprepare of claim " + uid + " was interrupted"
		}
	}
}

// Metrics are what a scanner exports.
type Metrics struct {
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors    *prometheus.CounterVec
	devices   *prometheus.GaugeVec
	withheld  *prometheus.GaugeVec
	problems  *prometheus.GaugeVec
	discovery prometheus.Histogram
}

// NewMetrics registers the metrics. The buckets are those of a look's time.
func NewMetrics(registry prometheus.Registerer, errors *prometheus.CounterVec, buckets []float64) *Metrics {
	m := &Metrics{
		Errors: errors,
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices", Help: "Devices found and whole, published or not, by kind.",
		}, []string{"kind"}),
		withheld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_withheld", Help: "Whole devices that are not published now, by kind.",
		}, []string{"kind"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_discovery_problems", Help: "What discovery found wrong with this machine, by reason.",
		}, []string{"reason"}),
		discovery: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_discovery_duration_seconds", Help: "Time of one look at the machine.", Buckets: buckets,
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

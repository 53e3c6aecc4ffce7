// SPDX-License-Identifier: Apache-2.0

// Package status reports the state of claims and of the node: Events for people, conditions and AcceleratorNode for machines.
//
//	ClaimWriter   Events and status.devices of a claim
//	NodeEvents    Events of the node
//	Reporter      the node's AcceleratorNode
package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/podresources"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// reportInterval is how often the state is looked at when nothing changes on the node. That asks the API server for nothing.
	reportInterval = 15 * time.Second
	// reportPause merges a burst of claims into one write.
	reportPause = time.Second
	// A change that says nothing but which kernel caches the node has is written when nothing more came for fetchedPause, and up to as long
	// again, so that not all nodes write at the same moment; or after four times that. Many may come at once, on all nodes, and a rollout
	// goes on when they are told. While such writes follow each other within fetchedRest, the pause doubles up to fetchedLongest.
	fetchedPause   = 5 * time.Second
	fetchedLongest = 10 * time.Second
	fetchedRest    = 2 * time.Minute
	// longestRetry is how long a report waits that failed again and again: all nodes may fail at once, by a wrong admission policy.
	longestRetry = time.Minute
	// goneFor is how long a retired node's AcceleratorNode has to be gone until the plugin makes it again. An uninstall deletes it last, and
	// Helm then ends the plugin. A plugin that still runs after this time is one whose uninstall did not come to its end.
	goneFor = 2 * time.Minute
)

// ReporterConfig has the services and functions that a Reporter uses.
type ReporterConfig struct {
	// Node is the name of the Node object, Version the build's own. BootID and PodUID are of the kernel and of the plugin's pod.
	Node, Version, BootID, PodUID string
	// BootTime is when the kernel started, by its own clock; zero: not known.
	BootTime time.Time
	// ReadSlices returns what the API server has of the node, of all drivers, for reading only. SlicesNow asks it.
	ReadSlices, SlicesNow func(context.Context) ([]resourceapi.ResourceSlice, error)
	Dynamic               dynamic.Interface
	Holder                *inventory.Holder
	Retirement            *retirement.State
	// Quiesce says how far drivers are let go of. Nil: none is.
	Quiesce *quiesce.State
	Records *record.Store
	// Changed is sent after prepared claims or the node's files changed.
	Changed notify.Signal
	// Bitstreams returns the digests of the files in the node's store, sorted. Presets and KernelCaches return what claims use, by their
	// records.
	Bitstreams   func() ([]string, error)
	Presets      func(claims []*record.Record) []v1alpha1.NodePreset
	KernelCaches func(gpus []device.Device, claims []*record.Record) []v1alpha1.NodeCache
	// UpToDate reports whether slices contain exactly what a snapshot publishes. Published is called each time they do, before Ready is
	// called.
	UpToDate  func(node string, s *inventory.Snapshot, slices []resourceapi.ResourceSlice) bool
	Published func()
	Ready     func() error
	// Empty removes the plugin's files on a node without claims. It returns false if a claim was prepared meanwhile.
	Empty func(ctx context.Context) (bool, error)
	// Containers returns the containers that have each device. Nil: metrics name no pods.
	Containers func(ctx context.Context) (map[podresources.Device][]podresources.Container, error)
	Registry   prometheus.Registerer
	// Errors counts errors outside of kubelet's calls, by source.
	Errors *prometheus.CounterVec
}

// Reporter keeps the node's AcceleratorNode current. It also notices when the slices in the API server are up to date.
type Reporter struct {
	ReporterConfig
	client   dynamic.ResourceInterface
	prepared prometheus.Gauge
	damaged  prometheus.Gauge
	// unconfined is what Landlock does not keep programs from.
	unconfined string
	// written is the last status that was written.
	written *v1alpha1.AcceleratorNodeStatus
	fetched fetched
	// lastHeld and lastUsed are what the store and the records said last. Nil: nothing yet.
	lastHeld []string
	lastUsed *claimed
	// gone is since when a retired node has had no AcceleratorNode. Zero: it has one.
	gone time.Time
}

// NewReporter returns a reporter.
func NewReporter(c ReporterConfig) *Reporter {
	r := &Reporter{
		ReporterConfig: c, client: c.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes")),
		prepared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_prepared_claims", Help: "Claims that hold a record on this node.",
		}),
		damaged: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_damaged_records", Help: "Claims whose record is unreadable. Their devices stay held until they are released.",
		}),
	}
	landlock := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fettle_landlock_version",
		Help: "Version of the kernel's Landlock, which keeps vendors' programs from files that they are not for. 0: it has none.",
	})
	version, err := confine.Landlock()
	landlock.Set(float64(version))
	r.unconfined = unconfined(version, err)
	c.Registry.MustRegister(r.prepared, r.damaged, landlock, newClaimInfo(r))
	return r
}

// Run reports after every change and at an interval until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	failing := retry.New(longestRetry)
	for {
		_, changed := r.Holder.Get()
		retired, quiesced := r.Retirement.Changed(), r.Quiesce.Changed()
		var pending <-chan time.Time
		ticks := ticker.C
		again, err := r.report(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("Cannot write the AcceleratorNode, will retry", "reason", err)
			r.Errors.WithLabelValues("report").Inc()
			pending, ticks = time.After(failing.Next()), nil
		case again > 0:
			pending = time.After(again)
		}
		if err == nil {
			failing.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		case <-changed:
		case <-retired:
		case <-quiesced:
		case <-pending:
		case <-r.Changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(reportPause):
			}
		}
	}
}

// report collects the state and writes the status if it changed. It returns after which time to do so again, 0 if nothing is left to wait
// for.
func (r *Reporter) report(ctx context.Context) (again time.Duration, err error) {
	v, _ := r.Holder.Get()
	if v == nil {
		return 0, nil
	}
	uids, err := r.Records.Claims()
	if err != nil {
		return 0, err
	}
	r.count(ctx, uids)
	retired := r.Retirement.On()
	own, err := r.ownSlices(ctx, retired && len(uids) == 0)
	if err != nil {
		return 0, err
	}
	emptied := false
	if retired && len(uids) == 0 && len(own) == 0 {
		if emptied, err = r.Empty(ctx); err != nil {
			return 0, err
		}
	}
	published := r.isPublished(v, own, retired)
	before := r.lastStatus(ctx)
	used := r.usage(ctx, uids, before, v)
	quiesced := r.quiesced(ctx, v, uids, published)
	status := nodeStatus(statusInput{
		node: r.Node, version: r.Version, bootID: r.BootID, podUID: r.PodUID, bootTime: r.BootTime,
		snapshot: v, slices: own, prepared: len(uids),
		ready: r.Ready(), published: published, retired: retired, emptied: emptied, before: before, now: time.Now(),
		bitstreams: r.bitstreams(ctx, before), presets: used.presets, kernelCaches: used.kernelCaches, held: used.held,
		quiesced: quiesced, unconfined: r.unconfined,
	})
	if !published || quiesced.Soon() {
		again = reportPause
	}
	if due, wait := r.due(status); !due {
		return cmp.Or(again, wait), nil
	}
	if err := r.write(ctx, status); err != nil {
		return 0, err
	}
	if r.gone.IsZero() {
		r.written, r.fetched = &status, r.fetched.told(time.Now())
	}
	return again, nil
}

// due says whether a status is to be written now. If it is to be later, wait is when.
func (r *Reporter) due(status v1alpha1.AcceleratorNodeStatus) (due bool, wait time.Duration) {
	switch {
	case r.written == nil:
		return true, 0
	case reflect.DeepEqual(*r.written, status):
		r.fetched.newest = nil
		return false, 0
	case !onlyFetched(*r.written, status):
		return true, 0
	}
	wait = r.fetched.wait(&status, time.Now())
	return wait <= 0, wait
}

// fetched is what the node has that is not written yet, and says nothing but which caches these are.
type fetched struct {
	// newest is what was seen last, since when first, at since when it is so, and spread how much longer it waits. Nil: all is written.
	newest    *v1alpha1.AcceleratorNodeStatus
	since, at time.Time
	spread    time.Duration
	// pause is the present one, 0 before the first. before is when such a change was written last.
	pause  time.Duration
	before time.Time
}

// wait notes a status, and returns when it is to be written.
func (f *fetched) wait(status *v1alpha1.AcceleratorNodeStatus, now time.Time) time.Duration {
	if f.newest == nil {
		if f.pause = min(2*f.pause, fetchedLongest); f.pause == 0 || now.Sub(f.before) > fetchedRest {
			f.pause = fetchedPause
		}
		f.since, f.spread = now, rand.N(f.pause) //nolint:gosec // nothing secret
	}
	if f.newest == nil || !reflect.DeepEqual(f.newest, status) {
		f.newest, f.at = status, now
	}
	return min(f.pause+f.spread-now.Sub(f.at), 4*f.pause-now.Sub(f.since))
}

// told returns what is left when everything is written.
func (f fetched) told(now time.Time) fetched {
	if f.newest != nil {
		f.before = now
	}
	f.newest = nil
	return f
}

// onlyFetched says whether two statuses differ in nothing but the kernel caches of the node.
func onlyFetched(a, b v1alpha1.AcceleratorNodeStatus) bool {
	for _, s := range []*v1alpha1.AcceleratorNodeStatus{&a, &b} {
		s.KernelCaches = nil
		rest := v1alpha1.NodeRest{}
		if s.Rest != nil {
			rest = *s.Rest
		}
		rest.KernelCaches, rest.KernelCacheCount, rest.FailedKernelCacheCount = "", 0, 0
		s.Rest = &rest
	}
	return reflect.DeepEqual(a, b)
}

// isPublished reports whether the API server has what the node is to publish, and has that known.
func (r *Reporter) isPublished(v *inventory.Snapshot, own []resourceapi.ResourceSlice, retired bool) bool {
	published := retired && len(own) == 0 || !retired && r.UpToDate(r.Node, v, own)
	if published {
		r.Published()
	}
	return published
}

// quiesced returns how far drivers are let go of. Records that cannot be read count as claims that hold devices.
func (r *Reporter) quiesced(ctx context.Context, v *inventory.Snapshot, uids []string, published bool) *quiesce.Report {
	if r.Quiesce.Idle() {
		return nil
	}
	records, err := r.records(uids)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot count the claims of drivers that are quiesced", "reason", err)
		records = nil
	}
	return r.Quiesce.Report(quiesce.Input{Snapshot: v, Published: published, Records: records, Damaged: len(uids) - len(records)})
}

// count sets the metrics of the records.
func (r *Reporter) count(ctx context.Context, uids []string) {
	r.prepared.Set(float64(len(uids)))
	damaged, err := r.Records.Damaged()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot count unreadable records", "reason", err)
		return
	}
	r.damaged.Set(float64(len(damaged)))
}

// lastStatus returns the last status, from the API server if this process has not written one yet. It is empty if there is none or it
// cannot be read; then all times start again.
func (r *Reporter) lastStatus(ctx context.Context) *v1alpha1.AcceleratorNodeStatus {
	if r.Retirement.TakeMissing() {
		r.written = nil
	}
	if r.written != nil {
		return r.written
	}
	var node v1alpha1.AcceleratorNode
	object, err := r.client.Get(ctx, r.Node, metav1.GetOptions{})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &node)
	}
	if err != nil {
		return &v1alpha1.AcceleratorNodeStatus{}
	}
	return &node.Status
}

// bitstreams returns the digests in the store, or the last ones if the store cannot be listed: a status may not list them all.
func (r *Reporter) bitstreams(ctx context.Context, before *v1alpha1.AcceleratorNodeStatus) []string {
	held, err := r.Bitstreams()
	if err == nil {
		r.lastHeld = held
		return held
	}
	klog.FromContext(ctx).V(2).Info("Cannot list the files in the node's store", "reason", err)
	if r.lastHeld != nil {
		return r.lastHeld
	}
	return before.Bitstreams
}

// claimed is what claims use of the node.
type claimed struct {
	presets      []v1alpha1.NodePreset
	kernelCaches []v1alpha1.NodeCache
	// held are the devices, as POOL/DEVICE. Nil: not known.
	held map[string]bool
}

// usage returns what claims use, or what they used last if the records cannot be read.
func (r *Reporter) usage(ctx context.Context, uids []string, before *v1alpha1.AcceleratorNodeStatus, v *inventory.Snapshot) claimed {
	records, err := r.records(uids)
	if err == nil {
		r.lastUsed = &claimed{presets: r.Presets(records), kernelCaches: r.KernelCaches(v.GPUs(), records), held: heldDevices(records)}
		return *r.lastUsed
	}
	klog.FromContext(ctx).V(2).Info("Cannot count the devices, presets and kernel caches of claims", "reason", err)
	if r.lastUsed != nil {
		return claimed{presets: r.lastUsed.presets, kernelCaches: r.lastUsed.kernelCaches}
	}
	return claimed{presets: before.Presets, kernelCaches: before.KernelCaches}
}

// ownSlices returns the plugin's own slices in the API server. Now asks it, since a node whose slices seem gone is emptied.
func (r *Reporter) ownSlices(ctx context.Context, now bool) ([]resourceapi.ResourceSlice, error) {
	read := r.ReadSlices
	if now {
		read = r.SlicesNow
	}
	all, err := read(ctx)
	return slices.DeleteFunc(all, func(s resourceapi.ResourceSlice) bool { return s.Spec.Driver != v1alpha1.DriverName }), err
}

// write applies the status and creates the object if it is missing. On a retired node it first waits for some time, since an uninstall
// deletes the object last, and then makes it again with the annotation that retired the node: whoever may take that back finds it there.
func (r *Reporter) write(ctx context.Context, status v1alpha1.AcceleratorNodeStatus) error {
	node := v1alpha1.AcceleratorNode{Status: status}
	node.APIVersion, node.Kind, node.Name = v1alpha1.GroupVersion.String(), "AcceleratorNode", r.Node
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&node)
	if err != nil {
		return fmt.Errorf("encode the AcceleratorNode: %w", err)
	}
	options := metav1.ApplyOptions{FieldManager: "fettle-kubeletplugin", Force: true}
	object := &unstructured.Unstructured{Object: content}
	_, err = r.client.ApplyStatus(ctx, node.Name, object, options)
	if err != nil && status.Rest != nil && strings.Contains(err.Error(), "status.rest") { // the schema is of a version before
		unstructured.RemoveNestedField(object.Object, "status", "rest")
		_, err = r.client.ApplyStatus(ctx, node.Name, object, options)
	}
	retired := r.Retirement.Value()
	if apierrors.IsNotFound(err) && retired != "" && r.recentlyGone() {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		r.gone = time.Time{}
		return wrap("write the status of AcceleratorNode "+node.Name, err)
	}
	bare := object.DeepCopy()
	delete(bare.Object, "status")
	if annotations := r.annotations(retired); len(annotations) > 0 {
		bare.SetAnnotations(annotations)
	}
	if _, err := r.client.Apply(ctx, node.Name, bare, options); err != nil {
		return fmt.Errorf("create AcceleratorNode %s: %w", node.Name, err)
	}
	r.gone = time.Time{}
	_, err = r.client.ApplyStatus(ctx, node.Name, object, options)
	return wrap("write the status of AcceleratorNode "+node.Name, err)
}

// annotations returns those that an object which was deleted had, as far as the plugin follows them. Without them a driver that is being
// changed would be used again.
func (r *Reporter) annotations(retired string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, r.Quiesce.Annotations())
	if retired != "" {
		out[retirement.Annotation] = retired
	}
	return out
}

// recentlyGone says whether the object, which is gone, is to stay so for now.
func (r *Reporter) recentlyGone() bool {
	if r.gone.IsZero() {
		r.gone = time.Now()
	}
	return time.Since(r.gone) < goneFor
}

func wrap(action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", action, err)
}

// records loads the records of claims and skips those that are missing or unreadable.
func (r *Reporter) records(uids []string) ([]*record.Record, error) {
	var out []*record.Record
	for _, uid := range uids {
		found, err := r.Records.Load(uid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, record.ErrDamaged) || errors.Is(err, record.ErrForeign) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, found)
	}
	return out, nil
}

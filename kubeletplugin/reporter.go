// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// reportInterval is how often slices are looked at where nothing changed here.
	reportInterval = 15 * time.Second
	// reportPause gathers a burst of claims into one write.
	reportPause = time.Second
)

// reporter keeps the node's AcceleratorNode. It is also what notices that the API server holds the slices as wanted.
type reporter struct {
	plugin *Plugin
	client dynamic.ResourceInterface
	// written is the last status that the API server took.
	written *v1alpha1.AcceleratorNodeStatus
}

func (p *Plugin) newReporter() *reporter {
	return &reporter{plugin: p, client: p.clients.Dynamic.Resource(acceleratorNodes())}
}

func (r *reporter) run(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for {
		_, changed := r.plugin.latest.get()
		retired := r.plugin.retired.wait()
		var pending <-chan time.Time
		done, err := r.report(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("The AcceleratorNode cannot be written now", "reason", err)
			r.plugin.metrics.backgroundErrors.WithLabelValues("report").Inc()
			pending = time.After(reportPause)
		case !done:
			pending = time.After(reportPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changed:
		case <-retired:
		case <-pending:
		case <-r.plugin.claims:
			select {
			case <-ctx.Done():
				return
			case <-time.After(reportPause):
			}
		}
	}
}

// report looks at everything and writes the status if it changed. It returns whether nothing is left to wait for.
func (r *reporter) report(ctx context.Context) (done bool, err error) {
	v, _ := r.plugin.latest.get()
	if v == nil {
		return true, nil
	}
	slices, err := r.ownSlices(ctx)
	if err != nil {
		return false, err
	}
	uids, err := r.plugin.claimsHeld()
	if err != nil {
		return false, err
	}
	r.plugin.metrics.prepared.Set(float64(len(uids)))
	retired := r.plugin.retired.is()
	emptied := false
	if retired && len(uids) == 0 && len(slices) == 0 {
		if emptied, err = r.plugin.removeFiles(ctx); err != nil {
			return false, err
		}
	}
	published := retired && len(slices) == 0 || !retired && asWanted(r.plugin.config.Node, v, slices)
	if published {
		r.plugin.setPublishError(nil)
		r.plugin.metrics.lastPublished.SetToCurrentTime()
	}
	before := r.before(ctx)
	presets, kernelCaches := r.added(ctx, uids, before, v)
	status := nodeStatus(statusInput{
		node: r.plugin.config.Node, version: r.plugin.config.Version, view: v, slices: slices, prepared: len(uids),
		ready: r.plugin.Ready(), published: published, retired: retired, emptied: emptied, before: before, now: time.Now(),
		bitstreams: r.bitstreams(ctx, before), presets: presets, kernelCaches: kernelCaches,
	})
	if r.written != nil && reflect.DeepEqual(*r.written, status) {
		return published, nil
	}
	if err := r.write(ctx, status); err != nil {
		return false, err
	}
	r.written = &status
	return published, nil
}

// before is the last status that was written, by an earlier process where this one has not written yet. Nil if there is none, or
// if it cannot be read: then times begin anew.
func (r *reporter) before(ctx context.Context) *v1alpha1.AcceleratorNodeStatus {
	if r.plugin.retired.takeMissing() {
		r.written = nil
	}
	if r.written != nil {
		return r.written
	}
	object, err := r.client.Get(ctx, r.plugin.config.Node, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	var node v1alpha1.AcceleratorNode
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &node); err != nil {
		return nil
	}
	return &node.Status
}

// bitstreams are what the store holds; where that cannot be told, what it held before.
func (r *reporter) bitstreams(ctx context.Context, before *v1alpha1.AcceleratorNodeStatus) []string {
	held, err := r.plugin.fpgas.artifacts.held()
	switch {
	case err == nil:
		return held
	case before == nil:
		before = &v1alpha1.AcceleratorNodeStatus{}
	}
	klog.FromContext(ctx).V(2).Info("The files of the node cannot be listed now", "reason", err)
	return before.Bitstreams
}

// added are the presets that the claims have something from, and the node's caches; where that cannot be told, what it was before.
func (r *reporter) added(
	ctx context.Context, uids []string, before *v1alpha1.AcceleratorNodeStatus, v *view,
) ([]v1alpha1.NodePreset, []v1alpha1.NodeCache) {
	all, err := r.plugin.addedTo(uids)
	switch {
	case err == nil:
		return countPresets(all.presets), r.plugin.cacheStatus(v, all.caches)
	case before == nil:
		before = &v1alpha1.AcceleratorNodeStatus{}
	}
	klog.FromContext(ctx).V(2).Info("What the node's claims have cannot be counted now", "reason", err)
	return before.Presets, before.KernelCaches
}

func (r *reporter) ownSlices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	selector := fields.Set{
		resourceapi.ResourceSliceSelectorDriver: v1alpha1.DriverName, resourceapi.ResourceSliceSelectorNodeName: r.plugin.config.Node,
	}
	list, err := r.plugin.clients.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("look at the node's ResourceSlices: %w", err)
	}
	return list.Items, nil
}

// write applies the object, so that it exists, and its status. A retired node does not make the object again: the uninstall
// deletes it last.
func (r *reporter) write(ctx context.Context, status v1alpha1.AcceleratorNodeStatus) error {
	node := v1alpha1.AcceleratorNode{Status: status}
	node.APIVersion, node.Kind, node.Name = v1alpha1.GroupVersion.String(), "AcceleratorNode", r.plugin.config.Node
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&node)
	if err != nil {
		return fmt.Errorf("encode the AcceleratorNode: %w", err)
	}
	options := metav1.ApplyOptions{FieldManager: "fettle-kubeletplugin", Force: true}
	object := &unstructured.Unstructured{Object: content}
	_, err = r.client.ApplyStatus(ctx, node.Name, object, options)
	if !apierrors.IsNotFound(err) || r.plugin.retired.is() {
		return wrap("write the status of AcceleratorNode "+node.Name, ignoreNotFound(err))
	}
	bare := object.DeepCopy()
	delete(bare.Object, "status")
	if _, err := r.client.Apply(ctx, node.Name, bare, options); err != nil {
		return fmt.Errorf("make AcceleratorNode %s: %w", node.Name, err)
	}
	_, err = r.client.ApplyStatus(ctx, node.Name, object, options)
	return wrap("write the status of AcceleratorNode "+node.Name, err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// claimsHeld are the claims that hold something on this node, those whose record is damaged too.
func (p *Plugin) claimsHeld() ([]string, error) {
	uids, err := p.store.UIDs()
	damaged, err2 := p.store.Damaged()
	uids = append(uids, damaged...)
	slices.Sort(uids)
	return slices.Compact(uids), errors.Join(err, err2)
}

// removeFiles removes what the plugin keeps on the node, and returns false where a claim was prepared meanwhile.
func (p *Plugin) removeFiles(ctx context.Context) (bool, error) {
	hold, err := p.store.LockAll(ctx)
	if err != nil {
		return false, err
	}
	defer hold.Release()
	uids, err := p.claimsHeld()
	if err != nil || len(uids) > 0 {
		return false, err
	}
	files, err := p.specs.dir.Unwanted(nil)
	err = errors.Join(err, p.specs.dir.Sweep(files), p.health.ledger.Destroy(), p.caches.Destroy(), p.fpgas.destroy(), p.hooks.destroy(),
		p.mounts.Destroy(), p.store.Destroy())
	return err == nil, err
}

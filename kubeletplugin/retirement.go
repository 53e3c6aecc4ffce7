// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// RetireAnnotation on a node's AcceleratorNode asks its plugin to stop publishing, refuse new claims, and remove its files once the
// last claim is gone. The uninstall hook sets it, and so may an admin.
const RetireAnnotation = v1alpha1.RetireAnnotation

// errRetired refuses claims on a node that is being emptied.
var errRetired = errors.New("is retired (annotation " + RetireAnnotation + " on its AcceleratorNode): " +
	"delete the pod so that it is scheduled elsewhere")

// retirement is whether this node was asked to retire.
type retirement struct {
	mu sync.Mutex
	on bool
	// missing: the AcceleratorNode is not there and must be made again.
	missing bool
	changed chan struct{}
}

func newRetirement() *retirement { return &retirement{changed: make(chan struct{})} }

func (r *retirement) is() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.on
}

// wait returns a channel that closes at the next change.
func (r *retirement) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// until is a context that ends, with errRetired, once the node is asked to retire. The caller calls stop.
func (r *retirement) until(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := r.wait()
	if r.is() {
		cancel(errRetired)
	}
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-changed:
				changed = r.wait()
				if r.is() {
					cancel(errRetired)
				}
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

func (r *retirement) set(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on == on {
		return
	}
	r.on = on
	r.wake()
}

// setMissing notes that the AcceleratorNode is not there. That does not end a retirement: the uninstall deletes the object last.
func (r *retirement) setMissing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = true
	r.wake()
}

// takeMissing says whether the object went missing since the last call.
func (r *retirement) takeMissing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := r.missing
	r.missing = false
	return missing
}

func (r *retirement) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// watch follows the node's own AcceleratorNode until ctx ends. It hands what the annotation RecoverAnnotation says to forgive.
func (r *retirement) watch(ctx context.Context, client dynamic.Interface, node string, forgive func(context.Context, string)) {
	const retry = 5 * time.Second
	for ctx.Err() == nil {
		if err := r.follow(ctx, client, node, forgive); err != nil {
			klog.FromContext(ctx).V(2).Info("The AcceleratorNode cannot be watched now", "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// follow is one watch.
func (r *retirement) follow(ctx context.Context, client dynamic.Interface, node string, forgive func(context.Context, string)) error {
	read := func(annotations map[string]string) {
		r.set(annotations[RetireAnnotation] != "")
		forgive(ctx, annotations[RecoverAnnotation])
	}
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()}
	resource := client.Resource(acceleratorNodes())
	list, err := resource.List(ctx, one)
	if err != nil {
		return err
	}
	for i := range list.Items {
		read(list.Items[i].GetAnnotations())
	}
	one.ResourceVersion = list.GetResourceVersion()
	stream, err := resource.Watch(ctx, one)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		object, ok := event.Object.(metav1.Object)
		if ok && event.Type == watch.Deleted {
			r.setMissing()
		}
		if ok && (event.Type == watch.Added || event.Type == watch.Modified) {
			read(object.GetAnnotations())
		}
	}
	return nil
}

func acceleratorNodes() schema.GroupVersionResource {
	return v1alpha1.GroupVersion.WithResource("acceleratornodes")
}

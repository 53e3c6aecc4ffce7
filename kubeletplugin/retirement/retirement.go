// SPDX-License-Identifier: Apache-2.0

// Package retirement follows requests in annotations of the node's AcceleratorNode: an administrator's to retire the node, to quiesce a
// driver or to clear the faults of devices, and the controller's to look for deleted claims, and to keep pods away during an upgrade.
package retirement

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
)

// Annotation on a node's AcceleratorNode makes the plugin stop publishing, refuse new claims, and remove its files after the last claim has
// ended. The uninstall hook or an administrator sets it.
const Annotation = v1alpha1.RetireAnnotation

// ErrRetired refuses claims on a retired node.
var ErrRetired = errors.New("is retired (annotation " + Annotation + " on its AcceleratorNode): " +
	"delete the pod so that it is scheduled elsewhere")

// State says whether this node was asked to retire.
type State struct {
	mu sync.Mutex
	// value is that of the annotation. Empty: the node serves.
	value string
	// missing says that the AcceleratorNode is gone and must be created again.
	missing bool
	changed chan struct{}
}

// New returns the state of a node that serves.
func New() *State { return &State{changed: make(chan struct{})} }

// On reports whether the node was asked to retire.
func (r *State) On() bool { return r.Value() != "" }

// Value returns the value of the annotation that asked the node to retire, and "" if the node serves.
func (r *State) Value() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value
}

// Changed returns a channel that closes at the next change.
func (r *State) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Until returns a context that ends, with ErrRetired, when the node is asked to retire. The caller calls stop.
func (r *State) Until(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := r.Changed()
	if r.On() {
		cancel(ErrRetired)
	}
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-changed:
				changed = r.Changed()
				if r.On() {
					cancel(ErrRetired)
				}
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// Set asks the node to retire by a value of the annotation, or with an empty one to serve again.
func (r *State) Set(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.value == value {
		return
	}
	r.value = value
	r.notify()
}

// setMissing records that the AcceleratorNode is gone. A retirement continues: an uninstall deletes the object last.
func (r *State) setMissing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = true
	r.notify()
}

// TakeMissing reports whether the object was deleted since the last call.
func (r *State) TakeMissing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := r.missing
	r.missing = false
	return missing
}

func (r *State) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Requests are called for annotations other than Annotation.
type Requests struct {
	// Recover is called with the value of v1alpha1.RecoverAnnotation.
	Recover func(context.Context, string)
	// Quiesce is called with the value of v1alpha1.QuiesceAnnotation.
	Quiesce func(context.Context, string)
	// Upgrade is called with the value of v1alpha1.UpgradeAnnotation, before Quiesce.
	Upgrade func(context.Context, string)
	// ClaimDeleted is called when v1alpha1.ClaimDeletedAnnotation has another value than before.
	ClaimDeleted func()
	// Waiting is called with the value of v1alpha1.WaitingClaimsAnnotation.
	Waiting func(string)
}

// Watch watches the node's own AcceleratorNode until ctx ends.
func (r *State) Watch(ctx context.Context, client dynamic.Interface, node string, requests Requests) {
	// A watch that ended is begun anew between 2 and 6 s later, since those of all nodes end with the API server.
	const anew, spread, longestRetry = 2 * time.Second, 2.0, 30 * time.Second
	failing := retry.New(longestRetry)
	var deleted string
	read := func(annotations map[string]string) {
		r.Set(annotations[Annotation])
		requests.Recover(ctx, annotations[v1alpha1.RecoverAnnotation])
		requests.Upgrade(ctx, annotations[v1alpha1.UpgradeAnnotation])
		requests.Quiesce(ctx, annotations[v1alpha1.QuiesceAnnotation])
		requests.Waiting(annotations[v1alpha1.WaitingClaimsAnnotation])
		if now := annotations[v1alpha1.ClaimDeletedAnnotation]; now != deleted {
			deleted = now
			requests.ClaimDeleted()
		}
	}
	for ctx.Err() == nil {
		pause := wait.Jitter(anew, spread)
		if err := follow(ctx, client, node, read, r.setMissing); err != nil {
			pause = failing.Next()
			klog.FromContext(ctx).V(2).Info("Cannot watch the AcceleratorNode, will retry", "reason", err)
		} else {
			failing.Reset()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// follow runs one watch. It calls read with the object's annotations, and missing when the object is gone.
func follow(ctx context.Context, client dynamic.Interface, node string, read func(map[string]string), missing func()) error {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()}
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	list, err := resource.List(ctx, options)
	if err != nil {
		return err
	}
	if len(list.Items) == 0 { // deleted while nothing was watched, or not made yet
		missing()
	}
	for i := range list.Items {
		read(list.Items[i].GetAnnotations())
	}
	options.ResourceVersion = list.GetResourceVersion()
	stream, err := resource.Watch(ctx, options)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		object, ok := event.Object.(metav1.Object)
		if ok && event.Type == watch.Deleted {
			missing()
		}
		if ok && (event.Type == watch.Added || event.Type == watch.Modified) {
			read(object.GetAnnotations())
		}
	}
	return nil
}

// Reason returns the stable reason of an error of this package, and "" for any other.
func (s *State) Reason(err error) (reason string, permanent bool) {
	if errors.Is(err, ErrRetired) {
		return "NodeRetired", true
	}
	return "", false
}

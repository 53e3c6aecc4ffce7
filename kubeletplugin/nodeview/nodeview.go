// SPDX-License-Identifier: Apache-2.0

// Package nodeview keeps what the API server has of the plugin's own node: its Node, and the ResourceSlices of all drivers on it. Several
// parts of the plugin look at both again and again. Were each to ask, many nodes would ask for the same all the time.
package nodeview

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/kubeletplugin/follow"
)

// View is what the API server has of a node. It is safe for concurrent use.
type View struct {
	client   kubernetes.Interface
	name     string
	age      time.Duration
	clock    clock.PassiveClock
	informer *follow.Informer
	// listeners are called after the slices changed.
	listeners follow.Listeners

	mu sync.Mutex
	// node is the Node as it was read last. It is read again after until.
	node  *corev1.Node
	until time.Time
}

// New returns the view of a node. Its Node may be that of some time ago: of age, and up to a fifth more, so that nodes that started
// together do not ask together.
func New(client kubernetes.Interface, name string, age time.Duration, c clock.PassiveClock) (*View, error) {
	v := &View{client: client, name: name, age: age, clock: c}
	var err error
	v.informer, err = follow.New(client.ResourceV1().ResourceSlices(), follow.Options{
		Client: client, Object: &resourceapi.ResourceSlice{}, Field: v.selector(), Keep: keep,
		Handle: follow.Each(v.listeners.Call),
	})
	if err != nil {
		return nil, fmt.Errorf("watch the ResourceSlices of node %s: %w", name, err)
	}
	return v, nil
}

func (v *View) selector() string {
	return fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, v.name).String()
}

// keep drops what nobody reads of a slice.
func keep(object any) (any, error) {
	if slice, ok := object.(*resourceapi.ResourceSlice); ok {
		slice.ManagedFields = nil
	}
	return object, nil
}

// OnSlices registers a function that is called after a slice of the node changed. It must not block.
func (v *View) OnSlices(listener func()) { v.listeners.Add(listener) }

// Watch follows the slices until ctx ends. stopped waits for its end.
func (v *View) Watch(ctx context.Context) (stopped func()) { return follow.Run(ctx, v.informer) }

// Slices returns the node's slices of all drivers, sorted by name. They are for reading only. While the view does not follow the API
// server, it is asked.
func (v *View) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	if !v.informer.Current() {
		return v.SlicesNow(ctx)
	}
	var out []resourceapi.ResourceSlice
	for _, object := range v.informer.GetStore().List() {
		if slice, ok := object.(*resourceapi.ResourceSlice); ok {
			out = append(out, *slice)
		}
	}
	slices.SortFunc(out, func(a, b resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// SlicesNow is Slices as the API server has them at this moment, for whoever must not act on what was there a moment ago.
func (v *View) SlicesNow(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := v.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: v.selector()})
	if err != nil {
		return nil, fmt.Errorf("list the node's ResourceSlices: %w", err)
	}
	return list.Items, nil
}

// Node returns the Node, which is for reading only.
func (v *View) Node(ctx context.Context) (*corev1.Node, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.node != nil && v.clock.Now().Before(v.until) {
		return v.node, nil
	}
	// The API server answers from memory. What it does not know yet is seen the next time.
	node, err := v.client.CoreV1().Nodes().Get(ctx, v.name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", v.name, err)
	}
	const spread = 0.2
	v.node, v.until = node, v.clock.Now().Add(wait.Jitter(v.age, spread))
	return node, nil
}

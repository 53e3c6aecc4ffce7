// SPDX-License-Identifier: Apache-2.0

// Package follow keeps copies of API objects with single informers of client-go. The informer factories of client-go know every resource of
// Kubernetes. They would be an eighth of a program that runs on every node and follows a few resources.
package follow

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Source is the client of one resource, typed or dynamic, in one namespace or in all.
type Source[List runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (List, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Options are the settings of an informer.
type Options struct {
	// Client is the client of the source. It says whether lists may be streamed by a watch, which fake clients may not support.
	Client any
	// Object is an empty object of the resource.
	Object runtime.Object
	// Field is a field selector. If empty, all objects are followed.
	Field string
	// Keep returns the part of each object that is kept. Objects for which it fails are logged and skipped.
	Keep cache.TransformFunc
	// Handle is called for the kept objects. It may be nil.
	Handle cache.ResourceEventHandler
}

// Informer keeps copies of objects and knows whether they follow the API server.
type Informer struct {
	cache.SharedIndexInformer
	// open counts watches.
	open atomic.Int32
	// before has the copies' versions when a watch was opened that begins with all objects. While copies have them, it is not read that far.
	before atomic.Pointer[versions]
}

// versions are resource versions: what client-go has read from the API server, and what it has put into the store.
type versions struct{ read, stored string }

func (i *Informer) versions() versions {
	return versions{i.LastSyncResourceVersion(), i.GetStore().LastStoreSyncResourceVersion()}
}

// Current reports whether all objects were read and a watch is open. Between two watches copies may be old: after the API server is
// unreachable client-go waits for up to a minute, and for some seconds after a definition changed. They still are while the next watch
// sends the objects that are there. Who must not decide by old objects asks the API server then.
func (i *Informer) Current() bool {
	if !i.HasSynced() || i.open.Load() == 0 {
		return false
	}
	before, now := i.before.Load(), i.versions()
	return before == nil || before.read != now.read && before.stored != now.stored
}

// opened counts a watch until it is stopped. Reflectors stop every watch, those that ended included.
func (i *Informer) opened(w watch.Interface) watch.Interface {
	i.open.Add(1)
	return &openWatch{Interface: w, closed: sync.OnceFunc(func() { i.open.Add(-1) })}
}

type openWatch struct {
	watch.Interface
	closed func()
}

func (w *openWatch) Stop() {
	w.closed()
	w.Interface.Stop()
}

// New returns an informer with an index by namespace. It does nothing before Run.
func New[List runtime.Object](source Source[List], o Options) (*Informer, error) {
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = o.Field
		return options
	}
	informer := &Informer{}
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return source.List(ctx, selected(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			var before *versions
			if options.SendInitialEvents != nil && *options.SendInitialEvents {
				before = new(informer.versions())
			}
			w, err := source.Watch(ctx, selected(options))
			if err != nil {
				return nil, err
			}
			informer.before.Store(before)
			return informer.opened(w), nil
		},
	}
	informer.SharedIndexInformer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, o.Client), o.Object, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	err := informer.SetTransform(o.Keep)
	if err == nil && o.Handle != nil {
		_, err = informer.AddEventHandler(o.Handle)
	}
	return informer, err
}

// Each returns a handler that calls a function after an object was added or deleted, or after what is kept of it changed. Other updates,
// such as those of counts that the controller writes for people, are no change: every node sees each of them.
func Each(changed func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() },
		UpdateFunc: func(before, now any) {
			if !same(before, now) {
				changed()
			}
		},
		DeleteFunc: func(any) { changed() },
	}
}

// same reports whether two kept copies of an object differ in nothing but their version.
func same(before, now any) bool {
	a, ok := before.(runtime.Object)
	b, err := meta.Accessor(now)
	if !ok || err != nil {
		return false
	}
	a = a.DeepCopyObject()
	if of, err := meta.Accessor(a); err == nil {
		of.SetResourceVersion(b.GetResourceVersion())
	}
	return equality.Semantic.DeepEqual(a, now)
}

// Own returns an informer for all objects of one of Fettle's own resources. Keep gets *unstructured.Unstructured. changed is called as
// by Each; it may be nil.
func Own(client dynamic.Interface, resource string, keep cache.TransformFunc, changed func()) (*Informer, error) {
	o := Options{Client: client, Object: &unstructured.Unstructured{}, Keep: keep}
	if changed != nil {
		o.Handle = Each(changed)
	}
	informer, err := New(client.Resource(v1alpha1.GroupVersion.WithResource(resource)), o)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	return informer, nil
}

// Run runs informers until ctx ends. stopped waits for their end.
func Run(ctx context.Context, informers ...*Informer) (stopped func()) {
	var running sync.WaitGroup
	for _, informer := range informers {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	return running.Wait
}

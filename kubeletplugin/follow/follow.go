// SPDX-License-Identifier: Apache-2.0

// Package follow keeps copies of objects of the API server with client-go's informers, each made by itself: the factories of client-go know
// every resource of Kubernetes, which is an eighth of a program that is on every node and follows a few.
package follow

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Source is the client of one resource, typed or dynamic, in one namespace or in all.
type Source[List runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (List, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Options say what is followed.
type Options struct {
	// Client is the one that the source is of. It says whether lists may come by a watch, which those of tests may not.
	Client any
	// Object is one of those that come, empty.
	Object runtime.Object
	// Field selects objects. Empty: all.
	Field string
	// Keep is called for each object and gives what is kept of it. An error of it is logged, and the object not followed.
	Keep cache.TransformFunc
}

// New makes an informer, with an index by namespace. It does nothing until Run.
func New[List runtime.Object](source Source[List], o Options) (cache.SharedIndexInformer, error) {
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = o.Field
		return options
	}
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return source.List(ctx, selected(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return source.Watch(ctx, selected(options))
		},
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, o.Client), o.Object, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	return informer, informer.SetTransform(o.Keep)
}

// Run follows until ctx ends; stopped waits for that.
func Run(ctx context.Context, informers ...cache.SharedIndexInformer) (stopped func()) {
	var running sync.WaitGroup
	for _, informer := range informers {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	return running.Wait
}

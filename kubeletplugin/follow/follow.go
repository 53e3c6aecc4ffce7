// SPDX-License-Identifier: Apache-2.0

// Package follow keeps copies of objects of the API server with client-go's informers, each made by itself: the factories of client-go know
// every resource of Kubernetes, which is an eighth of a program that is on every node and follows a few.
package follow

import (
	"context"
	"fmt"
	"sync"

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
	// Handle is told of what is kept. Nil: nobody is.
	Handle cache.ResourceEventHandler
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
	err := informer.SetTransform(o.Keep)
	if err == nil && o.Handle != nil {
		_, err = informer.AddEventHandler(o.Handle)
	}
	return informer, err
}

// Own is New for all objects of one of Fettle's own resources, of which Keep gets *unstructured.Unstructured. changed is called after one
// came, changed or went. Nil: nobody is told.
func Own(client dynamic.Interface, resource string, keep cache.TransformFunc, changed func()) (cache.SharedIndexInformer, error) {
	o := Options{Client: client, Object: &unstructured.Unstructured{}, Keep: keep}
	if changed != nil {
		o.Handle = cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}
	}
	informer, err := New(client.Resource(v1alpha1.GroupVersion.WithResource(resource)), o)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	return informer, nil
}

// Run follows until ctx ends; stopped waits for that.
func Run(ctx context.Context, informers ...cache.SharedIndexInformer) (stopped func()) {
	var running sync.WaitGroup
	for _, informer := range informers {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	return running.Wait
}

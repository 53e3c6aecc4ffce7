// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cmd/fettle/internal/terminal"
	"github.com/fettle-dev/fettle/pkg/paging"
)

const (
	// pageSize is how many objects the API server is asked for at once. Each may have a megabyte and a half.
	pageSize = 100
	// queries bounds the requests a second. One waits for the other, so that this is far more than the pages of a list need; client-go's own
	// bound of 5 would have a list of 55,000 objects take two minutes.
	queries = 100
)

// reader reads objects of a cluster and remembers what it read, so that it can wait until that changes.
type reader struct {
	config *rest.Config
	// client is for kinds that only their API server knows, names for the names of objects of any kind, typed for Kubernetes' own kinds.
	client dynamic.Interface
	names  metadata.Interface
	typed  map[schema.GroupVersion]rest.Interface
	// seen has the resource versions of what was read.
	seen map[location]string
}

// location is an object, or all objects of a resource that selectors of fields and of labels are for if it has no name.
type location struct {
	resource                        schema.GroupVersionResource
	namespace, name, fields, labels string
}

// newReader returns a reader that asks for protobuf wherever the API server has it.
func newReader(config *rest.Config) (*reader, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.QPS, config.Burst = "fettle", queries, queries
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	names, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &reader{
		config: config, client: client, names: names, typed: map[schema.GroupVersion]rest.Interface{}, seen: map[location]string{},
	}, nil
}

func (r *reader) at(p location) dynamic.ResourceInterface {
	if p.namespace == "" {
		return r.client.Resource(p.resource)
	}
	return r.client.Resource(p.resource).Namespace(p.namespace)
}

// typedClient returns the client for a version of Kubernetes' own kinds.
func (r *reader) typedClient(version schema.GroupVersion) (rest.Interface, error) {
	if known := r.typed[version]; known != nil {
		return known, nil
	}
	config := rest.CopyConfig(r.config)
	config.GroupVersion, config.NegotiatedSerializer = &version, scheme.Codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.APIPath = "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	client, err := rest.RESTClientFor(config)
	if err == nil {
		r.typed[version] = client
	}
	return client, err
}

// lister returns one page of a list.
type lister func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)

// pages calls each with all objects of a list, page by page, so that no more of them are in memory than a page and what each keeps. It
// calls begin before the first page, and again whenever the API server makes it start over.
func (r *reader) pages(ctx context.Context, p location, list lister, begin func(), each func(runtime.Object) error) error {
	progress, done := terminal.FromContext(ctx), int64(0)
	restart := func() {
		done = 0
		progress.Objects("reading "+p.resource.Resource, 0, 0)
		begin()
	}
	err := paging.List(restart, func(token string) (string, error) {
		boundMemory()
		page, err := list(ctx, metav1.ListOptions{FieldSelector: p.fields, LabelSelector: p.labels, Limit: pageSize, Continue: token})
		if err != nil {
			return "", err
		}
		about, err := apimeta.ListAccessor(page)
		if err != nil {
			return "", fmt.Errorf("the answer is no list: %w", err)
		}
		if err := apimeta.EachListItem(page, func(o runtime.Object) error { done++; return each(o) }); err != nil {
			return "", err
		}
		left := int64(0)
		if about.GetRemainingItemCount() != nil {
			left = *about.GetRemainingItemCount()
		}
		progress.Objects("reading "+p.resource.Resource, done, done+left)
		r.seen[p] = about.GetResourceVersion()
		return about.GetContinue(), nil
	})
	if err != nil {
		delete(r.seen, p)
	}
	return err
}

// list reads all objects of a resource, of one namespace or, if that is empty, of all.
func (r *reader) list(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	keep := func(one *unstructured.Unstructured) error {
		all = append(all, *one)
		return nil
	}
	if err := r.untyped(ctx, location{resource: resource, namespace: namespace}, func() { all = nil }, keep); err != nil {
		return nil, err
	}
	return all, nil
}

// untyped reads the objects of any kind, without their managed fields.
func (r *reader) untyped(ctx context.Context, p location, begin func(), each func(*unstructured.Unstructured) error) error {
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.at(p).List(ctx, options)
	}
	return r.pages(ctx, p, list, begin, func(o runtime.Object) error {
		one, ok := o.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("the list has a %T", o)
		}
		one.SetManagedFields(nil)
		return each(one)
	})
}

// namesOf lists the names of a resource's objects. The API server sends their metadata only.
func (r *reader) namesOf(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]string, error) {
	var out []string
	var names metadata.ResourceInterface = r.names.Resource(resource)
	if namespace != "" {
		names = r.names.Resource(resource).Namespace(namespace)
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return names.List(ctx, options)
	}
	err := r.pages(ctx, location{resource: resource, namespace: namespace}, list, func() { out = nil }, func(o runtime.Object) error {
		one, err := apimeta.Accessor(o)
		if err == nil {
			out = append(out, one.GetName())
		}
		return err
	})
	return out, err
}

// choice says which objects of a resource are kept.
type choice[T any] struct {
	namespace string
	// fields select on the API server, which knows them for some kinds only.
	fields fields.Set
	labels string
	// keep may drop an object, or parts of it. Nil keeps all.
	keep func(*T) bool
	// begin, if it is set, is called before the first object, and again whenever the list is read from its start once more.
	begin func()
}

// listOf reads the objects of a resource as values of a type, page by page.
func listOf[T any](ctx context.Context, r *reader, resource schema.GroupVersionResource, of choice[T]) ([]*T, error) {
	p := location{resource: resource, namespace: of.namespace, labels: of.labels}
	if len(of.fields) > 0 {
		p.fields = of.fields.String() // sorted, and no value has anything to escape
	}
	var out []*T
	begin := func() {
		out = nil
		if of.begin != nil {
			of.begin()
		}
	}
	keep := func(one *T) {
		if of.keep == nil || of.keep(one) {
			out = append(out, one)
		}
	}
	kind, builtIn := builtInKind[T](resource.GroupVersion())
	if !builtIn {
		err := r.untyped(ctx, p, begin, func(o *unstructured.Unstructured) error {
			one := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, one); err != nil {
				return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
			}
			keep(one)
			return nil
		})
		return out, err
	}
	client, err := r.typedClient(resource.GroupVersion())
	if err != nil {
		return nil, err
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.Get().NamespaceIfScoped(p.namespace, p.namespace != "").Resource(resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Get()
	}
	err = r.pages(ctx, p, list, begin, func(o runtime.Object) error {
		one, ok := any(o).(*T)
		if !ok {
			return fmt.Errorf("the list has a %T, want a %s", o, kind)
		}
		about, err := apimeta.Accessor(o)
		if err != nil {
			return err
		}
		about.SetManagedFields(nil)
		keep(new(*one)) // a copy, so that what is kept does not keep the page
		return nil
	})
	return out, err
}

// builtInKind returns the kind of a type, if it is one of Kubernetes' own and of that version.
func builtInKind[T any](version schema.GroupVersion) (string, bool) {
	object, ok := any(new(T)).(runtime.Object)
	if !ok {
		return "", false
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return "", false
	}
	for _, kind := range kinds {
		if kind.GroupVersion() == version {
			return kind.Kind, true
		}
	}
	return "", false
}

// get reads one object into a value of its type.
func (r *reader) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, into any) error {
	p := location{resource: resource, namespace: namespace, name: name}
	object, err := r.at(p).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.seen[p] = "" // any: it is news as soon as it is there
		return err
	case err != nil:
		return err
	}
	r.seen[p] = object.GetResourceVersion()
	return runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}

// changed waits until something that was read changes, and forgets it all. What may not be watched counts as unchanged, unless that is all.
func (r *reader) changed(ctx context.Context) error {
	if len(r.seen) == 0 {
		return errors.New("nothing was read that could change")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan error, len(r.seen))
	for p, version := range maps.Clone(r.seen) {
		go func() { news <- r.wait(ctx, p, version) }()
	}
	var refused []error
	for range r.seen {
		err := <-news
		if !apierrors.IsForbidden(err) {
			clear(r.seen)
			return err
		}
		refused = append(refused, err)
	}
	return errors.Join(refused...)
}

// wait returns at the first event about a location, or when the watch ends. The caller then reads the location again.
func (r *reader) wait(ctx context.Context, p location, version string) error {
	options := metav1.ListOptions{ResourceVersion: version, FieldSelector: p.fields, LabelSelector: p.labels}
	if p.name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.name).String()
	}
	events, err := r.at(p).Watch(ctx, options)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil // it changed too often
	}
	if err != nil {
		return fmt.Errorf("watch the %s: %w", p.resource.Resource, err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-events.ResultChan():
			if !open || event.Type != watch.Bookmark {
				return nil
			}
		}
	}
}

// resourceSlices is the resource of ResourceSlices.
func resourceSlices() schema.GroupVersionResource {
	return resourceapi.SchemeGroupVersion.WithResource("resourceslices")
}

// ownSlices selects the slices of our driver, of one node if it is named.
func ownSlices(node string) fields.Set {
	out := fields.Set{resourceapi.ResourceSliceSelectorDriver: v1alpha1.DriverName}
	if node != "" {
		out[resourceapi.ResourceSliceSelectorNodeName] = node
	}
	return out
}

// poolID names a pool of devices.
type poolID struct{ driver, name string }

func poolOf(s *resourceapi.ResourceSlice) poolID { return poolID{s.Spec.Driver, s.Spec.Pool.Name} }

// poolsOf returns the pools of which claims have devices.
func poolsOf(claims []*resourceapi.ResourceClaim) map[poolID]bool {
	out := map[poolID]bool{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			out[poolID{r.Driver, r.Pool}] = true
		}
	}
	return out
}

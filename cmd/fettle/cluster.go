// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"

	"github.com/fettle-dev/fettle/pkg/paging"
)

// cluster is how one is reached: by the flags that kubectl has too.
type cluster struct {
	*genericclioptions.ConfigFlags
	all    bool
	reader *reader // of the first client
}

// cluster declares the flags of a verb that looks into a namespace, or all.
func (a *arguments) cluster() *cluster {
	c := a.connect(genericclioptions.NewConfigFlags(true))
	a.BoolVarP(&c.all, "all-namespaces", "A", false, "all namespaces")
	return c
}

// connection declares the flags of a verb that knows no namespaces.
func (a *arguments) connection() *cluster {
	config := genericclioptions.NewConfigFlags(true)
	config.Namespace = nil
	return a.connect(config)
}

// connect declares kubectl's flags. Two are left out: --cluster, which means something else for devices, and --cache-dir, since nothing is
// cached.
func (a *arguments) connect(config *genericclioptions.ConfigFlags) *cluster {
	config.ClusterName, config.CacheDir = nil, nil
	c := &cluster{ConfigFlags: config}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{ofKubectl: {"true"}}
		a.AddFlag(f)
	})
	a.completeCluster(c)
	return c
}

// whichCluster returns a flag of kubectl that was given, or "".
func (a *arguments) whichCluster() string {
	name := ""
	a.Visit(func(f *pflag.Flag) {
		if f.Annotations[ofKubectl] != nil {
			name = f.Name
		}
	})
	return name
}

// client returns one for any kind of object, and the namespace to look into: empty for all.
func (c *cluster) client() (*reader, string, error) {
	config, err := c.ToRESTConfig()
	if err != nil {
		return nil, "", fmt.Errorf("find the cluster: %w", err)
	}
	namespace := metav1.NamespaceAll
	if c.Namespace != nil && !c.all {
		if namespace, _, err = c.ToRawKubeConfigLoader().Namespace(); err != nil {
			return nil, "", fmt.Errorf("find the namespace: %w", err)
		}
	}
	if c.reader == nil {
		config.UserAgent = "fettle"
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, "", fmt.Errorf("find the cluster: %w", err)
		}
		c.reader = &reader{client: client, seen: map[location]string{}}
	}
	return c.reader, namespace, nil
}

// reader reads objects of a cluster and remembers what it read, so that it can wait until that changes.
type reader struct {
	client dynamic.Interface
	// seen has the resource versions of what was read.
	seen map[location]string
}

// location is an object, or all objects of a resource if it has no name.
type location struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (r *reader) at(p location) dynamic.ResourceInterface {
	if p.namespace == "" {
		return r.client.Resource(p.resource)
	}
	return r.client.Resource(p.resource).Namespace(p.namespace)
}

// pageSize is how many objects the API server is asked for at once. Each may have a megabyte and a half.
const pageSize = 100

// list reads all objects of a resource, of one namespace or, if that is empty, of all.
func (r *reader) list(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]unstructured.Unstructured, error) {
	p := location{resource: resource, namespace: namespace}
	var all []unstructured.Unstructured
	err := paging.List(func() { all = nil }, func(token string) (string, error) {
		page, err := r.at(p).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: token})
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			page.Items[i].SetManagedFields(nil)
		}
		all, r.seen[p] = append(all, page.Items...), page.GetResourceVersion()
		return page.GetContinue(), nil
	})
	if err != nil {
		delete(r.seen, p)
		return nil, err
	}
	return all, nil
}

// get reads one object into a value of its type.
func (r *reader) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, into any) error {
	p := location{resource, namespace, name}
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
	options := metav1.ListOptions{ResourceVersion: version}
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

// listOf reads all objects of a resource as values of a type. An object that is not one is an error, and the others are returned.
func listOf[T any](ctx context.Context, r *reader, resource schema.GroupVersionResource, namespace string) ([]*T, error) {
	all, err := r.list(ctx, resource, namespace)
	var out []*T
	for i := range all {
		one := new(T)
		if bad := runtime.DefaultUnstructuredConverter.FromUnstructured(all[i].Object, one); bad != nil {
			err = errors.Join(err, fmt.Errorf("read %s %s: %w", all[i].GetKind(), all[i].GetName(), bad))
			continue
		}
		out = append(out, one)
	}
	return out, err
}

// contexts lists the contexts of the kubeconfig.
func (c *cluster) contexts() []string {
	config, err := c.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

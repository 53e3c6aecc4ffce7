// SPDX-License-Identifier: Apache-2.0

// Package trustpolicies reads the cluster's TrustPolicies for the features of a node, and keeps what they said of images.
package trustpolicies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

const resource = "trustpolicies"

// Reader reads TrustPolicies. It follows them while it watches, and asks the API server otherwise.
type Reader struct {
	dynamic  dynamic.Interface
	informer *follow.Informer
	compiled *trust.Cache

	listeners follow.Listeners
}

// NewReader returns a reader. The public root is the trusted root, in JSON, of policies that have none of their own; nil: there is none.
// The mirrors are those of the registries that images are pulled from: policies hold there, too.
func NewReader(client dynamic.Interface, publicRoot []byte, mirrors registryname.Mirrors) (*Reader, error) {
	r := &Reader{dynamic: client, compiled: trust.NewCache(publicRoot, mirrors)}
	var err error
	r.informer, err = follow.Own(client, resource, decode, r.listeners.Call)
	return r, err
}

// OnChange registers a function that is called after a policy changed. It must not block.
func (r *Reader) OnChange(listener func()) { r.listeners.Add(listener) }

// Watch follows the policies until ctx ends, and tells the listeners once it knows all of them. stopped waits for its end.
func (r *Reader) Watch(ctx context.Context) (stopped func()) {
	ended := follow.Run(ctx, r.informer)
	var running sync.WaitGroup
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), r.informer.HasSynced) {
			r.listeners.Call()
		}
	})
	return func() {
		running.Wait()
		ended()
	}
}

// Synced reports whether the reader follows the policies and knows all of them.
func (r *Reader) Synced() bool { return r.informer.HasSynced() }

// Version is a version of a policy.
type Version struct {
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// PublicRoot is the digest of the public trusted root, which has no generation. It is empty if the policy does not use that root.
	PublicRoot string `json:"publicRoot,omitempty"`
}

// For returns the policies that are for an image which an object of the namespace refers to, by name, with their versions. The namespace
// is empty for an object of the cluster.
func (r *Reader) For(ctx context.Context, ref artifact.Reference, namespace string) ([]*trust.Policy, []Version, error) {
	all, err := r.list(ctx)
	if err != nil {
		return nil, nil, err
	}
	var policies []*trust.Policy
	var versions []Version
	for i, p := range r.compiled.All(all) {
		if !p.Applies(ref, namespace) {
			continue
		}
		version := Version{Name: all[i].Name, UID: all[i].UID, Generation: all[i].Generation}
		if root := p.PublicRoot(); !root.IsZero() {
			version.PublicRoot = root.String()
		}
		policies, versions = append(policies, p), append(versions, version)
	}
	return policies, versions, nil
}

// list returns all policies, by name.
func (r *Reader) list(ctx context.Context) ([]*v1alpha1.TrustPolicy, error) {
	var items []any
	if r.informer.Current() {
		items = r.informer.GetStore().List()
	} else {
		list, err := r.dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the TrustPolicies: %w", err)
		}
		for i := range list.Items {
			item, err := decode(&list.Items[i])
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
	}
	var out []*v1alpha1.TrustPolicy
	for _, item := range items {
		if p, ok := item.(*v1alpha1.TrustPolicy); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.TrustPolicy) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// decode decodes a policy once for each version, for the informer to keep, and drops the metadata that nothing reads.
func decode(in any) (any, error) {
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil
	}
	p := &v1alpha1.TrustPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p); err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	p.SetManagedFields(nil)
	p.SetAnnotations(nil)
	p.SetLabels(nil)
	return p, nil
}

// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

// TestVolumesAreRefused: what the API server does not take is in the plan that the status is made from, until it takes it.
func TestVolumesAreRefused(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	object := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "kernels", UID: "1", Generation: 1}}
	object.Spec.Image = "registry.example/team/kernels:v1"
	object.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
	object.Status = v1alpha1.GPUKernelCacheStatus{
		ObservedGeneration: 1, ResolvedDigest: "sha256:top", Image: &v1alpha1.CacheImage{Digest: "sha256:top"},
		Verification: &v1alpha1.ImageVerdict{Digest: "sha256:top", Result: v1alpha1.VerdictVerified},
	}
	var refusal error
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if _, job := o.(*batchv1.Job); job && refusal != nil {
					return refusal
				}
				return c.Create(ctx, o, options...)
			},
		}).Build()
	services := reconciler.Services{
		Client: api, Live: large.Paged(t, api, reconciler.TenantPage), Recorder: events.NewFakeRecorder(10),
		Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	planner := NewPlanner(services, Options{Enabled: true})
	r := New(services, planner).Queues[0].Reconciler
	key := client.ObjectKeyFromObject(object)
	// stuck is what keeps the last plan from being carried out, which the status has too.
	stuck := func() string {
		t.Helper()
		p, err := planner.Report(t.Context(), Of(object.Common()))
		if err != nil {
			t.Fatal(err)
		}
		last, _ := planner.failures.Load(key)
		failure, _ := last.(string)
		if slices.Contains(p.Stuck, failure) != (failure != "") {
			t.Errorf("the plan for the status has %q, want %q in it", p.Stuck, failure)
		}
		return failure
	}
	do := func() error {
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		return err
	}
	refusal = errors.New("exceeded quota:\ntwo Jobs")
	if err := do(); err == nil {
		t.Error("a Job that is not taken: no error, and it is not tried again")
	}
	got := stuck()
	if !strings.HasPrefix(got, "make Job a/kernels-") || !strings.HasSuffix(got, ": exceeded quota:; two Jobs") {
		t.Errorf("it says %q", got)
	}
	refusal = nil
	if err := do(); err != nil || stuck() != "" {
		t.Errorf("when it is taken: %v, %q", err, stuck())
	}
	var jobs batchv1.JobList
	if err := api.List(t.Context(), &jobs); err != nil || len(jobs.Items) != 1 {
		t.Errorf("%d Jobs, %v", len(jobs.Items), err)
	}

	planner.note(key, errors.New("still"))
	if err := api.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if err := do(); err != nil || stuck() != "" {
		t.Errorf("of a cache that is gone: %v, %q", err, stuck())
	}
}

// TestTroubleOfOneNamespace: what cannot be written in one namespace keeps no other from its volume.
func TestTroubleOfOneNamespace(t *testing.T) {
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	o := object(v1alpha1.CacheROXVolume, one, "a")
	p := Make(o, on(), observed("a", ""))
	w := observed("a", "", p)
	w.finish(batchv1.JobComplete, "")
	k := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "uid", Generation: 3}, Status: *o.Status}
	k.Spec = v1alpha1.ClusterGPUKernelCacheSpec{GPUKernelCacheSpec: *o.Spec, WorkloadNamespaces: []string{"a", "b"}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(p.Create, k,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}})...).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return errors.New("metadata.annotations: Too long")
			},
		}).Build()
	services := reconciler.Services{
		Client: api, Live: large.Paged(t, api, reconciler.TenantPage), Recorder: events.NewFakeRecorder(10),
		Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	r := New(services, NewPlanner(services, on())).Queues[1].Reconciler
	_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(k)})
	check.WantErr(t, err, nil, "a/cache", "Too long")
	check.Must(t, api.Get(t.Context(), client.ObjectKey{Namespace: "b", Name: "cache"}, &corev1.PersistentVolumeClaim{}))
	check.Must(t, api.Get(t.Context(), client.ObjectKey{Namespace: "b", Name: "cache-111111111111"}, &batchv1.Job{}))
}

// TestClaimNotMade: without its claim no Job is made, whether a quota refuses the claim or somebody was faster with one of that name.
func TestClaimNotMade(t *testing.T) {
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, refusal := range map[string]error{
		"a quota":       apierrors.NewForbidden(claims, "cache", errors.New("exceeded quota")),
		"another claim": apierrors.NewAlreadyExists(claims, "cache"),
	} {
		api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if _, claim := o.(*corev1.PersistentVolumeClaim); claim && o.GetNamespace() == "a" {
					return refusal
				}
				return c.Create(ctx, o, options...)
			},
		}).Build()
		err := (&filler{client: api}).apply(t.Context(), Make(object(v1alpha1.CacheROXVolume, one, "a", "b"), on(), observed("a b", "")))
		if (err == nil) != apierrors.IsAlreadyExists(refusal) {
			t.Errorf("%s: %v", name, err)
		}
		var jobs batchv1.JobList
		if check.Must(t, api.List(t.Context(), &jobs)); len(jobs.Items) != 1 || jobs.Items[0].Namespace != "b" {
			t.Errorf("%s: %d Jobs", name, len(jobs.Items))
		}
	}
}

// TestUnresolvedCache: a cache whose image is not resolved costs no read for each node, again and again, and a claim that a Job of it could
// write to is found.
func TestUnresolvedCache(t *testing.T) {
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "cache-n-1"}},
	}
	for i := range 50 {
		name := fmt.Sprint("n-", i)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	o := object(v1alpha1.CacheRWOPerNode, one, "a")
	objects = append(objects, o.job(v1alpha1.CacheVolume{Namespace: "a", ClaimName: "cache-n-1", JobName: "job"}, on()))
	o.current = false
	var read []string
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	live := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			read = append(read, key.Name)
			return c.Get(ctx, key, o, options...)
		},
	})
	r := Reader{Cached: api, Live: live, Clock: clocktesting.NewFakePassiveClock(start)}
	p, err := r.Plan(t.Context(), o, on())
	if check.Must(t, err); len(p.Volumes) != 50 || len(p.Delete) != 1 || !slices.Equal(read, []string{"cache-n-1"}) {
		t.Errorf("%d volumes, %d Jobs are deleted, and read are %q", len(p.Volumes), len(p.Delete), read)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/signed"
)

// TestPlan: edits and steps are the claim's own, and an earlier boot's decision gives the same, whatever became of the object, without
// asking the API server or the registry.
func TestPlan(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	nothing, err := n.plan("team-a", "claim-1")
	n.must(err)
	if diff := cmp.Diff(prepare.Contribution{}, nothing); diff != "" {
		t.Errorf("for a claim that names no cache (-want +got):\n%s", diff)
	}
	first, err := n.plan("team-a", "claim-1", named)
	n.must(err)
	uses, err := decodeUses(first.Decision)
	u := n.only(uses["gpu"], err)
	s, err := u.Step()
	n.must(err)
	want := prepare.Contribution{
		Edits: map[string]prepare.Edits{"gpu": {Own: n.Mounter.Edits(u), Givers: map[string]string{
			home: "GPUKernelCache team-a/add", "TRITON_CACHE_DIR": "GPUKernelCache team-a/add",
		}}},
		Steps: []step.Step{s}, Decision: first.Decision,
	}
	if diff := cmp.Diff(want, first); diff != "" || u.Owner != "claim-1" || u.Name != "add" {
		t.Errorf("for %+v (-want +got):\n%s", u, diff)
	}

	client := n.client.Resource(v1alpha1.GroupVersion.WithResource(cacheResource)).Namespace("team-a")
	n.must(client.Delete(t.Context(), "add", metav1.DeleteOptions{}))
	n.client.ClearActions()
	n.registry.Requests.Store(0)
	n.restart()
	n.Enabled = false
	again, err := n.again(first.Decision)
	n.must(err)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("in a later boot (-before +then):\n%s", diff)
	}
	if asked, requests := n.client.Actions(), n.registry.Requests.Load(); len(asked) > 0 || requests > 0 {
		t.Errorf("in a later boot the API server was asked %v, and the registry %d times", asked, requests)
	}
	if nothing, err := n.again(nil); err != nil || len(nothing.Steps) > 0 || nothing.Decision != nil {
		t.Errorf("where nothing was decided: %+v, %v", nothing, err)
	}
	for _, broken := range []string{`"what?"`, `{"gpu": "what?"}`} {
		if _, err := n.again(json.RawMessage(broken)); err == nil || !strings.Contains(err.Error(), "as recorded") {
			t.Errorf("a record says %s: %v", broken, err)
		}
		r := &record.Record{Decisions: map[string]json.RawMessage{"kernelCaches": json.RawMessage(broken)}}
		if err := n.Restore(t.Context(), r); err == nil || !strings.Contains(err.Error(), "as recorded") {
			t.Errorf("restored as a record says %s: %v", broken, err)
		}
	}
}

// TestFetchedBeforePlan: what a claim needs is fetched before its GPU is locked, and planned without a request. An optional cache that
// cannot be had is Plan's to report. After a reboot the caches of the decision are fetched.
func TestFetchedBeforePlan(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	if r := n.request("team-a", "claim-1"); n.Fetch(&r) != nil {
		t.Error("fetches for a claim that names no cache")
	}
	r := n.request("team-a", "claim-1", named)
	n.must(n.Fetch(&r)(t.Context()))
	n.registry.Requests.Store(0)
	planned, err := n.Plan(t.Context(), r)
	n.must(err)
	if asked := n.registry.Requests.Load(); asked != 0 {
		t.Errorf("%d requests while the GPU is locked", asked)
	}
	missing := v1alpha1.KernelCacheSource{Name: "missing"}
	r = n.request("team-a", "claim-2", missing)
	if err := n.Fetch(&r)(t.Context()); err == nil || !strings.Contains(err.Error(), "request gpu") || !IsRefused(err) {
		t.Errorf("got %v, want a refusal", err)
	}
	missing.Optional = true
	r = n.request("team-a", "claim-2", missing)
	n.must(n.Fetch(&r)(t.Context()))
	r = n.request("team-a", "claim-1", named)
	r.AfterReboot, r.Decision = true, planned.Decision
	n.must(n.Fetch(&r)(t.Context()))
	r.Decision = nil
	if n.Fetch(&r) != nil {
		t.Error("fetches for a claim that got no cache")
	}
}

// TestStepFetchesNothing: a step has no network. What it needs is brought by a plan or a restore before it, with the credentials of the
// object.
func TestStepFetchesNothing(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("private/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	})
	planned, err := n.plan("team-a", "claim-1", named)
	n.must(err)
	uses, err := decodeUses(planned.Decision)
	u := n.only(uses["gpu"], err)
	fails := func(how string, what func() error, ready func(error) bool) {
		t.Helper()
		if err := what(); !ready(err) || !strings.Contains(err.Error(), "GPUKernelCache team-a/add") || n.there(u.Tree) {
			t.Errorf("%s: %v", how, err)
		}
	}
	r := &record.Record{Decisions: map[string]json.RawMessage{"kernelCaches": planned.Decision}}
	restore := func() error { return n.Restore(t.Context(), r) }

	n.evict(u.Tree)
	n.registry.Requests.Store(0)
	for range 2 {
		fails("a step alone", func() error { return n.Kinds().Apply(t.Context(), planned.Steps[0]) }, IsNotReady)
	}
	if requests := n.registry.Requests.Load(); requests > 0 {
		t.Errorf("a step asked the registry %d times", requests)
	}
	n.registry.Down.Store(true)
	fails("restored without the registry", restore, IsNotReady)
	fails("planned again without the registry", func() error { _, err := n.again(planned.Decision); return err }, IsNotReady)
	n.registry.Down.Store(false)
	n.password = false
	fails("restored with wrong credentials", restore, IsRefused)
	n.password = true
	all := n.Unpacking
	n.Unpacking = Lanes(budget.Limit{Node: 1, Namespace: 1})
	var free atomic.Int64
	n.registry.Around(func(next http.Handler) http.Handler {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 50 { // of a context that has ended and a turn that is free, each counts half of the times
			_ = n.Unpacking.Do(ended, "team-a", pace(&atomic.Int64{}), func(context.Context) error { free.Add(1); return nil })
		}
		return next
	})
	n.must(restore())
	n.registry.Around(nil)
	if free.Load() > 0 {
		t.Errorf("a restore took no turn")
	}
	n.evict(u.Tree)
	n.Unpacking = all
	n.must(restore())
	n.registry.Requests.Store(0)
	n.must(restore())
	at := n.apply(u)
	n.reads(filepath.Join(at, kernel), signed.TritonText)
	if requests := n.registry.Requests.Load(); requests > 0 {
		t.Errorf("for what is here the registry was asked %d times", requests)
	}
	n.undo(u)
	n.empty()
}

// TestNodeStatus: a claim counts once for each version of a cache that it has, by the records of claims, and what its object does not mean
// any more is shown as long as a claim has it.
func TestNodeStatus(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	decided := func(uid string) *record.Record {
		c, err := n.plan("team-a", uid, named)
		n.must(err)
		return &record.Record{UID: uid, Decisions: map[string]json.RawMessage{n.Name(): c.Decision}}
	}
	twice := decided("u1")
	uses, err := decodeUses(twice.Decisions[n.Name()])
	n.must(err)
	uses["other"] = uses["gpu"]
	twice.Decisions[n.Name()], err = json.Marshal(uses)
	n.must(err)
	claims := []*record.Record{
		twice, decided("u2"),
		{UID: "u3"},
		{UID: "u4", Decisions: map[string]json.RawMessage{n.Name(): json.RawMessage(`"what?"`)}},
		{UID: "u5", Decisions: map[string]json.RawMessage{"presets": twice.Decisions[n.Name()]}},
	}
	gpus := []device.Device{hopper()}
	tree, err := n.host.PeekTree(uses["gpu"][0].Tree)
	n.must(err)
	want := []v1alpha1.NodeCache{{
		Namespace: "team-a", Name: "add", Digest: digest, Phase: v1alpha1.NodeCacheExtracted, CompatibleDevices: 1, Bytes: tree.Size, Claims: 2,
	}}
	if diff := cmp.Diff(want, n.NodeStatus(gpus, claims)); diff != "" {
		t.Errorf("by claims alone (-want +got):\n%s", diff)
	}
	stop := n.follow()
	defer stop()
	if diff := cmp.Diff(want, n.NodeStatus(gpus, claims)); diff != "" {
		t.Errorf("with the object (-want +got):\n%s", diff)
	}
	want[0].Claims = 0
	if diff := cmp.Diff(want, n.NodeStatus(gpus, claims[2:])); diff != "" {
		t.Errorf("of claims that have none (-want +got):\n%s", diff)
	}
}

// TestReason: reasons are stable, since alerts and scripts match them.
func TestReason(t *testing.T) {
	for want, err := range map[string]error{
		"KernelCacheRefused":  fmt.Errorf("wrapped: %w", cachemount.ErrRefused),
		"KernelCacheNotReady": fmt.Errorf("wrapped: %w", cachemount.ErrNotReady),
		"":                    errors.New("anything else"),
	} {
		got, permanent := (&Feature{}).Reason(err)
		if got != want || permanent != (want == ReasonRefused) {
			t.Errorf("%v: %q, permanent %v, want %q", err, got, permanent, want)
		}
	}
}

// TestBindAfter: a pod waits if any of its claim's caches asks for that. A look at a device has none.
func TestBindAfter(t *testing.T) {
	of := func(adminAccess bool, sources ...v1alpha1.KernelCacheSource) claim.Allocation {
		return claim.Allocation{Results: []claim.Result{{
			BaseRequest: "gpu", AdminAccess: adminAccess, Config: claim.Effective{GPU: &claim.GPUEffective{KernelCaches: sources}},
		}, {BaseRequest: "other"}}}
	}
	waits := v1alpha1.KernelCacheSource{Name: "waits", BindAfter: v1alpha1.BindAfterFetched}
	for name, c := range map[string]struct {
		of   claim.Allocation
		want v1alpha1.BindAfter
	}{
		"no cache":       {of(false), ""},
		"does not wait":  {of(false, named), ""},
		"one that waits": {of(false, named, waits), v1alpha1.BindAfterFetched},
		"a look":         {of(true, waits), ""},
	} {
		if got := BindAfter(c.of); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestStoppedWhilePlanning: a plugin that is stopped, or a call that is over, decides nothing about an optional cache: the next process
// asks again. The claim would otherwise go without it for good.
func TestStoppedWhilePlanning(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.registry.Down.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	c, err := n.Plan(ctx, n.request("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "add", Optional: true}))
	if err == nil || len(n.told) > 0 {
		t.Errorf("decided %s, told %q", c.Decision, n.told)
	}
}

// TestPlanAsksNoRegistry: a claim is planned while its devices are locked. An optional cache that could not be fetched before is left out
// without asking again, and one of which no fetch was tried yet, since the object changed, decides nothing.
func TestPlanAsksNoRegistry(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	locked := artifact.WithoutNetwork(t.Context())
	optional := n.request("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "add", Optional: true})
	_, err := n.Plan(locked, optional)
	check.WantErr(t, err, artifact.ErrNotAsked, "add")
	n.registry.Down.Store(true)
	n.must(n.Fetch(&optional)(t.Context()))
	c, err := n.Plan(locked, optional)
	n.must(err)
	if len(c.Steps) > 0 || len(n.told) != 1 {
		t.Errorf("without the registry: %+v, told %q", c.Steps, n.told)
	}
	n.registry.Down.Store(false)
	required := n.request("team-a", "claim-2", named)
	n.must(n.Fetch(&required)(t.Context()))
	c, err = n.Plan(locked, required)
	n.must(err)
	asked := n.registry.Reads.Load()
	uses, err := decodeUses(c.Decision)
	n.must(err)
	n.evict(uses["gpu"][0].Tree)
	for _, r := range []prepare.Request{required, {Claim: required.Claim, AfterReboot: true, Decision: c.Decision}} {
		_, err = n.Plan(locked, r)
		check.WantErr(t, err, artifact.ErrNotAsked, "add")
	}
	if now := n.registry.Reads.Load(); now != asked {
		t.Errorf("%d blobs were read while devices were locked", now-asked)
	}
}

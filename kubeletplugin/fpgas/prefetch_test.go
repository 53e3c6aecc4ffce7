// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/large"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// scout is a lab's node that fetches what objects name before a claim asks.
type scout struct {
	*lab
	source *prefetchSource
	store  cache.Store
}

func newScout(t *testing.T, devices ...device.Device) *scout {
	t.Helper()
	s := &scout{lab: newLab(t, devices...), store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	s.source = &prefetchSource{Feature: s.Feature, objects: []cache.Store{s.store}}
	s.Holder.Set(nodefixture.SnapshotWith(devices...))
	return s
}

// know puts objects where the informers would, as they keep them.
func (s *scout) know(objects ...metav1.Object) {
	s.t.Helper()
	for _, o := range objects {
		kept, err := trimBitstream(asUnstructured(s.t, o))
		check.Must(s.t, err)
		check.Must(s.t, s.store.Update(kept))
	}
}

func asUnstructured(t *testing.T, object metav1.Object) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	check.Must(t, err)
	u := &unstructured.Unstructured{Object: content}
	kind := v1alpha1.KindFPGABitstream
	if object.GetNamespace() == "" {
		kind = v1alpha1.KindClusterFPGABitstream
	}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return u
}

// pass fetches all that is wanted now, each job once, as a prefetcher does. It returns the errors by reference.
func (s *scout) pass() map[string]error {
	s.t.Helper()
	v, _ := s.Holder.Get()
	seen, failed := map[string]bool{}, map[string]error{}
	for _, job := range s.source.jobs(v) {
		if seen[job.Key] {
			continue
		}
		seen[job.Key] = true
		if err := job.Fetch(s.t.Context()); err != nil {
			failed[job.Reference] = err
		}
		if ref, err := artifact.ParseReference(job.Reference); err != nil || job.Digest == "" || ref.Repository() == "" {
			s.t.Errorf("job %+v (%v)", job, err)
		}
	}
	return failed
}

func (s *scout) wantHeld(want ...v1alpha1.BitstreamImage) {
	s.t.Helper()
	var layers []string
	for i := range want {
		layers = append(layers, want[i].Layer)
	}
	slices.Sort(layers)
	held, err := s.Artifacts.Held()
	check.Must(s.t, err)
	if diff := cmp.Diff(layers, held); diff != "" {
		s.t.Errorf("in the store (-want +got):\n%s", diff)
	}
}

// TestFetchedAhead: of all objects, of both kinds and any namespace, the images for the node's own regions come, and no others. They are
// not pinned.
func TestFetchedAhead(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell), regionOf("r1", "c1", shell))
	mine, other := s.image("team/both", shell, nlb0), s.image("team/both", otherShell, nlb0)
	blank := s.image("team/blank", shell, blankAFU)
	elsewhere := s.image("team/elsewhere", otherShell, nlb3)
	wipe := s.clusterObject("blank", blank)
	wipe.Spec.Blank, wipe.Spec.Namespaces = true, nil
	stale := s.object("team-a", "stale", s.image("team/stale", shell, "00000000000000000000000000000001"))
	stale.Generation = 2
	staged := s.clusterObject("staged", mine)
	staged.Spec.Image, staged.Spec.HostFile = "", &v1alpha1.HostBitstream{Store: "/srv/fpga", ID: nlb3}
	unresolved := s.object("team-a", "unresolved", mine)
	unresolved.Status = v1alpha1.FPGABitstreamStatus{}
	s.know(s.object("team-b", "both", other, mine), wipe, s.object("team-a", "elsewhere", elsewhere), stale, staged, unresolved)
	s.wantHeld()
	if failed := s.pass(); len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
	s.wantHeld(mine, blank)
	store, err := s.Artifacts.Store()
	check.Must(t, err)
	digest, err := artifact.ParseDigest(mine.Layer)
	check.Must(t, err)
	if pins, err := store.Pins(digest); err != nil || len(pins) > 0 {
		t.Errorf("pinned for %v (%v)", pins, err)
	}
	if len(s.asked) > 0 {
		t.Errorf("the API server was asked for %v", s.asked)
	}
	reads := s.Reads.Load()
	s.pass()
	if s.Reads.Load() != reads {
		t.Error("what is here was fetched again")
	}

	// A region that comes later, and an artifact that changes; nothing that is here goes.
	s.Holder.Set(nodefixture.SnapshotWith(regionOf("r0", "c0", shell), regionOf("r2", "c2", otherShell)))
	next := s.image("team/blank", shell, nlb3)
	wipe.Status = resolved(next)
	s.know(wipe)
	s.pass()
	s.wantHeld(mine, blank, other, elsewhere, next)
}

// TestAheadIsForNobody: a file that is here is given to no claim whose classes do not allow it.
func TestAheadIsForNobody(t *testing.T) {
	dev := regionOf("r0", "c0", shell)
	s := newScout(t, dev)
	image := s.image("team/nlb0", shell, nlb0)
	object := s.object("team-a", "nlb0", image)
	s.know(object)
	s.put(object)
	s.pass()
	s.wantHeld(image)
	c := nodefixture.Allocated("u1", nodefixture.Result("region", device.KindFPGA, "r0"))
	c.Namespace = "team-a"
	nodefixture.Configured(c, "FromClaim", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":{"name":"nlb0"}}`)
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	check.Must(t, err)
	_, err = s.Plan(t.Context(), prepare.Request{
		Claim: c, Allocation: allocation, Find: func(*claim.Result) (device.Device, bool) { return dev, true },
	})
	wants(t, err, nil, "ForbiddenByPolicy")
}

// TestAheadIsOneJob: files are told apart by what there is to fetch and the way to it, so that an object that means something else is a job
// of its own.
func TestAheadIsOneJob(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	keys := func() (out []string) {
		v, _ := s.Holder.Get()
		for _, job := range s.source.jobs(v) {
			if !slices.Contains(out, job.Key) {
				out = append(out, job.Key)
			}
		}
		return out
	}
	image := s.image("team/nlb0", shell, nlb0)
	object := s.object("team-a", "nlb0", image)
	s.know(object)
	first := keys()
	same := object.DeepCopy()
	same.Name, same.Annotations = "same", map[string]string{"note": "changed"}
	s.know(object, same)
	if diff := cmp.Diff(first, keys()); diff != "" {
		t.Errorf("the same file is another job (-want +got):\n%s", diff)
	}
	same.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	s.know(same)
	if got := keys(); len(got) != 2 {
		t.Errorf("jobs %q: another way to the file is the same job", got)
	}
	object.Status = resolved(s.image("team/nlb0", shell, nlb3))
	s.know(object)
	if got := keys(); slices.Contains(got, first[0]) {
		t.Errorf("jobs %q: what the object no longer means is still wanted", got)
	}
}

// TestAheadWithSecrets: each object's own pull secrets are used, of the place that is for its kind, and none for what is here already.
func TestAheadWithSecrets(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	auth := base64.StdEncoding.EncodeToString([]byte(fpgaregistry.User + ":" + fpgaregistry.Password))
	config := []byte(`{"auths":{"` + s.Host + `":{"auth":"` + auth + `"}}}`)
	for _, namespace := range []string{"team-a", "fettle"} {
		s.put(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"},
			Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": config},
		})
	}
	secrets := []corev1.LocalObjectReference{{Name: "pull"}}
	mine, clusters := s.image("private/mine", shell, nlb0), s.image("private/clusters", shell, nlb3)
	own, all := s.object("team-a", "mine", mine), s.clusterObject("clusters", clusters)
	own.Spec.Image, own.Spec.ImagePullSecrets = s.Host+"/private/mine:v1", secrets
	all.Spec.Image, all.Spec.ImagePullSecrets = s.Host+"/private/clusters:v1", secrets
	s.know(own, all)
	if failed := s.pass(); len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
	s.wantHeld(mine, clusters)
	slices.Sort(s.asked)
	want := []string{"/api/v1/namespaces/fettle/secrets/pull", "/api/v1/namespaces/team-a/secrets/pull"}
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	same := own.DeepCopy()
	same.Name = "same"
	s.know(same)
	s.pass() // as after a restart
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked for what is here (-want +got):\n%s", diff)
	}

	stranger := s.object("team-b", "mine", s.image("private/other", shell, blankAFU))
	stranger.Spec.Image, stranger.Spec.ImagePullSecrets = s.Host+"/private/other:v1", secrets
	s.know(stranger)
	if failed := s.pass(); len(failed) != 1 {
		t.Errorf("failed: %v", failed)
	}
	s.wantHeld(mine, clusters) // another namespace's secret is no help
}

// TestAheadWatches: what the API server has, and gets later, is seen; on a node without regions nobody looks.
func TestAheadWatches(t *testing.T) {
	s := newScout(t)
	image, later := s.image("team/nlb0", shell, nlb0), s.image("team/later", shell, nlb3)
	kinds := map[schema.GroupVersionResource]string{
		v1alpha1.GroupVersion.WithResource("fpgabitstreams"):        "FPGABitstreamList",
		v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams"): "ClusterFPGABitstreamList",
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
		asUnstructured(t, s.object("team-a", "nlb0", image)))
	s.Dynamic = client
	clock, arrived := clocktesting.NewFakeClock(time.Now()), make(chan struct{}, 1)
	p := artifacts.NewPrefetcher(artifacts.PrefetchConfig{
		Node: nodefixture.Node, Holder: s.Holder, Retirement: retirement.New(), Clock: clock, Fetched: func() { arrived <- struct{}{} },
	}, s.Source())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	if actions := client.Actions(); len(actions) > 0 {
		t.Errorf("looked: %v", actions)
	}
	s.Holder.Set(nodefixture.SnapshotWith(regionOf("r0", "c0", shell)))
	check.Wind(t, "something arrives", clock, time.Second, check.Received(arrived))
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams"))
	_, err := resource.Create(t.Context(), asUnstructured(t, s.clusterObject("later", later)), metav1.CreateOptions{})
	check.Must(t, err)
	check.Wind(t, "something arrives", clock, time.Second, check.Received(arrived))
	cancel()
	<-done
	s.wantHeld(image, later)
}

// TestTrimBitstream: what is kept is enough to fetch, and no more.
func TestTrimBitstream(t *testing.T) {
	l := newLab(t)
	object := l.object("team-a", "nlb0", l.image("team/nlb0", shell, nlb0))
	object.Annotations = map[string]string{"note": strings.Repeat("x", 1000)}
	object.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionResolved, Message: "long"}}
	whole := asUnstructured(t, object)
	kept, err := trimBitstream(whole)
	check.Must(t, err)
	trimmed, _ := kept.(*unstructured.Unstructured)
	want := l.bitstreams.filesOf(whole, []string{shell})
	if diff := cmp.Diff(want, l.bitstreams.filesOf(trimmed, []string{shell})); diff != "" || len(want) != 1 {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if trimmed.GetAnnotations() != nil {
		t.Error("the annotations are kept")
	}
	if _, found, _ := unstructured.NestedSlice(trimmed.Object, "status", "conditions"); found {
		t.Error("the conditions are kept")
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "x"}
	if kept, err := trimBitstream(tombstone); err != nil || kept != tombstone {
		t.Errorf("became %v (%v)", kept, err)
	}
}

// TestLargeBitstreamOfATenant: of a bitstream the plugin keeps little, whatever a tenant writes there.
func TestLargeBitstreamOfATenant(t *testing.T) {
	large.KeepsLittle(t, &v1alpha1.FPGABitstream{}, large.Unstructured(trimBitstream))
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
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
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// scout is a lab's node that fetches ahead, with a clock that the test winds.
type scout struct {
	*lab
	*forerunner
	ahead *bitstreamsAhead
	clock *clocktesting.FakeClock
	store cache.Store
	told  int
}

func newScout(t *testing.T, devices ...device.Device) *scout {
	t.Helper()
	l := newLab(t, devices...)
	s := &scout{lab: l, clock: clocktesting.NewFakeClock(time.Now()), store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	s.ahead = &bitstreamsAhead{bitstreams: l.bitstreams, files: l.artifacts, objects: []cache.Store{s.store}}
	f := s.ahead.forerunner()
	f.node, f.latest, f.retired, f.clock, f.changed = testNode, newLatest(), newRetirement(), s.clock, make(chan struct{}, 1)
	f.fetched = func() { s.told++ }
	s.forerunner = &f
	s.latest.set(&view{devices: devices})
	return s
}

// know puts objects where the informers would, as they keep them.
func (s *scout) know(objects ...metav1.Object) {
	s.t.Helper()
	for _, o := range objects {
		kept, err := trimBitstream(asUnstructured(s.t, o))
		must(s.t, err)
		must(s.t, s.store.Update(kept))
	}
}

func asUnstructured(t *testing.T, object metav1.Object) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	must(t, err)
	u := &unstructured.Unstructured{Object: content}
	kind := v1alpha1.KindFPGABitstream
	if object.GetNamespace() == "" {
		kind = v1alpha1.KindClusterFPGABitstream
	}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return u
}

// pass winds the clock from one thing that is due to the next, for as long as there are some. It returns the times of the steps.
func (s *scout) pass() (waits []time.Duration) {
	s.t.Helper()
	for range 100 {
		wait, ok := s.step(s.t.Context())
		if !ok {
			return waits
		}
		if wait > 0 {
			waits = append(waits, wait)
			s.clock.Step(wait)
		}
	}
	s.t.Fatalf("it never ends: %v", waits)
	return nil
}

// held are the digests of the files that the node holds.
func (s *scout) held() []string {
	s.t.Helper()
	held, err := s.artifacts.held()
	must(s.t, err)
	return held
}

func (s *scout) wantHeld(want ...v1alpha1.BitstreamImage) {
	s.t.Helper()
	var layers []string
	for i := range want {
		layers = append(layers, want[i].Layer)
	}
	slices.Sort(layers)
	if diff := cmp.Diff(layers, s.held()); diff != "" {
		s.t.Errorf("in the store (-want +got):\n%s", diff)
	}
}

// TestFetchedAhead: of all objects, of both kinds and any namespace, the images for the node's own regions come, and no others. They are
// not pinned, and the one who is to tell of them is told.
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
	s.pass()
	s.wantHeld(mine, blank)
	wantPins(t, s.artifacts, mine.Layer)
	if s.told != 2 {
		t.Errorf("told %d times, want 2", s.told)
	}
	if len(s.asked) > 0 {
		t.Errorf("the API server was asked for %v", s.asked)
	}
	reads := s.Reads.Load()
	s.pass()
	if s.Reads.Load() != reads || s.told != 2 {
		t.Error("what is here was fetched again")
	}

	// A region that comes later, and an artifact that changes; nothing that is here goes.
	s.latest.set(&view{devices: []device.Device{regionOf("r0", "c0", shell), regionOf("r2", "c2", otherShell)}})
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
	c := allocated("u1", result("region", device.KindFPGA, "r0"))
	c.Namespace = "team-a"
	configured(c, "FromClaim", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":{"name":"nlb0"}}`)
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: testNode})
	must(t, err)
	_, err = s.effects(t.Context(), c, allocation, func(*claim.Result) (device.Device, bool) { return dev, true })
	wants(t, err, nil, "ForbiddenByPolicy")
}

// TestAheadIsSpread: each node begins with each file at a time of its own, always the same, within half a minute; and with one at a time.
func TestAheadIsSpread(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	var images []v1alpha1.BitstreamImage
	var due []time.Duration
	for i := range 8 {
		name := fmt.Sprintf("b%d", i)
		image := s.image("team/"+name, shell, fmt.Sprintf("%032x", i+1))
		images = append(images, image)
		due = append(due, aheadDelay(testNode, image.Layer))
		s.know(s.object("team-a", name, image))
	}
	slices.Sort(due)
	begin := s.clock.Now()
	for i, want := range due {
		wait, ok := s.step(t.Context())
		if got := s.clock.Now().Add(wait).Sub(begin); !ok || got != want {
			t.Fatalf("file %d is due after %v, want %v", i, got, want)
		}
		if got := len(s.held()); got != i {
			t.Fatalf("%d files are here before file %d is due", got, i)
		}
		s.clock.Step(wait)
		s.step(t.Context())
	}
	s.wantHeld(images...)
	if due[7]-due[0] < 5*time.Second || due[7] >= aheadSpread {
		t.Errorf("not spread: %v", due)
	}
	if aheadDelay("node-1", images[0].Layer) == aheadDelay("node-2", images[0].Layer) {
		t.Error("all nodes begin at the same time")
	}
}

// TestAheadGivesUp: a registry that is away is asked ever more seldom, six times; what it has not got is fetched once the object means
// something else.
func TestAheadGivesUp(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	image := s.image("team/nlb0", shell, nlb0)
	object := s.object("team-a", "nlb0", image)
	s.know(object)
	var asked int
	s.intercept(image.Layer, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	waits := s.pass()
	const second = time.Second
	want := []time.Duration{aheadDelay(testNode, image.Layer), 30 * second, 60 * second, 120 * second, 240 * second, 480 * second}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if asked != aheadTries {
		t.Errorf("asked %d times, want %d", asked, aheadTries)
	}
	s.wantHeld()
	s.intercept(image.Layer, nil)
	if waits := s.pass(); len(waits) > 0 {
		t.Errorf("tried again after %v", waits)
	}
	next := s.image("team/nlb0", shell, nlb3)
	object.Status = resolved(next)
	s.know(object)
	s.pass()
	s.wantHeld(next)
}

// TestAheadComesLate: a try that fails is made good, and an object that goes meanwhile ends it.
func TestAheadComesLate(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	image, gone := s.image("team/nlb0", shell, nlb0), s.image("team/gone", shell, nlb3)
	lost := s.object("team-a", "gone", gone)
	s.know(s.object("team-a", "nlb0", image), lost)
	s.Down.Store(true)
	for range 4 {
		wait, ok := s.step(t.Context())
		if !ok {
			t.Fatal("given up")
		}
		s.clock.Step(wait)
	}
	s.wantHeld()
	s.Down.Store(false)
	must(t, s.store.Delete(asUnstructured(t, lost)))
	s.pass()
	s.wantHeld(image)
}

// TestAheadMakesNoRoom: a store that is full stays as it is, and nobody is asked for what does not fit.
func TestAheadMakesNoRoom(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	first, second := s.image("team/first", shell, nlb0), s.image("team/second", shell, nlb3)
	s.artifacts.limits = artifact.StoreConfig{MaxBytes: first.Size + second.Size - 1}
	one, two := s.object("team-a", "first", first), s.object("team-a", "second", second)
	s.know(one)
	s.pass()
	reads := s.Reads.Load()
	s.know(two)
	s.pass()
	s.wantHeld(first)
	if s.Reads.Load() != reads {
		t.Error("the registry was asked for what does not fit")
	}
	p := s.bitstreams.filesOf(asUnstructured(t, two), []string{shell})
	must(t, s.artifacts.bring(t.Context(), &p[0])) // a claim gets it
	s.wantHeld(second)
}

// TestAheadWithSecrets: each object's own pull secrets are used, of the place that is for its kind, and none for what is here already.
func TestAheadWithSecrets(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	auth := base64.StdEncoding.EncodeToString([]byte(fpgaregistry.User + ":" + fpgaregistry.Password))
	config := []byte(`{"auths":{"` + s.host + `":{"auth":"` + auth + `"}}}`)
	for _, namespace := range []string{"team-a", "fettle"} {
		s.put(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"},
			Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": config},
		})
	}
	secrets := []corev1.LocalObjectReference{{Name: "pull"}}
	mine, clusters := s.image("private/mine", shell, nlb0), s.image("private/clusters", shell, nlb3)
	own, all := s.object("team-a", "mine", mine), s.clusterObject("clusters", clusters)
	own.Spec.Image, own.Spec.ImagePullSecrets = s.host+"/private/mine:v1", secrets
	all.Spec.Image, all.Spec.ImagePullSecrets = s.host+"/private/clusters:v1", secrets
	s.know(own, all)
	s.pass()
	s.wantHeld(mine, clusters)
	slices.Sort(s.asked)
	want := []string{"/api/v1/namespaces/fettle/secrets/pull", "/api/v1/namespaces/team-a/secrets/pull"}
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	same := own.DeepCopy()
	same.Name = "same"
	s.know(same)
	s.errands = nil // as after a restart
	s.pass()
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked for what is here (-want +got):\n%s", diff)
	}

	stranger := s.object("team-b", "mine", s.image("private/other", shell, blankAFU))
	stranger.Spec.Image, stranger.Spec.ImagePullSecrets = s.host+"/private/other:v1", secrets
	s.know(stranger)
	s.pass()
	s.wantHeld(mine, clusters) // another namespace's secret is no help
}

// TestAheadRetires: a node that is emptied fetches nothing, also what it has begun; and all of it if it comes back.
func TestAheadRetires(t *testing.T) {
	s := newScout(t, regionOf("r0", "c0", shell))
	image := s.image("team/nlb0", shell, nlb0)
	s.know(s.object("team-a", "nlb0", image))
	arrived, gone := make(chan struct{}), make(chan struct{})
	s.intercept(image.Layer, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	wait, _ := s.step(t.Context())
	s.clock.Step(wait)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.step(t.Context())
	}()
	<-arrived
	s.retired.set(true)
	must(t, s.artifacts.destroy()) // which waits for it
	<-done
	<-gone
	if waits := s.pass(); len(waits) > 0 {
		t.Errorf("went on after %v", waits)
	}
	if _, err := os.Stat(s.artifacts.dir); !os.IsNotExist(err) {
		t.Errorf("there is a store: %v", err)
	}
	bring := func(ctx context.Context) error { return s.artifacts.bringSpare(ctx, &fetchParams{}) }
	if err := s.fetch(t.Context(), bring); err == nil || !strings.Contains(err.Error(), errRetired.Error()) {
		t.Errorf("fetched on a node that is retired: %v", err)
	}
	s.intercept(image.Layer, nil)
	s.retired.set(false)
	s.pass()
	s.wantHeld(image)
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
	s.bitstreams.dynamic = client
	f := s.forerunner
	s.ahead.objects = nil
	arrived := make(chan struct{}, 1)
	s.fetched = func() { arrived <- struct{}{} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx)
	}()
	if actions := client.Actions(); len(actions) > 0 {
		t.Errorf("looked: %v", actions)
	}
	s.latest.set(&view{devices: []device.Device{regionOf("r0", "c0", shell)}})
	windUntil(t, s.clock, arrived)
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams"))
	_, err := resource.Create(t.Context(), asUnstructured(t, s.clusterObject("later", later)), metav1.CreateOptions{})
	must(t, err)
	windUntil(t, s.clock, arrived)
	cancel()
	<-done
	s.wantHeld(image, later)
}

// windUntil lets time pass whenever somebody waits for it, until something arrives.
func windUntil(t *testing.T, clock *clocktesting.FakeClock, arrived <-chan struct{}) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case <-arrived:
			return
		case <-deadline:
			t.Fatal("nothing came")
		case <-time.After(time.Millisecond):
			if clock.HasWaiters() {
				clock.Step(time.Second)
			}
		}
	}
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
	must(t, err)
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

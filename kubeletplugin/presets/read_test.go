// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/objects"
)

// follow has the world's presets watched until the test ends.
func (w *presetWorld) follow() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := w.Watch(ctx)
	w.t.Cleanup(func() {
		cancel()
		stopped()
	})
	if !cache.WaitForCacheSync(w.t.Context().Done(), w.informers[presetResource].Current, w.informers[clusterPresetResource].Current) {
		w.t.Fatal("not read")
	}
}

// TestPresetsAreReadOnce: what is followed is what would be found if it were asked for, faults included, and claims leave it as it is.
func TestPresetsAreReadOnce(t *testing.T) {
	env := func(name string) func(*v1alpha1.ClusterDevicePresetSpec) {
		return func(s *v1alpha1.ClusterDevicePresetSpec) { s.Env = []v1alpha1.PresetEnv{{Name: name, Value: new("1")}} }
	}
	w := newPresetWorld(t, clusterPreset("all", env("ALL")), clusterPreset("bad", env("NOT A NAME")))
	all := func() []preset.Preset {
		found, err := w.presetsFor(t.Context(), "team-a", w.ofCluster(t.Context()))
		check.Must(t, err)
		slices.SortFunc(found, func(a, b preset.Preset) int { return strings.Compare(a.Name, b.Name) })
		return found
	}
	asked := all()
	w.follow()
	for range 2 {
		if diff := cmp.Diff(asked, all(), cmp.AllowUnexported(preset.Preset{})); diff != "" || len(asked) != 2 {
			t.Errorf("followed (-asked +followed):\n%s", diff)
		}
		given := w.gives(claimOfClass("u1", ofGPU("gpu", "gpu0")))
		if diff := cmp.Diff([]string{"ALL=1"}, given.Edits["gpu"].Shared.Env); diff != "" {
			t.Errorf("given (-want +got):\n%s", diff)
		}
	}
	if a, b := all(), all(); &a[0].Rules.Env[0] != &b[0].Rules.Env[0] {
		t.Error("decoded anew")
	}
}

// TestPresetWhileWatchIsBroken: a preset that came while nothing is watched counts for the next claim.
func TestPresetWhileWatchIsBroken(t *testing.T) {
	env := func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Env = []v1alpha1.PresetEnv{{Name: "LATE", Value: new("1")}}
	}
	w := newPresetWorld(t)
	client, ok := w.Dynamic.(*dynamicfake.FakeDynamicClient)
	if !ok {
		t.Fatalf("a client of type %T", w.Dynamic)
	}
	client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, nil, errors.New("broken") })
	ctx, cancel := context.WithCancel(t.Context())
	stopped := w.Watch(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), w.informers[clusterPresetResource].HasSynced) {
		t.Fatal("not read")
	}
	late, err := runtime.DefaultUnstructuredConverter.ToUnstructured(clusterPreset("late", env))
	check.Must(t, err)
	_, err = client.Resource(v1alpha1.GroupVersion.WithResource(clusterPresetResource)).
		Create(t.Context(), &unstructured.Unstructured{Object: late}, metav1.CreateOptions{})
	check.Must(t, err)
	if diff := cmp.Diff([]string{"LATE=1"}, w.gives(claimOfClass("u1", ofGPU("gpu", "gpu0"))).Edits["gpu"].Shared.Env); diff != "" {
		t.Errorf("given (-want +got):\n%s", diff)
	}
	cancel()
	stopped()
}

// TestWritableBeforeTheWatch: what containers may write to counts also before the plugin's watch has read the presets that say so, and for
// claims of an earlier boot, which read no presets. Where the API server gives no answer, the claim waits.
func TestWritableBeforeTheWatch(t *testing.T) {
	reads := clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	})
	gives := clusterPreset("gives", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.DeviceSelector.DeviceClassNames = []string{"another"}
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared", ContainerPath: "/shared", ReadOnly: new(false)}}
	})
	c := claimOfClass("u1", ofGPU("gpu", "gpu0"))
	before := newPresetWorld(t, reads)
	before.file("srv/shared/models/file", nil, 0o644)
	decision := before.gives(c).Decision

	w := newPresetWorld(t, reads, gives)
	w.root = before.root
	w.files.Root = before.root
	client, ok := w.Dynamic.(*dynamicfake.FakeDynamicClient)
	if !ok {
		t.Fatalf("a client of type %T", w.Dynamic)
	}
	isRefused := func() {
		t.Helper()
		_, err := w.plan(c)
		check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
		_, err = w.again(c, decision)
		check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
	}
	isRefused()
	silent := true
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return silent, nil, errors.New("silent") })
	_, err := w.again(c, decision)
	check.WantErr(t, err, errUnread, "silent")
	silent = false
	w.follow()
	isRefused()
}

// TestWritableOfFormerPreset: what containers write to counts while they run, also if the preset that gave it to their claim is gone, and
// for the next process. A claim whose record cannot be read may be one of these.
func TestWritableOfFormerPreset(t *testing.T) {
	reads := clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	})
	gives := clusterPreset("gives", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.DeviceSelector.DeviceClassNames = []string{"another"}
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared", ContainerPath: "/shared", ReadOnly: new(false)}}
	})
	w := newPresetWorld(t, reads, gives)
	w.file("srv/shared/models/file", nil, 0o644)
	writer := nodefixture.Allocated("u0", ofGPU("gpu", "gpu1"))
	objects.Asked(writer, "another")
	r := &record.Record{
		UID: "u0", Phase: record.Prepared, Decisions: map[string]json.RawMessage{featureName: w.gives(writer).Decision},
	}
	check.Must(t, w.Records.Create(r))
	check.Must(t, w.presets(clusterPresetResource, "").Delete(t.Context(), "gives", metav1.DeleteOptions{}))

	c := claimOfClass("u1", ofGPU("gpu", "gpu0"))
	isRefused := func(w *presetWorld) {
		t.Helper()
		for range 2 {
			_, err := w.plan(c)
			check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
		}
	}
	isRefused(w)
	next := newPresetWorld(t, reads)
	next.root, next.files.Root, next.lent.records = w.root, w.root, w.Records
	isRefused(next)
	check.Must(t, w.Records.SetAside("u0"))
	isRefused(next)
	check.Must(t, w.Records.ForgetDamaged("u0"))
	for _, w := range []*presetWorld{w, next} {
		w.gives(c)
	}
}

// TestWritableOfFormerConfiguration: what claims have for writing by a configuration of before counts while they have it: a directory of a
// host device, or one that presets of tenants might mount. What the configuration still gives is known without their records.
func TestWritableOfFormerConfiguration(t *testing.T) {
	reads := clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	})
	mount := preset.Mount{
		PresetMount: v1alpha1.PresetMount{HostPath: "/srv/shared", ContainerPath: "/shared", ReadOnly: new(false)},
		From:        preset.Origin{Namespace: "team-a", Name: "own"},
	}
	decision, err := json.Marshal(map[string]preset.Request{"gpu": {Request: "gpu", Mounts: []preset.Mount{mount}}})
	check.Must(t, err)
	device := record.Device{Pool: "node-1/host", Name: "shared"}
	device.Edits.Mounts = []container.Mount{{HostPath: "/srv/shared", ContainerPath: "/shared"}}
	for name, r := range map[string]*record.Record{
		"preset of a tenant": {UID: "u0", Phase: record.Prepared, Decisions: map[string]json.RawMessage{featureName: decision}},
		"host device":        {UID: "u0", Phase: record.Prepared, Devices: []record.Device{device}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPresetWorld(t, reads)
			w.file("srv/shared/models/file", nil, 0o644)
			check.Must(t, w.Records.Create(r))
			for range 2 {
				_, err := w.plan(claimOfClass("u1", ofGPU("gpu", "gpu0")))
				check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
			}
			check.Must(t, w.Records.Remove(r))
			w.gives(claimOfClass("u1", ofGPU("gpu", "gpu0")))
		})
	}
}

// TestWritableOfRecordReadLater: a record that the disk does not give at the first look of a process is looked at again. Its claim may have
// what no preset gives any more.
func TestWritableOfRecordReadLater(t *testing.T) {
	reads := clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	})
	decided := map[string]preset.Request{"gpu": {Request: "gpu", Mounts: []preset.Mount{{
		PresetMount: v1alpha1.PresetMount{HostPath: "/srv/shared", ContainerPath: "/shared", ReadOnly: new(false)},
	}}}}
	decision, err := json.Marshal(decided)
	check.Must(t, err)
	for n := 1; n <= 4; n++ {
		w, dir, failing := newPresetWorld(t, reads), t.TempDir(), fault.New()
		w.file("srv/shared/models/file", nil, 0o644)
		w.lent.records, err = record.Open(failing.FS(disk.OS{}), dir)
		check.Must(t, err)
		check.Must(t, w.lent.records.Create(&record.Record{
			UID: "u0", Phase: record.Prepared, Decisions: map[string]json.RawMessage{featureName: decision},
		}))
		c := claimOfClass("u1", ofGPU("gpu", "gpu0"))
		reads := 0
		failing.Before = func(op fault.Op) error {
			if op.Kind.Read() {
				reads++
			}
			if op.Kind.Read() && reads == n {
				return syscall.EIO
			}
			return nil
		}
		_, _ = w.plan(c) // nobody can tell what the claim has
		failing.Before = nil
		_, err = w.plan(c)
		check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
	}
}

// TestWritableOfPlannedClaim: what a claim may write to counts from its plan on, before it has a record, also if the preset that gives it
// goes in between and another claim is planned then. A plan that came to nothing gives it back.
func TestWritableOfPlannedClaim(t *testing.T) {
	reads := clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	})
	gives := clusterPreset("gives", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.DeviceSelector.DeviceClassNames = []string{"another"}
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared", ContainerPath: "/shared", ReadOnly: new(false)}}
	})
	for _, prepared := range []bool{true, false} {
		w := newPresetWorld(t, reads, gives)
		w.file("srv/shared/models/file", nil, 0o644)
		writer, c := nodefixture.Allocated("u0", ofGPU("gpu", "gpu1")), claimOfClass("u1", ofGPU("gpu", "gpu0"))
		objects.Asked(writer, "another")
		hold, err := w.Records.LockClaim(t.Context(), "u0")
		check.Must(t, err)
		planned := w.gives(writer)
		check.Must(t, w.presets(clusterPresetResource, "").Delete(t.Context(), "gives", metav1.DeleteOptions{}))
		isRefused := func() {
			t.Helper()
			_, err := w.plan(c)
			check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
		}
		isRefused()
		if prepared {
			check.Must(t, w.Records.Create(&record.Record{
				UID: "u0", Phase: record.Prepared, Decisions: map[string]json.RawMessage{featureName: planned.Decision},
			}))
		}
		hold.Release()
		if prepared {
			isRefused()
			continue
		}
		w.gives(c)
	}
}

// TestWritableOfOtherProcess: in a rolling update the plugin of before goes on preparing claims by its configuration.
func TestWritableOfOtherProcess(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("reads", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/srv/shared/models", ContainerPath: "/models"}}
	}))
	w.file("srv/shared/models/file", nil, 0o644)
	c := claimOfClass("u1", ofGPU("gpu", "gpu0"))
	w.gives(c)
	d := record.Device{Pool: "node-1/host", Name: "shared"}
	d.Edits.Mounts = []container.Mount{{HostPath: "/srv/shared", ContainerPath: "/shared"}}
	r := &record.Record{UID: "u0", Phase: record.Prepared, Devices: []record.Device{d}}
	check.Must(t, w.Records.Create(r))
	for range 2 {
		_, err := w.plan(c)
		check.WantErr(t, err, errUnmet, "containers may write below /srv/shared")
	}
	check.Must(t, w.Records.Remove(r))
	w.gives(c)
}

// TestUnreadablePreset: claims are told of it in the same words, followed or not, and those of other namespaces are not hurt.
func TestUnreadablePreset(t *testing.T) {
	w := newPresetWorld(t)
	client := w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(presetResource)).Namespace("team-a")
	_, err := client.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindDevicePreset,
		"metadata": map[string]any{"namespace": "team-a", "name": "broken"}, "spec": map[string]any{"priority": "high"},
	}}, metav1.CreateOptions{})
	check.Must(t, err)
	_, want := w.presetsFor(t.Context(), "team-a", w.ofCluster(t.Context()))
	if want == nil || !strings.Contains(want.Error(), "DevicePreset broken") {
		t.Fatalf("asked for: %v", want)
	}
	w.follow()
	if _, err := w.presetsFor(t.Context(), "team-a", w.ofCluster(t.Context())); err == nil || err.Error() != want.Error() {
		t.Errorf("followed: %v, want %v", err, want)
	}
	if _, err := w.presetsFor(t.Context(), "team-b", w.ofCluster(t.Context())); err != nil {
		t.Errorf("in another namespace: %v", err)
	}
}

// TestPresetsAreAskedForOnce: while nothing is watched, a claim has each kind of presets listed once, so that all of it is decided by the
// same.
func TestPresetsAreAskedForOnce(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("all", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Env = []v1alpha1.PresetEnv{{Name: "ALL", Value: new("1")}}
	}))
	w.gives(claimOfClass("u1", ofGPU("gpu", "gpu0")))
	client, ok := w.Dynamic.(*dynamicfake.FakeDynamicClient)
	if !ok {
		t.Fatalf("a client of type %T", w.Dynamic)
	}
	asked := map[string]int{}
	for _, action := range client.Actions() {
		asked[action.GetVerb()+" "+action.GetResource().Resource]++
	}
	if diff := cmp.Diff(map[string]int{"list " + clusterPresetResource: 1, "list " + presetResource: 1}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestPresetsMadeAgainCountOnce: presets that are deleted and made again while nothing is watched count once for the share of their
// namespace.
func TestPresetsMadeAgainCountOnce(t *testing.T) {
	const many = v1alpha1.MaxPresets/2 + 1
	w := newPresetWorld(t, manyPresets("team-a", many, 1)...)
	client, ok := w.Dynamic.(*dynamicfake.FakeDynamicClient)
	if !ok {
		t.Fatalf("a client of type %T", w.Dynamic)
	}
	watches := make(chan *watch.RaceFreeFakeWatcher, 100)
	client.PrependWatchReactor(presetResource, func(clienttesting.Action) (bool, watch.Interface, error) {
		one := watch.NewRaceFreeFake()
		watches <- one
		return true, one, nil
	})
	w.follow()
	resource := client.Resource(v1alpha1.GroupVersion.WithResource(presetResource)).Namespace("team-a")
	for i := range many { // which the watch does not tell
		name := fmt.Sprintf("p%03d", i)
		object, err := resource.Get(t.Context(), name, metav1.GetOptions{})
		check.Must(t, err)
		check.Must(t, resource.Delete(t.Context(), name, metav1.DeleteOptions{}))
		object.SetUID(object.GetUID() + "-again")
		_, err = resource.Create(t.Context(), object, metav1.CreateOptions{})
		check.Must(t, err)
	}
	(<-watches).Stop()
	again := func() bool {
		for _, object := range w.informers[presetResource].GetStore().List() {
			if known, ok := object.(*readPreset); !ok || !strings.HasSuffix(string(known.uid), "-again") {
				return false
			}
		}
		return w.informers[presetResource].Current()
	}
	check.Eventually(t, "the presets are read again", again)
	check.Eventually(t, "the namespace is within its share", func() bool { return w.shares.Check("team-a") == nil })
}

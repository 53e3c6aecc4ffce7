// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// later is a queue that notes what comes after a while.
type later struct {
	reconciler.RequestQueue
	keys []string
}

func (l *later) AddAfter(r reconcile.Request, after time.Duration) {
	if after != reconciler.Gathering {
		l.keys = append(l.keys, "too soon")
	}
	l.keys = append(l.keys, r.String())
}

// presetBench is a reconciler of presets with its API.
type presetBench struct {
	*judge
	client client.WithWatch
	clock  *clocktesting.FakeClock
	events chan string
	// refuse has the API server refuse to make Roles; patches counts the writes of a status.
	refuse  bool
	patches int
}

func newPresetBench(t *testing.T, objects ...client.Object) *presetBench {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(100)
	b := &presetBench{clock: clocktesting.NewFakeClock(time.Now()), events: recorder.Events}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.DevicePreset{}, &v1alpha1.ClusterDevicePreset{}, &v1alpha1.AcceleratorNode{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if b.refuse {
					return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, o.GetName(), nil)
				}
				return c.Create(ctx, o, opts...)
			},
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				b.patches++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	b.judge = newJudge(reconciler.Services{
		Client: b.client, Live: b.client, Recorder: recorder, Clock: b.clock, Namespace: "fettle-system",
	}, nil, nil)
	return b
}

func presetSpec(value string) (rules v1alpha1.PresetRules) {
	rules.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{"gpu.fettle.dev"}}
	rules.Env = []v1alpha1.PresetEnv{{Name: "A", Value: &value}}
	return rules
}

func clusterPreset(name, value string) *v1alpha1.ClusterDevicePreset {
	p := &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
	p.Spec.PresetRules = presetSpec(value)
	return p
}

func ownPreset(name, value string) *v1alpha1.DevicePreset {
	p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("team/" + name), Generation: 1}}
	p.Spec.PresetRules = presetSpec(value)
	return p
}

// reconciled says what the conditions are afterwards, and when the next look is.
func (b *presetBench) reconciled(t *testing.T, object client.Object) (string, time.Duration) {
	t.Helper()
	key := client.ObjectKeyFromObject(object)
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.client.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	status := presetStatus(object)
	if status.ObservedGeneration != object.GetGeneration() {
		t.Errorf("%s: observed generation %d, want %d", key, status.ObservedGeneration, object.GetGeneration())
	}
	var texts []string
	for _, kind := range []string{v1alpha1.ConditionValid, v1alpha1.ConditionConflicting} {
		if c := meta.FindStatusCondition(status.Conditions, kind); c != nil {
			texts = append(texts, string(c.Status)+" "+c.Reason)
		}
	}
	return strings.Join(texts, ", "), result.RequeueAfter
}

func presetStatus(object client.Object) v1alpha1.DevicePresetStatus {
	switch p := object.(type) {
	case *v1alpha1.DevicePreset:
		return p.Status
	case *v1alpha1.ClusterDevicePreset:
		return p.Status
	}
	return v1alpha1.DevicePresetStatus{}
}

// told returns the Events since the last call, by type and reason, and the presets that are queued again.
func (b *presetBench) told() (out []string) {
	for len(b.events) > 0 {
		words := strings.Fields(<-b.events)
		out = append(out, words[0]+" "+words[1])
	}
	for len(b.again) > 0 {
		out = append(out, "again "+client.ObjectKeyFromObject((<-b.again).Object).String())
	}
	slices.Sort(out)
	return out
}

// TestPresetsCollide: both presets report a conflict when it begins, and the remaining one when it ends.
func TestPresetsCollide(t *testing.T) {
	first, second := clusterPreset("a", "x"), clusterPreset("b", "y")
	b := newPresetBench(t, first)
	expect := func(what string, object client.Object, want string, told ...string) {
		t.Helper()
		got, next := b.reconciled(t, object)
		if got != want || next != 0 {
			t.Errorf("%s: %s, next look in %v; want %s", what, got, next, want)
		}
		if diff := gocmp.Diff(told, b.told()); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", what, diff)
		}
	}
	expect("alone", first, "True Valid, False NoConflict")
	if err := b.client.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	expect("another", second, "True Valid, True Overlaps", "Warning Overlaps", "again /a")
	expect("the first, again", first, "True Valid, True Overlaps", "Warning Overlaps")
	if c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionConflicting); !strings.Contains(c.Message,
		"variable A: ClusterDevicePreset b says something else, and the other wins") {
		t.Errorf("message %q", c.Message)
	}
	version, patches := first.ResourceVersion, b.patches
	b.clock.Step(time.Hour)
	if expect("nothing changed", first, "True Valid, True Overlaps"); first.ResourceVersion != version || b.patches != patches {
		t.Error("written although nothing changed")
	}
	if err := b.client.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(second)}); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"again /a"}, b.told()); diff != "" {
		t.Errorf("deleted: told (-want +got):\n%s", diff)
	}
	expect("alone again", first, "True Valid, False NoConflict", "Normal NoConflict")
	first.Generation, first.Spec.DeviceSelector.CEL = 2, "x ="
	if err := b.client.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	patches = b.patches
	if expect("CEL does not compile", first, "False Invalid, Unknown NotValid", "Warning Invalid"); b.patches != patches+1 {
		t.Errorf("%d writes, want one", b.patches-patches)
	}
}

// TestPresetClaims: what nodes say is added up.
func TestPresetClaims(t *testing.T) {
	preset, own := clusterPreset("a", "x"), ownPreset("a", "x")
	node := func(name string, presets ...v1alpha1.NodePreset) *v1alpha1.AcceleratorNode {
		return &v1alpha1.AcceleratorNode{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.AcceleratorNodeStatus{Presets: presets},
		}
	}
	b := newPresetBench(t, preset, own, node("n1", v1alpha1.NodePreset{Name: "a", Claims: 2}),
		node("n2", v1alpha1.NodePreset{Name: "a", Claims: 3}, v1alpha1.NodePreset{Namespace: "team", Name: "a", Claims: 1}), node("n3"))
	for object, want := range map[client.Object][2]int32{preset: {5, 2}, own: {1, 1}} {
		b.reconciled(t, object)
		if s := presetStatus(object); *s.Claims != want[0] || *s.Nodes != want[1] {
			t.Errorf("%T: %d claims on %d nodes, want %v", object, *s.Claims, *s.Nodes, want)
		}
	}
}

// TestPresetGrants: there is a Role while a valid preset names ConfigMaps, it is of these, and where it cannot be made the condition says
// what to change.
func TestPresetGrants(t *testing.T) {
	preset := ownPreset("a", "x")
	b := newPresetBench(t, preset)
	granted := func() string {
		t.Helper()
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		key := client.ObjectKey{Namespace: "team", Name: "fettle.dev:devicepreset:a"}
		err, err2 := b.client.Get(t.Context(), key, &role), b.client.Get(t.Context(), key, &binding)
		if apierrors.IsNotFound(err) && apierrors.IsNotFound(err2) {
			return ""
		}
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		s, owner := binding.Subjects[0], role.OwnerReferences[0]
		if s.Namespace != "fettle-system" || s.Name != names.PluginAccount || owner.UID != preset.UID {
			t.Errorf("bound to %+v, of %+v", s, owner)
		}
		return fmt.Sprint(role.Rules[0].Verbs, role.Rules[0].Resources, role.Rules[0].ResourceNames)
	}
	step := func(what string, want, wantRole string, wantNext time.Duration, change func()) {
		t.Helper()
		if change != nil {
			change()
			preset.Generation++
			if err := b.client.Update(t.Context(), preset); err != nil {
				t.Fatal(err)
			}
		}
		got, next := b.reconciled(t, preset)
		if got != want || granted() != wantRole || next < wantNext || float64(next) > float64(wantNext)*(1+reconciler.Jitter) {
			t.Errorf("%s: %s, Role %q, next look in %v; want %s, %q, %v", what, got, granted(), next, want, wantRole, wantNext)
		}
	}
	const well = "True Valid, False NoConflict"
	from := func(names ...string) func() {
		return func() {
			preset.Spec.EnvFrom = nil
			for _, name := range names {
				preset.Spec.EnvFrom = append(preset.Spec.EnvFrom, v1alpha1.PresetEnvFrom{ConfigMapRef: v1alpha1.PresetConfigMap{Name: name}})
			}
		}
	}
	step("none named", well, "", 0, nil)
	b.refuse = true
	step("not allowed", "False ConfigMapsNotGranted, False NoConflict", "", grantRetry, from("m"))
	m := preset.Status.Conditions[0].Message
	if !strings.Contains(m, "namespace team") || !strings.Contains(m, "presets.configMapNamespaces") {
		t.Errorf("message %q", m)
	}
	b.refuse = false
	step("allowed", well, "[get] [configmaps] [m]", grantInterval, nil)
	step("two", well, "[get] [configmaps] [m n]", grantInterval, from("n", "m", "n"))
	if diff := gocmp.Diff([]string{"Normal Valid", "Warning ConfigMapsNotGranted"}, b.told()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	b.shares.Note("team", "large", 2*v1alpha1.MaxPresetsSize)
	step("more than the namespace may have", "False Invalid, Unknown NotValid", "", 0, nil)
	b.shares.Forget("team", "large")
	step("as much as it may have", well, "[get] [configmaps] [m n]", grantInterval, nil)
	step("not valid", "False Invalid, Unknown NotValid", "", 0, func() { preset.Spec.Env[0].Name = "1" })
	step("valid again", well, "[get] [configmaps] [m n]", grantInterval, func() { preset.Spec.Env[0].Name = "A" })
	step("none any more", well, "", 0, from())
}

// TestChangedPresetCounts: only the presets whose counts on a node changed are queued.
func TestChangedPresetCounts(t *testing.T) {
	node := func(presets ...v1alpha1.NodePreset) *v1alpha1.AcceleratorNode {
		return &v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{Presets: presets}}
	}
	a, a2 := v1alpha1.NodePreset{Name: "a", Claims: 1}, v1alpha1.NodePreset{Name: "a", Claims: 2}
	own := v1alpha1.NodePreset{Namespace: "team", Name: "a", Claims: 1}
	for _, test := range []struct {
		name        string
		before, now *v1alpha1.AcceleratorNode
		want        []string
	}{
		{"a node comes", nil, node(a, own), []string{"/a", "team/a"}},
		{"a node goes", node(own), nil, []string{"team/a"}},
		{"a claim more", node(a, own), node(a2, own), []string{"/a"}},
		{"one comes, one goes", node(a), node(own), []string{"/a", "team/a"}},
		{"something else changes", node(a), node(a), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var q later
			h := onCounts(nil)
			switch {
			case test.before == nil:
				h.Create(t.Context(), event.CreateEvent{Object: test.now}, &q)
			case test.now == nil:
				h.Delete(t.Context(), event.DeleteEvent{Object: test.before}, &q)
			default:
				h.Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}, &q)
			}
			slices.SortFunc(q.keys, cmp.Compare[string])
			if diff := gocmp.Diff(test.want, q.keys); diff != "" {
				t.Errorf("queued (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMissingIsAnnounced: once a change, by an Event and by the metric.
func TestMissingIsAnnounced(t *testing.T) {
	classes := deviceclasses.Classes(deviceclasses.Options{})
	class := classes[slices.IndexFunc(classes, func(c *resourceapi.DeviceClass) bool { return c.Name == "gpu.fettle.dev" })]
	preset := clusterPreset("nvidia", "x")
	preset.Spec.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libcuda.so.1"}}}
	node := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	b := newPresetBench(t, class, node)
	r := newMissingPresetReconciler(b.Services)
	expect := func(what string, lacks float64, told ...string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(told, b.told()); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", what, diff)
		}
		if got := testutil.ToFloat64(r.missing.WithLabelValues(class.Name)); got != lacks {
			t.Errorf("%s: metric %v, want %v", what, got, lacks)
		}
	}
	expect("no such devices", 0)
	node.Status.Vendors = []v1alpha1.VendorStatus{{Name: "nvidia", Devices: 1}}
	if err := b.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	expect("devices", 1, "Warning PresetMissing")
	expect("the same", 1)
	if err := b.client.Create(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	expect("a preset", 0)
	if err := b.client.Delete(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	expect("none again", 1, "Warning PresetMissing")
	if err := b.client.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(r.missing); n != 0 || len(r.announced) != 0 {
		t.Errorf("%d metrics and %v are left of a class that is gone", n, r.announced)
	}
}

// TestVendorsChanged: a node whose counts of claims changed queues no class.
func TestVendorsChanged(t *testing.T) {
	node := func(devices int32, vendors ...string) *v1alpha1.AcceleratorNode {
		n := &v1alpha1.AcceleratorNode{}
		for _, name := range vendors {
			n.Status.Vendors = append(n.Status.Vendors, v1alpha1.VendorStatus{Name: name, Devices: devices})
		}
		return n
	}
	for _, test := range []struct {
		before, now *v1alpha1.AcceleratorNode
		want        bool
	}{
		{node(1, "amd"), node(2, "amd"), false},
		{node(1, "amd"), node(1, "amd", "nvidia"), true},
		{node(1, "amd"), node(1, "nvidia"), true},
		{node(1, "amd"), node(1), true},
	} {
		if got := vendorsChanged().Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}); got != test.want {
			t.Errorf("from %v to %v: %v, want %v", test.before.Status.Vendors, test.now.Status.Vendors, got, test.want)
		}
	}
}

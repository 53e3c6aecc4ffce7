// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/bitstreams"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/pause"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

const ownNamespace = "fettle-system"

// installed is a cluster with everything that an uninstall deletes, and with objects of others beside it. Its API server, plugins and
// controller are models: a plugin retires when it is asked to, and makes its AcceleratorNode again if that is gone for long.
type installed struct {
	client.WithWatch
	definitions []crd.Definition
	// undefined are the CRDs that were deleted.
	undefined map[string]bool
	// retired are the annotations that plugins retired by.
	retired map[string]string
}

// shipped are the chart's CRDs, of which this test knows no more than their names.
func shipped(t *testing.T) (out []crd.Definition) {
	t.Helper()
	definitions, err := crd.Load(crds.Files)
	check.Must(t, err)
	for _, d := range definitions {
		out = append(out, crd.Definition{Name: d.Name})
	}
	return out
}

func install(t *testing.T, definitions []crd.Definition) *installed {
	t.Helper()
	// The kinds that an uninstall reads and writes, and no more: the fake client goes through all of them for each object that it writes.
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, resourceapi.AddToScheme, schedulingv1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme,
		apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		check.Must(t, add(scheme))
	}
	var objects []client.Object
	for _, name := range []string{"a", "b", "admin"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Labels = map[string]string{"theirs": "1", stack.KMMLabel("drivers-before", stack.ModuleName("s")): "1"}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.TaintsAnnotation, "gpu=:NoSchedule")
		for _, key := range []string{"theirs", "gpu"} {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		objects = append(objects, node, &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	ours := map[string]string{names.ManagedByLabel: names.Controller}
	bitstream := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "theirs", UID: "theirs"}}
	bitstream.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "left"}}
	slice.Spec.Driver = v1alpha1.DriverName
	objects = append(
		objects, bitstream, slice,
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.fettle.dev", Labels: ours}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent", Labels: ours}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, Name: names.TLSSecret}},
		shippedpresets.Presets([]string{"nvidia"})[0],
	)
	for _, d := range definitions {
		objects = append(objects, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: d.Name}})
	}
	bySlice := func(o client.Object) []string { return []string{o.(*resourceapi.ResourceSlice).Spec.Driver} }
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, bySlice).Build()
	all, err := pairs.Bitstreams(t.Context(), c, pairs.OfNamespaces)
	check.Must(t, err)
	request := bitstreams.Head(all[0], ownNamespace).Grant()
	check.Must(t, grant.NewWriter(c, c, ownNamespace).Ensure(t.Context(), request))
	w := &installed{WithWatch: c, definitions: definitions, undefined: map[string]bool{}, retired: map[string]string{}}
	w.retireByAdmin(t, "admin")
	return w
}

func (w *installed) retireByAdmin(t *testing.T, name string) {
	t.Helper()
	var a v1alpha1.AcceleratorNode
	check.Must(t, w.Get(t.Context(), client.ObjectKey{Name: name}, &a))
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, v1alpha1.RetireAnnotation, v1alpha1.RetireByAdmin)
	check.Must(t, w.Update(t.Context(), &a))
	w.plugins(t.Context())
}

// plugins has the plugin of each node follow the annotation of its AcceleratorNode.
func (w *installed) plugins(ctx context.Context) {
	var list v1alpha1.AcceleratorNodeList
	if err := w.List(ctx, &list); err != nil {
		panic(err)
	}
	for i := range list.Items {
		a := &list.Items[i]
		if w.retired[a.Name] = a.Annotations[v1alpha1.RetireAnnotation]; w.retired[a.Name] == "" {
			continue
		}
		if meta.SetStatusCondition(&a.Status.Conditions, retiredCondition()) {
			if err := w.Update(ctx, a); err != nil {
				panic(err)
			}
		}
	}
}

func retiredCondition() metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionRetired, Status: metav1.ConditionTrue, Reason: "Asked"}
}

// later has what runs on do its work after an uninstall ended: plugins make AcceleratorNodes again, and the controller takes retirements
// back as far as no uninstall is under way.
func (w *installed) later(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	time.Sleep(5 * time.Minute)
	if !w.undefined[nodeDefinition] {
		for name, value := range w.retired {
			a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, v1alpha1.RetireAnnotation, value)
			if err := w.Create(ctx, a); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	row := nodes.New(reconciler.Services{
		Client: w.WithWatch, Live: w.WithWatch, Clock: clock.RealClock{}, Namespace: ownNamespace,
		Pause: (&pause.Reader{Live: w.WithWatch, Namespace: ownNamespace, Clock: clock.RealClock{}}).Remaining,
	})
	for name := range w.retired {
		_, err := row.Queues[0].Reconciler.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		check.Must(t, err)
	}
	w.plugins(ctx)
}

// retiredStill says which nodes do not serve, the one of the administrator left out.
func (w *installed) retiredStill(t *testing.T) (out []string) {
	t.Helper()
	if w.retired["admin"] != v1alpha1.RetireByAdmin {
		t.Errorf("the node that its administrator retired has %q", w.retired["admin"])
	}
	for name, value := range w.retired {
		if value != "" && name != "admin" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// left lists what an uninstall should have deleted, and what of others it should not have.
func (w *installed) left(t *testing.T) (out []string) {
	t.Helper()
	scheme := w.Scheme()
	for _, list := range []client.ObjectList{
		&v1alpha1.AcceleratorNodeList{}, &resourceapi.ResourceSliceList{}, &resourceapi.DeviceClassList{}, &schedulingv1.PriorityClassList{},
		&rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &v1alpha1.ClusterDevicePresetList{}, &corev1.SecretList{},
		&apiextensionsv1.CustomResourceDefinitionList{},
	} {
		check.Must(t, w.List(t.Context(), list))
		kind, err := apiutil.GVKForObject(list, scheme)
		check.Must(t, err)
		check.Must(t, meta.EachListItem(list, func(o runtime.Object) error {
			if name := o.(client.Object).GetName(); name != "theirs" {
				out = append(out, strings.TrimSuffix(kind.Kind, "List")+" "+name)
			}
			return nil
		}))
	}
	var all corev1.NodeList
	check.Must(t, w.List(t.Context(), &all))
	for _, n := range all.Items {
		if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "theirs" || len(n.Annotations) > 0 || len(n.Labels) != 1 ||
			n.Labels["theirs"] == "" {
			out = append(out, fmt.Sprintf("Node %s: %v %v %v", n.Name, n.Spec.Taints, n.Annotations, n.Labels))
		}
	}
	for _, o := range []client.Object{&resourceapi.DeviceClass{}, &schedulingv1.PriorityClass{}} {
		check.Must(t, w.Get(t.Context(), client.ObjectKey{Name: "theirs"}, o))
	}
	return out
}

// run uninstalls once, with the faults of the client.
func (w *installed) run(t *testing.T, f *faults) error {
	t.Helper()
	f.world = w
	return Uninstall{
		Client: f.client(w.WithWatch), Recorder: events.NewFakeRecorder(10), Clock: clock.RealClock{}, Namespace: ownNamespace,
		Timeout: time.Minute, CRDs: w.definitions,
	}.Run(t.Context())
}

// faults are those of one run's requests. Each request counts, and the right that it needs is noted.
type faults struct {
	// kill is the number of the write after which the process ends, 0: none.
	kill int
	// refuse is the number of the write that the API server refuses once, 0: none.
	refuse int
	// forbidden is the right that the account lacks, "VERB KIND".
	forbidden string

	world *installed

	// mu: the Lease is renewed beside all else.
	mu     sync.Mutex
	writes int
	rights []string
	dead   bool
}

var errKilled = errors.New("the process was killed")

func (f *faults) do(ctx context.Context, o runtime.Object, verb string, write bool, request func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind, err := apiutil.GVKForObject(o, f.world.Scheme())
	if err != nil {
		return err
	}
	right := verb + " " + strings.TrimSuffix(kind.Kind, "List")
	if f.rights = append(f.rights, right); f.dead {
		return errKilled
	}
	resource := schema.GroupResource{Group: kind.Group, Resource: strings.ToLower(strings.TrimSuffix(kind.Kind, "List")) + "s"}
	switch {
	case right == f.forbidden:
		return apierrors.NewForbidden(resource, "", errors.New("no such right"))
	case f.world.undefined[resource.String()]:
		return apierrors.NewNotFound(resource, "")
	case !write:
		return request()
	}
	f.writes++
	f.dead = f.writes == f.kill
	if f.writes == f.refuse {
		return apierrors.NewInternalError(errors.New("refused once"))
	}
	err = request()
	f.world.follow(ctx, o, verb, err)
	if f.dead {
		return errKilled
	}
	return err
}

// follow has the cluster follow a write.
func (w *installed) follow(ctx context.Context, o runtime.Object, verb string, err error) {
	if d, is := o.(*apiextensionsv1.CustomResourceDefinition); is && verb == "delete" && err == nil {
		w.undefined[d.Name] = true
		list := []client.Object{&v1alpha1.AcceleratorNode{}, &v1alpha1.FPGABitstream{}, &v1alpha1.ClusterDevicePreset{}}
		for _, of := range list {
			if strings.HasPrefix(d.Name, strings.ToLower(reflect.TypeOf(of).Elem().Name())+"s.") {
				err = w.DeleteAllOf(ctx, of, client.InNamespace(""))
			}
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return
	}
	w.plugins(ctx)
}

func (f *faults) client(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return f.do(ctx, o, "get", false, func() error { return c.Get(ctx, k, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			return f.do(ctx, o, "list", false, func() error { return c.List(ctx, o, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return f.do(ctx, o, "create", true, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return f.do(ctx, o, "update", true, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return f.do(ctx, o, "patch", true, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return f.do(ctx, o, "delete", true, func() error { return c.Delete(ctx, o, opts...) })
		},
	})
}

// TestInterrupted: wherever an uninstall is killed, fails or lacks a right, its nodes serve again if nobody tries again, and the next one
// leaves the cluster clean, at once or later.
func TestInterrupted(t *testing.T) {
	whole, definitions := &faults{}, shipped(t)
	synctest.Test(t, func(t *testing.T) {
		w := install(t, definitions)
		check.Must(t, w.run(t, whole))
		if left := w.left(t); len(left) > 0 {
			t.Errorf("an uninstall without a fault leaves %q", left)
		}
	})
	if whole.writes < 20 {
		t.Fatalf("the uninstall took %d writes: not all were seen", whole.writes)
	}
	cases := map[string]func() *faults{}
	for n := 1; n <= whole.writes; n++ {
		cases[fmt.Sprintf("killed after write %d", n)] = func() *faults { return &faults{kill: n} }
		cases[fmt.Sprintf("write %d refused", n)] = func() *faults { return &faults{refuse: n} }
	}
	slices.Sort(whole.rights)
	for _, right := range slices.Compact(whole.rights) {
		cases["may not "+right] = func() *faults { return &faults{forbidden: right} }
	}
	for name, fault := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { interrupted(t, definitions, fault(), true) })
			synctest.Test(t, func(t *testing.T) { interrupted(t, definitions, fault(), false) })
		})
	}
}

// interrupted uninstalls with a fault, and again without: at once, or after the release went on.
func interrupted(t *testing.T, definitions []crd.Definition, fault *faults, goesOn bool) {
	t.Helper()
	w := install(t, definitions)
	first := w.run(t, fault)
	if first == nil {
		if left := w.left(t); len(left) > 0 && !onlyRoles(left) {
			t.Errorf("the uninstall succeeded and left %q", left)
		}
		return
	}
	if early := evidenceGone(w.left(t)); early != "" {
		t.Errorf("after %v: %s", first, early)
	}
	if goesOn {
		w.later(t)
		if still := w.retiredStill(t); len(still) > 0 && len(w.left(t)) > 0 {
			t.Errorf("after %v: nodes %q are still retired, and there are %q", first, still, w.left(t))
		}
	}
	if err := w.run(t, &faults{}); err != nil {
		t.Fatalf("after %v, the second uninstall: %v", first, err)
	}
	if left := w.left(t); len(left) > 0 {
		t.Errorf("after %v, the second uninstall leaves %q", first, left)
	}
}

// evidenceGone says that an AcceleratorNode is gone, by which a node would serve again, while something else is there. Empty: it is not so.
func evidenceGone(left []string) string {
	kept, others := 0, 0
	for _, s := range left {
		switch {
		case strings.HasPrefix(s, "AcceleratorNode "):
			kept++
		case s != "CustomResourceDefinition "+nodeDefinition:
			others++
		}
	}
	if others > 0 && kept < 3 {
		return fmt.Sprintf("%d AcceleratorNodes are left, before all else is gone: %q", kept, left)
	}
	return ""
}

// onlyRoles says whether nothing is left but Roles that an uninstall may not read: their namespace is not the chart's any more.
func onlyRoles(left []string) bool {
	return !slices.ContainsFunc(left, func(s string) bool { return !strings.HasPrefix(s, "Role") })
}

// TestInterruptedOften: several faults in a row, and at last an uninstall without one.
func TestInterruptedOften(t *testing.T) {
	random, definitions := seed.New(t), shipped(t)
	rights := []string{
		"list Node", "patch Node", "delete DeviceClass", "delete AcceleratorNode", "list PriorityClass", "delete Secret", "update Lease",
	}
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			w := install(t, definitions)
			for range 1 + random.IntN(4) {
				f := &faults{kill: random.IntN(30), refuse: random.IntN(30)}
				if random.IntN(3) == 0 {
					f.forbidden = rights[random.IntN(len(rights))]
				}
				err := w.run(t, f)
				if random.IntN(2) == 0 {
					continue
				}
				w.later(t)
				if still := w.retiredStill(t); err != nil && len(still) > 0 && len(w.left(t)) > 0 {
					t.Fatalf("after %v: nodes %q are still retired, and there are %q", err, still, w.left(t))
				}
			}
			check.Must(t, w.run(t, &faults{}))
			if left := w.left(t); len(left) > 0 {
				t.Errorf("the last uninstall leaves %q", left)
			}
		})
	}
}

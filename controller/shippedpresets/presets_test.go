// SPDX-License-Identifier: Apache-2.0

package shippedpresets

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestShippedPresets: each is valid, for the devices of its vendor and no others, and needs nothing of the node but NVIDIA's driver.
func TestShippedPresets(t *testing.T) {
	t.Parallel()
	devices := map[string]*preset.Device{}
	for name, attributes := range map[string][]string{
		"nvidia": {"vendor", "nvidia", "type", "gpu"}, "amd": {"vendor", "amd", "type", "gpu"}, "intel": {"vendor", "intel", "type", "gpu"},
		"xrt": {"vendor", "amd", "type", "fpga", "backend", "xrt"}, "opae": {"vendor", "intel", "type", "fpga", "backend", "dfl"},
		"nvidia mig": {"vendor", "nvidia", "type", "mig"}, "amd partition": {"vendor", "amd", "type", "partition"},
		"amd vf": {"vendor", "amd", "type", "vf"}, "intel vf": {"vendor", "intel", "type", "vf"},
		"vfio": {"vendor", "nvidia", "type", "vfio"}, "amd's vfio": {"vendor", "amd", "type", "vfio"},
		"zynq": {"vendor", "amd", "type", "fpga", "backend", "fpga_manager"}, "host": {"type", "host"}, "gone": {},
	} {
		d := &preset.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		for pair := range slices.Chunk(attributes, 2) {
			d.Attributes[resourceapi.QualifiedName(pair[0])] = resourceapi.DeviceAttribute{StringValue: &pair[1]}
		}
		devices[name] = d
	}
	var conditions preset.Conditions
	shipped := Presets(append(Vendors(), "unknown", "nvidia"))
	if len(shipped) != 5 {
		t.Fatalf("%d presets, want 5", len(shipped))
	}
	for _, p := range shipped {
		if !AsShipped(p) {
			t.Errorf("%s is not as shipped", p.Name)
		}
		taken := preset.Of(p.Common())
		if faults := taken.Faults(&conditions); len(faults) > 0 {
			t.Errorf("%s: %v", p.Name, faults.ToAggregate())
		}
		for name, d := range devices {
			got, err := conditions.Holds(t.Context(), p.Spec.DeviceSelector.CEL, v1alpha1.DriverName, d)
			maker, _, _ := strings.Cut(name, " ")
			if want := p.Name == maker+".fettle.dev"; err != nil || got != want {
				t.Errorf("%s is for %s: %v, %v", p.Name, name, got, err)
			}
		}
		needs := p.Spec.Driver != nil && !p.Spec.Driver.Optional
		for _, f := range slices.Concat(p.Spec.Libraries, p.Spec.Tools) {
			needs = needs || !f.Optional
		}
		for _, m := range p.Spec.Mounts {
			needs = needs || !m.Optional
		}
		if needs != (p.Name == "nvidia.fettle.dev") {
			t.Errorf("%s needs something of the node: %v", p.Name, needs)
		}
	}
}

// shippedWorld is a cluster, and a controller that ships some vendors' presets.
type shippedWorld struct {
	t *testing.T
	client.Client
	pause time.Duration
}

func newShippedWorld(t *testing.T, objects ...client.Object) *shippedWorld {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return &shippedWorld{t: t, Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

func (w *shippedWorld) remaining(context.Context) (time.Duration, error) { return w.pause, nil }

// reconcile looks at one preset with the vendors that are wanted, and returns what is there then.
func (w *shippedWorld) reconcile(name string, vendors ...string) *v1alpha1.ClusterDevicePreset {
	w.t.Helper()
	r := New(reconciler.Services{Client: w.Client}, vendors).Queues[0].Handler(w.remaining)
	if _, err := r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}); err != nil {
		w.t.Fatal(err)
	}
	var live v1alpha1.ClusterDevicePreset
	err := w.Get(w.t.Context(), types.NamespacedName{Name: name}, &live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return &live
}

// older is a preset as another version shipped it.
func older(vendor string) *v1alpha1.ClusterDevicePreset {
	p := Presets([]string{vendor})[0]
	p.Spec.Priority = -5
	p.Annotations[Annotation] = SpecHash(&p.Spec)
	p.Labels["team"] = "ml"
	return p
}

func TestShippedReconcile(t *testing.T) {
	t.Parallel()
	const name = "amd.fettle.dev"
	edited := func() *v1alpha1.ClusterDevicePreset {
		p := older("amd")
		p.Spec.Priority = 7
		return p
	}
	released := func() *v1alpha1.ClusterDevicePreset {
		p := older("amd")
		delete(p.Labels, names.ManagedByLabel)
		return p
	}
	shipped := int32(priority)
	for test, tc := range map[string]struct {
		there   *v1alpha1.ClusterDevicePreset
		vendors []string
		pause   time.Duration
		want    *int32 // its priority; nil: there is none
	}{
		"made":             {nil, []string{"amd"}, 0, &shipped},
		"not wanted":       {nil, []string{"nvidia"}, 0, nil},
		"follows":          {older("amd"), []string{"amd"}, 0, &shipped},
		"taken away":       {older("amd"), nil, 0, nil},
		"edited":           {edited(), []string{"amd"}, 0, new(int32(7))},
		"edited, unwanted": {edited(), nil, 0, new(int32(7))},
		"released":         {released(), []string{"amd"}, 0, new(int32(-5))},
		"uninstalling":     {nil, []string{"amd"}, time.Minute, nil},
	} {
		t.Run(test, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if tc.there != nil {
				objects = append(objects, tc.there)
			}
			w := newShippedWorld(t, objects...)
			w.pause = tc.pause
			var got *int32
			live := w.reconcile(name, tc.vendors...)
			if live != nil {
				got = &live.Spec.Priority
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("priority (-want +got):\n%s", diff)
			}
			if tc.there != nil && live != nil && live.Labels["team"] != "ml" {
				t.Error("an administrator's label is gone")
			}
			if test == "follows" && !AsShipped(live) {
				t.Error("it counts as edited now")
			}
		})
	}
}

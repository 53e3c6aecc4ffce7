// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// whole returns a value of a type, of which every member of its JSON is there.
func whole[T any]() *T {
	out := new(T)
	fill(reflect.ValueOf(out).Elem())
	return out
}

func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes([]byte("{}"))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				fill(field)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

// TestStoredFormats holds the JSON of the steps in records, and of what steps keep beside them. The plugin of another version reads it
// after an upgrade and after the way back. Members may be added, if versions that do not know them can do without. A member that is
// renamed or removed is lost for every claim of the other version.
func TestStoredFormats(t *testing.T) {
	written, err := cdi.Step(*whole[cdi.Spec]())
	check.Must(t, err)
	steps := map[string]any{
		cdi.StepKind: written.Params, hostdir.StepKind: whole[hostdir.Params](), cachemount.StepKind: whole[cachemount.Use](),
		pin.StepKind: whole[pin.Params](), region.ProgramKind: whole[region.Program](), region.ScrubKind: whole[region.Scrub](),
		region.ParamsKind: whole[region.Params](), vfio.StepKind: whole[vfio.Params](), amdmode.StepKind: whole[amdmode.Params](),
		mig.Kind: whole[mig.Partition](), mig.ModeKind: whole[mig.Mode](), timeslice.StepKind: whole[timeslice.Params](),
		computemode.StepKind: whole[computemode.Params](), mps.StepKind: whole[mps.Params](),
	}
	for _, m := range []hostmount.Mount{
		{Copy: &hostmount.Copy{Below: "/opt", Path: "team", Recursive: true, ReadOnly: true}}, {Scratch: &hostmount.Scratch{Bytes: 4096}},
	} {
		_, mount, err := hostmount.In("/mounts", "/").Plan("claim", "key", m)
		check.Must(t, err)
		before, _ := steps[hostmount.StepKind].([]json.RawMessage)
		steps[hostmount.StepKind] = append(before, mount.Params)
	}
	if known := slices.Sorted(maps.Keys(stepKinds(t))); !slices.Equal(known, slices.Sorted(maps.Keys(steps))) {
		t.Errorf("the plugin has steps of the kinds %q, and this test has %q", known, slices.Sorted(maps.Keys(steps)))
	}
	steps[sriov.StepKind] = whole[sriov.Params]() // a policy's, not a claim's
	steps["a restore point"] = whole[restorepoint.Point]()
	steps["an instance of a GPU"] = whole[mig.Held]()
	steps["the content of a region"] = whole[region.Content]()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		data, err := json.MarshalIndent(steps[name], "", "  ")
		check.Must(t, err)
		fmt.Fprintf(&text, "%s\n%s\n", name, data)
	}
	check.Golden(t, "testdata/stored.txt", text.String())
}

// stepKinds are all that the plugin knows.
func stepKinds(t *testing.T) step.Kinds {
	t.Helper()
	dir := t.TempDir()
	p, err := New(t.Context(), Config{
		Node: nodefixture.Node, Namespace: "fettle-system", HostRoot: nodefixture.Expand(t, "empty"), PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "s"), HTTPAddress: "127.0.0.1:0",
		File: nodeconfig.File{}.WithDefaults(),
	}, Clients{Kube: fake.NewClientset(), Dynamic: noObjects(t), Events: events.NewFakeRecorder(1)}, "boot-1")
	check.Must(t, err)
	t.Cleanup(p.engine.Stop)
	kinds := step.Kinds{cdi.StepKind: {}}
	for _, f := range p.features.list() {
		maps.Copy(kinds, f.Kinds())
	}
	return kinds
}

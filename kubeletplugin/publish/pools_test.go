// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestPools: no empty pool is beside a filled one, and a node without devices has a single empty one.
func TestPools(t *testing.T) {
	gpu, region, ssd := nodefixture.GPU("g0", 0), regionOf("r0", "0000:3b:00.0"), nodefixture.SSD("s0")
	part := gpu
	part.Card = "g0"
	withheld := nodefixture.SnapshotWith(gpu, ssd)
	withheld.Withheld["g0"] = "the driver is quiesced"
	empty := nodefixture.SnapshotWith(gpu)
	empty.Withheld["g0"] = "the driver is quiesced"
	wide := nodefixture.SnapshotWith(part, ssd)
	wide.Counters, wide.Cards = partition.FormCombined, []device.Card{{Name: "g0", Counters: counters(1000)}}
	for name, tt := range map[string]struct {
		snapshot *inventory.Snapshot
		want     map[string]int
	}{
		"nothing":                         {nodefixture.SnapshotWith(), map[string]int{"gpu": 0}},
		"a GPU":                           {nodefixture.SnapshotWith(gpu), map[string]int{"gpu": 1}},
		"a region":                        {nodefixture.SnapshotWith(region), map[string]int{"fpga": 1}},
		"a directory":                     {nodefixture.SnapshotWith(ssd), map[string]int{"host": 1}},
		"all":                             {nodefixture.SnapshotWith(ssd, region, gpu), map[string]int{"fpga": 1, "gpu": 1, "host": 1}},
		"a GPU that is withheld":          {empty, map[string]int{"gpu": 0}},
		"one beside a directory":          {withheld, map[string]int{"host": 1}},
		"a card without room in the form": {wide, map[string]int{"host": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]int{}
			for pool, content := range Resources(nodefixture.Node, tt.snapshot).Pools {
				_, kind, _ := strings.Cut(pool, "/")
				got[kind] = 0
				for _, s := range content.Slices {
					got[kind] += len(s.Devices)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("devices of pools (-want +got):\n%s", diff)
			}
			if !UpToDate(nodefixture.Node, tt.snapshot, published(tt.snapshot)) {
				t.Error("what was published is not up to date")
			}
		})
	}
}

func counters(n int) map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for i := range n {
		out[fmt.Sprintf("c%d", i)] = resourceapi.Counter{}
	}
	return out
}

// TestPoolsComeAndGo: kubelet's helper deletes the empty pools of a former version, and the slices of a pool that becomes empty.
func TestPoolsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpu, region, ssd := nodefixture.GPU("g0", 0), regionOf("r0", "0000:3b:00.0"), nodefixture.SSD("s0")
		api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Node, UID: "node"}})
		made := 0
		api.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			s, _ := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
			made++
			s.Name, s.ResourceVersion = fmt.Sprintf("%s%d", s.GenerateName, made), fmt.Sprint(made)
			return false, nil, nil
		})
		for _, pool := range []string{"fpga", "gpu", "host"} {
			s := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "0-" + v1alpha1.DriverName + "-" + pool, ResourceVersion: "0"},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: v1alpha1.DriverName, NodeName: new(nodefixture.Node), Devices: []resourceapi.Device{},
					Pool: resourceapi.ResourcePool{Name: nodefixture.Node + "/" + pool, Generation: 1, ResourceSliceCount: 1},
				},
			}
			_, err := api.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
			check.Must(t, err)
		}
		first := Resources(nodefixture.Node, nodefixture.SnapshotWith(gpu))
		controller, err := resourceslice.StartController(t.Context(), resourceslice.Options{
			DriverName: v1alpha1.DriverName, KubeClient: api, Resources: &first,
			Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: nodefixture.Node},
		})
		check.Must(t, err)
		defer controller.Stop()
		time.Sleep(time.Minute)
		wantPools(t, api, "after the upgrade", map[string]int{"gpu": 1})
		for _, step := range []struct {
			devices []device.Device
			want    map[string]int
		}{
			{[]device.Device{ssd, region}, map[string]int{"fpga": 1, "host": 1}},
			{nil, map[string]int{"gpu": 0}},
			{[]device.Device{ssd}, map[string]int{"host": 1}},
			{[]device.Device{gpu, ssd}, map[string]int{"gpu": 1, "host": 1}},
		} {
			resources := Resources(nodefixture.Node, nodefixture.SnapshotWith(step.devices...))
			controller.Update(&resources)
			synctest.Wait()
			wantPools(t, api, fmt.Sprintf("with %d devices", len(step.devices)), step.want)
		}
	})
}

func wantPools(t *testing.T, api *fake.Clientset, when string, want map[string]int) {
	t.Helper()
	list, err := api.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	check.Must(t, err)
	got := map[string]int{}
	for i := range list.Items {
		_, kind, _ := strings.Cut(list.Items[i].Spec.Pool.Name, "/")
		got[kind] += len(list.Items[i].Spec.Devices)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, devices of pools (-want +got):\n%s", when, diff)
	}
}

// TestNoAttributeTwice looks at what discovery finds on all machines; parts are looked at in pkg/partition.
func TestNoAttributeTwice(t *testing.T) {
	files, err := filepath.Glob("../../pkg/discover/testdata/*.golden.json")
	check.Must(t, err)
	kinds := map[device.Kind]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		check.Must(t, err)
		var found discover.Inventory
		check.Must(t, json.Unmarshal(text, &found))
		for _, d := range found.Devices {
			kinds[d.Kind] = true
			if twice := nodefixture.Twice(d.Resource()); len(twice) > 0 {
				t.Errorf("%s: %v", filepath.Base(file), twice)
			}
		}
	}
	if len(kinds) != len(device.Kinds()) {
		t.Errorf("looked at devices of %v", kinds)
	}
}

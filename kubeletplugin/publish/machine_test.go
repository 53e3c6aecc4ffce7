// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestMachineThatIsNotThere: what is foretold of every machine of test/machines is byte for byte what a node with it publishes: the plugin
// scans it, and kubelet's helper writes the slices.
func TestMachineThatIsNotThere(t *testing.T) {
	files, err := filepath.Glob("../../test/machines/*.txtar")
	check.Must(t, err)
	devices := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			root := nodefixture.Expand(t, name)
			config := nodeconfig.File{
				HostDevices: nodefixture.LocalSSD(), FPGA: nodeconfig.FPGA{BindingConditions: true},
				KernelCaches: nodeconfig.KernelCaches{BindingConditions: strings.HasPrefix(name, "8x")},
			}
			foretold := foretold(t, root, &config)
			var published []string
			synctest.Test(t, func(t *testing.T) {
				published = writtenByHelper(t, Resources(nodefixture.Node, scanned(t, root, &config)))
			})
			if diff := cmp.Diff(published, foretold); diff != "" {
				t.Errorf("slices (-published +foretold):\n%s", diff)
			}
			devices += strings.Count(strings.Join(published, ""), `"name":"`) - len(published)
		})
	}
	const few = 250
	if devices < few {
		t.Errorf("compared %d devices of %d machines", devices, len(files))
	}
}

// scanned is what the plugin sees of a machine, as far as no feature has state of it.
func scanned(t *testing.T, root string, config *nodeconfig.File) *inventory.Snapshot {
	t.Helper()
	errs := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"})
	s := inventory.NewScanner(inventory.Config{
		Node: nodefixture.Node, HostRoot: root, File: config, Holder: inventory.NewHolder(),
		Recovering:    func() map[[2]string]string { return nil },
		HeldByDeleted: func() map[[2]string]*record.Record { return nil },
		Metrics:       inventory.NewMetrics(prometheus.NewRegistry(), errs, []float64{1}),
	})
	s.Scan(t.Context())
	v, _ := s.Holder.Get()
	if v == nil {
		t.Fatal("the machine was not scanned")
	}
	return v
}

func foretold(t *testing.T, root string, config *nodeconfig.File) []string {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	defer tree.Close()
	m := publication.Machine{Tree: tree, File: config, Usable: cdi.Check}
	found := m.Find(t.Context())
	return texts(t, publication.Objects(nodefixture.Node, found.Pools(nodefixture.Node)))
}

// writtenByHelper has kubelet's helper write the slices of a node.
func writtenByHelper(t *testing.T, resources resourceslice.DriverResources) []string {
	t.Helper()
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Node, UID: "node"}})
	made := 0
	api.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s, _ := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		made++
		s.Name, s.ResourceVersion = fmt.Sprintf("%s%d", s.GenerateName, made), fmt.Sprint(made)
		return false, nil, nil
	})
	controller, err := resourceslice.StartController(t.Context(), resourceslice.Options{
		DriverName: v1alpha1.DriverName, KubeClient: api, Resources: &resources,
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: nodefixture.Node},
	})
	check.Must(t, err)
	defer controller.Stop()
	time.Sleep(time.Minute)
	list, err := api.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	check.Must(t, err)
	var slices []*resourceapi.ResourceSlice
	for i := range list.Items {
		slices = append(slices, &list.Items[i])
	}
	return texts(t, slices)
}

// texts are the specs of slices as bytes, sorted: names and owners are the server's.
func texts(t *testing.T, slicesOf []*resourceapi.ResourceSlice) []string {
	t.Helper()
	var out []string
	for _, s := range slicesOf {
		text, err := json.Marshal(s.Spec)
		check.Must(t, err)
		out = append(out, string(text))
	}
	slices.Sort(out)
	return out
}

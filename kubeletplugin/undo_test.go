// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/hostdirs"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// stuckDirs lends directories that cannot be emptied while stuck is true.
type stuckDirs struct {
	*hostdirs.Feature
	stuck *bool
}

func (d stuckDirs) Kinds() step.Kinds {
	kinds := d.Feature.Kinds()
	kind := kinds[hostdir.StepKind]
	undo := kind.Undo
	kind.Undo = func(ctx context.Context, params json.RawMessage) error {
		if *d.stuck {
			return syscall.EIO
		}
		return undo(ctx, params)
	}
	kinds[hostdir.StepKind] = kind
	return kinds
}

// TestFailedUndoIsPublished: the engine's trouble with a directory reaches the scheduler, and is over when the claim was given back.
func TestFailedUndoIsPublished(t *testing.T) {
	root, dir := nodefixture.Expand(t, "4xlocalssd"), t.TempDir()
	client := fake.NewClientset(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Class}})
	p, err := New(t.Context(), Config{
		Node: nodefixture.Node, Namespace: "fettle-system", HostRoot: root, PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"),
		CDIRoot:     filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), HTTPAddress: "127.0.0.1:0",
		File: nodeconfig.File{HostDevices: nodefixture.LocalSSD()}.WithDefaults(),
	}, Clients{Kube: client, Dynamic: noObjects(t), Events: events.NewFakeRecorder(10)}, "boot-1")
	check.Must(t, err)
	p.health.SetTaintsKept(t.Context(), true)
	stuck := false
	config := p.engine.Config
	config.Features = append([]prepare.Feature{stuckDirs{p.features.hostDirs, &stuck}}, p.features.list()[1:]...)
	p.engine = prepare.New(config)
	t.Cleanup(p.engine.Stop)
	p.scanner.Scan(t.Context())
	v, _ := p.holder.Get()
	name := v.Devices[0].Name
	taints := func() map[string][]resourceapi.DeviceTaint {
		p.health.Refresh()
		v, _ := p.holder.Get()
		out := map[string][]resourceapi.DeviceTaint{}
		for _, d := range publish.Resources(nodefixture.Node, v).Pools[device.PoolName(nodefixture.Node, device.KindHost)].Slices[0].Devices {
			if len(d.Taints) > 0 {
				out[d.Name] = d.Taints
			}
		}
		return out
	}
	_, err = p.engine.Prepare(t.Context(), nodefixture.Allocated("u1", nodefixture.Result("disk", device.KindHost, name)), p.engine.Now())
	check.Must(t, err)

	stuck = true
	if _, err := p.engine.Unprepare(t.Context(), "u1", p.engine.Now()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v, want EIO", err)
	}
	want := map[string][]resourceapi.DeviceTaint{
		name: {{Key: inventory.TaintUnhealthy, Value: "UndoFailed", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
	}
	if diff := cmp.Diff(want, taints()); diff != "" {
		t.Errorf("taints while it cannot be given back (-want +got):\n%s", diff)
	}
	stuck = false
	if _, err := p.engine.Unprepare(t.Context(), "u1", p.engine.Now()); err != nil {
		t.Fatal(err)
	}
	if left := taints(); len(left) > 0 {
		t.Errorf("taints %v after it was given back", left)
	}
	next := nodefixture.Allocated("u2", nodefixture.Result("disk", device.KindHost, name))
	check.Must(t, client.Tracker().Add(next)) // read again where its device was not free at once
	r, err := p.engine.Prepare(t.Context(), next, p.engine.Now())
	check.Must(t, err)
	params, err := step.Decode[hostdir.Params](r.Steps[0].Params)
	check.Must(t, err)
	if params.Place.Inode == 0 {
		return // on a tmpfs, no directory is told from another
	}

	// Its disk died. An administrator gives up what is on it, by name.
	at := filepath.Join(root, v.Devices[0].Edits.Mounts[0].HostPath)
	check.Must(t, os.Rename(at, at+"-aside"), os.Mkdir(at, 0o755))
	for _, request := range []string{"", "*"} {
		p.recoverDevices(t.Context(), request)
		if _, err := p.engine.Unprepare(t.Context(), "u2", p.engine.Now()); !errors.Is(err, step.ErrReplaced) {
			t.Fatalf("after the request %q: error %v, want that it is another directory", request, err)
		}
	}
	p.recoverDevices(t.Context(), name)
	_, err = p.engine.Unprepare(t.Context(), "u2", p.engine.Now())
	check.Must(t, err)
}

// noObjects is a cluster that has none of Fettle's objects.
func noObjects(t *testing.T) dynamic.Interface {
	t.Helper()
	scheme := runtime.NewScheme()
	check.Must(t, v1alpha1.AddToScheme(scheme))
	return dynamicfake.NewSimpleDynamicClient(scheme)
}

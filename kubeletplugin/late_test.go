// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/hostdirs"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/quiesce"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// slow is a feature that waits for a test where it fetches, or where it plans.
type slow struct {
	*hostdirs.Feature
	fetch, plan func()
}

func (s *slow) Fetch(*prepare.Request) func(context.Context) error {
	return func(context.Context) error { s.fetch(); return nil }
}

func (s *slow) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	s.plan()
	return s.Feature.Plan(ctx, r)
}

// newSlowPlugin is a plugin with a slow feature, which does not run, and a claim for the first device of a kind.
func newSlowPlugin(t *testing.T, machine string, kind device.Kind) (*Plugin, *slow, *resourceapi.ResourceClaim) {
	t.Helper()
	dir := t.TempDir()
	client := fake.NewClientset(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Class}})
	p, err := New(t.Context(), Config{
		Node: testNode, Namespace: "fettle-system", HostRoot: nodefixture.Expand(t, machine), PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"),
		HTTPAddress: "127.0.0.1:0", File: nodeconfig.File{HostDevices: nodefixture.LocalSSD()}.WithDefaults(),
	}, Clients{Kube: client, Dynamic: noObjects(t), Events: events.NewFakeRecorder(10)}, "boot-1")
	check.Must(t, err)
	late := &slow{Feature: p.features.hostDirs, fetch: func() {}, plan: func() {}}
	config := p.engine.Config
	config.Features = []prepare.Feature{late}
	p.engine = prepare.New(config)
	t.Cleanup(p.engine.Stop)
	p.scanner.Reviewers = nil
	p.scanner.Scan(t.Context())
	v, _ := p.holder.Get()
	c := nodefixture.Allocated("u1", nodefixture.Result("dev", kind, v.Published(kind)[0].Name))
	check.Must(t, client.Tracker().Add(c))
	return p, late, c
}

// TestRetiredWhileFetching: a claim whose files come after the node was emptied gets nothing.
func TestRetiredWhileFetching(t *testing.T) {
	p, late, c := newSlowPlugin(t, "4xlocalssd", device.KindHost)
	late.fetch = func() {
		p.retirement.Set(v1alpha1.RetireByAdmin)
		emptied, err := p.removeNodeFiles(t.Context())
		check.Must(t, err)
		if !emptied {
			t.Error("the node is not emptied")
		}
	}
	if answer := p.prepareClaim(t.Context(), c, nil); !errors.Is(answer.Err, retirement.ErrRetired) {
		t.Errorf("got %v, want that the node is retired", answer.Err)
	}
	if p.engine.HasRecord("u1") {
		t.Error("a claim has a record on a node that was emptied")
	}
}

// TestQuiescedWhilePlanning: a driver that the plugin said it let go of is not given to a claim that came before.
func TestQuiescedWhilePlanning(t *testing.T) {
	p, late, c := newSlowPlugin(t, "8xh100-sxm", device.KindGPU)
	done := false
	late.plan = func() {
		p.quiesce.Set(t.Context(), "nvidia")
		v, _ := p.holder.Get()
		withheld := *v
		withheld.Withheld = map[string]string{}
		p.quiesce.Review(t.Context(), &withheld)
		uids, err := p.records.Claims()
		check.Must(t, err)
		var records []*record.Record
		for _, uid := range uids {
			r, err := p.records.Load(uid)
			check.Must(t, err)
			records = append(records, r)
		}
		done = p.quiesce.Report(quiesce.Input{Snapshot: &withheld, Published: true, Records: records}).Done
	}
	if answer := p.prepareClaim(t.Context(), c, nil); done && !errors.Is(answer.Err, quiesce.ErrQuiesced) {
		t.Errorf("got %v, want that the driver is quiesced", answer.Err)
	}
	if p.engine.HasRecord("u1") {
		t.Error("a claim holds a GPU of which the driver may be unloaded")
	}
}

// TestBindingToRetiredNode: a pod that waits for its data is not bound to a node that was asked to retire meanwhile.
func TestBindingToRetiredNode(t *testing.T) {
	p, _, c := newSlowPlugin(t, "8xh100-sxm", device.KindGPU)
	p.config.File.FPGA.BindingConditions, p.config.File.KernelCaches.BindingConditions = true, true
	p.retirement.Set(v1alpha1.RetireByAdmin)
	kinds := p.bindingKinds()
	if len(kinds) != 2 {
		t.Errorf("%d kinds are bound late", len(kinds))
	}
	s, _ := p.holder.Get()
	for _, k := range kinds {
		if err := k.Ready(t.Context(), c, claim.Allocation{}, s); !errors.Is(err, retirement.ErrRetired) {
			t.Errorf("%s: got %v, want that the node is retired", k.Kind, err)
		}
	}
}

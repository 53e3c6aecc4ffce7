// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/podresources"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestClaimInfo: one series for each device that a claim holds and each container that has it. A device without a container has one with
// empty labels, also while kubelet does not answer. A look holds nothing, and a claim that is being released has no device.
func TestClaimInfo(t *testing.T) {
	s := nodefixture.Snapshot(t, "8xh100-sxm")
	gpus := s.GPUs()
	pool := device.PoolName(nodefixture.Node, device.KindGPU)
	of := func(d device.Device) record.Device { return record.Device{Request: "r", Pool: pool, Name: d.Name} }
	look, share := of(gpus[2]), of(gpus[3])
	look.AdminAccess, share.ShareID = true, "s1"
	gone := record.Device{Request: "r", Pool: pool, Name: "nvidia-0000-ff-00-0"}
	records := []*record.Record{
		{Namespace: "team-a", Name: "train", UID: "u1", Phase: record.Prepared, Devices: []record.Device{of(gpus[0]), share, share, look}},
		{Namespace: "team-b", Name: "idle", UID: "u2", Phase: record.Prepared, Devices: []record.Device{of(gpus[1]), gone}},
		{Namespace: "team-b", Name: "over", UID: "u3", Phase: record.Releasing, Devices: []record.Device{of(gpus[4])}},
	}
	key := func(namespace, name, share string) podresources.Device {
		return podresources.Device{Namespace: namespace, Claim: "train", Pool: pool, Name: name, ShareID: share}
	}
	have := map[podresources.Device][]podresources.Container{
		key("team-a", gpus[0].Name, ""):      {{Pod: "p1", Name: "main"}, {Pod: "p1", Name: "side"}},
		key("team-a", share.Name, "s1"):      {{Pod: "p1", Name: "main"}},
		key("other", gpus[1].Name, ""):       {{Pod: "p9", Name: "main"}},
		key("team-a", share.Name, "another"): {{Pod: "p8", Name: "main"}},
	}
	holder := inventory.NewHolder()
	holder.Set(s)
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "failures_total", Help: "Failures."}, []string{"source"})
	r := &Reporter{ReporterConfig: ReporterConfig{Node: nodefixture.Node, Holder: holder, Errors: failures}}
	info := newClaimInfo(r)
	info.records = func() ([]*record.Record, error) { return records, nil }
	var fault error
	info.containers = func(context.Context) (map[podresources.Device][]podresources.Container, error) {
		if fault != nil {
			return nil, fault
		}
		return have, nil
	}
	rest := func(d device.Device, pod string) string {
		return `,device="` + d.Name + `",namespace="team-a",node="` + nodefixture.Node + `",pci_bus_id="` +
			device.StringOf(d.Attributes[device.AttributePCIAddress]) + `",pod="` + pod + `",uuid="` +
			device.StringOf(d.Attributes[device.AttributeUUID]) + `"} 1` + "\n"
	}
	const name = "fettle_device_claim_info"
	head := "# HELP " + name + " 1 for each device that a claim holds and each container that has it. Pod and container are empty if " +
		"kubelet names none.\n# TYPE " + name + " gauge\n"
	line := func(d device.Device, container, pod string) string {
		return name + `{claim="train",container="` + container + `"` + rest(d, pod)
	}
	idleOf := func(text string) string {
		return strings.NewReplacer(`"train"`, `"idle"`, "team-a", "team-b").Replace(text)
	}
	left := device.Device{Name: gone.Name}
	idle := idleOf(line(gpus[1], "", "")) + idleOf(line(left, "", ""))
	want := head + line(gpus[0], "main", "p1") + line(gpus[0], "side", "p1") + line(gpus[3], "main", "p1") + idle
	if err := testutil.CollectAndCompare(info, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
	fault = errors.New("kubelet is away")
	want = head + line(gpus[0], "", "") + line(gpus[3], "", "") + idle
	if err := testutil.CollectAndCompare(info, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(failures.WithLabelValues("claiminfo")); got != 1 {
		t.Errorf("%v failures are counted", got)
	}
	if device.StringOf(gpus[0].Attributes[device.AttributePCIAddress]) == "" {
		t.Errorf("%s has no address: the test shows nothing", gpus[0].Name)
	}
}

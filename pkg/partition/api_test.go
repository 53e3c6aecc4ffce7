// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// TestAPI gives slices to a real API server: eight H100 in every form and a GPU with the most virtual functions, in the form that it takes.
// With the gate off it keeps the devices and drops their counters, which is why somebody has to look before he publishes.
func TestAPI(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags map[string]string
		// forms say whether the server takes and keeps the slices, shares whether it keeps those with shares.
		separate, combined, shares string
	}{
		{name: "newest", separate: kept, combined: "only one of `sharedCounters` or `devices` is allowed", shares: kept},
		{
			name: "as 1.34 with the gates", separate: kept, combined: "only one of `sharedCounters` or `devices` is allowed", shares: kept,
			flags: map[string]string{"emulated-version": "1.34", "feature-gates": "DRAPartitionableDevices=true,DRAConsumableCapacity=true"},
		},
		{name: "as 1.34", separate: dropped, combined: dropped, shares: dropped, flags: map[string]string{"emulated-version": "1.34"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kube, err := kubernetes.NewForConfig(apitest.Start(t, tc.flags))
			check.Must(t, err)
			cards, devices := everything(t)
			for form, want := range map[partition.Form]string{partition.FormSeparate: tc.separate, partition.FormCombined: tc.combined} {
				if got := publish(t, kube, resourceSlices(t, cards, devices, form)); !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", form, got, want)
				}
			}
			if got := publishShares(t, kube); got != tc.shares {
				t.Errorf("shares: got %q, want %q", got, tc.shares)
			}
		})
	}
}

const (
	kept    = "kept"
	dropped = "dropped"
)

// everything are eight GPUs with MIG, one with virtual functions and one with partitions.
func everything(t *testing.T) ([]device.Card, []device.Device) {
	cards, devices := node(t, h100(), 8)
	for _, p := range []partition.Division{
		partition.Divide(partition.Physical{Device: named(t, "intel"), Functions: vfs(t, 62, 62), IOMMU: true},
			withPassthrough(sriov(62)), gateOn()),
		partition.Divide(partition.Physical{Device: named(t, "amd"), AMD: modes("SPX", "NPS1"), IOMMU: true},
			withPassthrough(amd("CPX", "NPS1")), gateOn()),
	} {
		cards, devices = append(cards, *p.Card), append(devices, p.Devices...)
	}
	return cards, append(devices, named(t, "plain"))
}

func named(t *testing.T, name string) device.Device {
	d := other(t, name)
	d.Name = name
	return d
}

func withPassthrough(s partition.Settings) partition.Settings {
	s.Passthrough = true
	return s
}

// publish creates the slices and says what became of them. It removes them again.
func publish(t *testing.T, kube kubernetes.Interface, slices []*resourceapi.ResourceSlice) string {
	t.Helper()
	defer func() {
		check.Must(t, kube.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}()
	want, got := 0, 0
	for _, s := range slices {
		stored, err := kube.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		if len(stored.Spec.Devices) != len(s.Spec.Devices) {
			return "devices are gone"
		}
		want, got = want+counters(s), got+counters(stored)
	}
	switch {
	case want < 1500:
		return "too few counters for a test"
	case got == want:
		return kept
	case got == 0:
		return dropped
	}
	return "some are dropped"
}

func counters(s *resourceapi.ResourceSlice) int {
	n := 0
	for _, set := range s.Spec.SharedCounters {
		n += len(set.Counters)
	}
	for _, d := range s.Spec.Devices {
		for _, c := range d.ConsumesCounters {
			n += len(c.Counters)
		}
	}
	return n
}

// publishShares publishes devices with every form of shares, says whether the server keeps all of these, and has it take a claim for one.
func publishShares(t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	var devices []device.Device
	held := map[string]bool{gpu0: true}
	for i, s := range []partition.Settings{
		sharing(4),
		{Sharing: &partition.Sharing{MaxClaims: 256}},
		{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{Default: 20 * gib, Values: []int64{10 * gib, 20 * gib}}}},
		{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{Default: 79 * gib, Min: 79 * gib, Step: 2 * gib}}},
		{Sharing: &partition.Sharing{MaxClaims: 2, Memory: &partition.SharedMemory{Default: 2 * gib, Min: gib, Max: 100 * gib}}},
	} {
		devices = append(devices, partition.Divide(partition.Physical{Device: h100().whole(t, i+1)}, s, shares(true)).Devices...)
	}
	closing := partition.Divide(partition.Physical{Device: h100().whole(t, 0), Held: held, Shares: held}, partition.Settings{}, shares(true))
	devices = append(devices, closing.Devices...)
	defer func() {
		check.Must(t, kube.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}()
	found := map[bool]int{}
	for _, s := range resourceSlices(t, nil, devices, partition.FormSeparate) {
		stored, err := kube.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
		check.Must(t, err)
		for i, d := range stored.Spec.Devices {
			found[equality.Semantic.DeepEqual(d, s.Spec.Devices[i])]++
			if d.AllowMultipleAllocations == nil && d.Capacity[device.CapacityShares].RequestPolicy != nil {
				t.Errorf("of %s a part is dropped", d.Name)
			}
		}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "share", Namespace: metav1.NamespaceDefault}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "any", Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			device.CapacityMemory: resource.MustParse("20Gi"),
		}},
	}}}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := kube.ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, dry)
	check.Must(t, err)
	switch {
	case found[false] == 0 && found[true] == len(devices):
		return kept
	case found[true] == 0:
		return dropped
	}
	return "some are dropped"
}

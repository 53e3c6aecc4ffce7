// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/apitest"
)

// TestAPI gives slices to a real API server: eight H100 in every form and a GPU with the most virtual functions, in the form that it takes.
// With the gate off it keeps the devices and drops their counters, which is why somebody has to look before he publishes.
func TestAPI(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags map[string]string
		// forms say whether the server takes and keeps the slices.
		separate, combined string
	}{
		{name: "newest", separate: kept, combined: "only one of `sharedCounters` or `devices` is allowed"},
		{
			name: "as 1.34 with the gate", separate: kept, combined: "only one of `sharedCounters` or `devices` is allowed",
			flags: map[string]string{"emulated-version": "1.34", "feature-gates": "DRAPartitionableDevices=true"},
		},
		{name: "as 1.34", separate: dropped, combined: dropped, flags: map[string]string{"emulated-version": "1.34"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kube, err := kubernetes.NewForConfig(apitest.Start(t, tc.flags))
			must(t, err)
			cards, devices := everything(t)
			for form, want := range map[partition.Form]string{partition.FormSeparate: tc.separate, partition.FormCombined: tc.combined} {
				if got := publish(t, kube, resourceSlices(t, cards, devices, form)); !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", form, got, want)
				}
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
		partition.Divide(partition.Physical{Device: named(t, "intel"), Functions: vfs(t, 62, 62), IOMMU: true}, withPassthrough(sriov(62)), true),
		partition.Divide(partition.Physical{Device: named(t, "amd"), AMD: modes("SPX", "NPS1"), IOMMU: true},
			withPassthrough(amd("CPX", "NPS1")), true),
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
		must(t, kube.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
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

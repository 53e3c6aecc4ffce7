// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// checkPartitions wants 208 devices in eleven slices: one with counters, one a GPU, and one each for the pools of other devices. A change
// of one device is one write; one that changes counters too writes the pool anew. All claims of this form find a place.
func checkPartitions(t *testing.T, all []map[string]any) {
	t.Helper()
	at := map[string]float64{}
	for _, line := range all {
		if value, ok := line["value"].(float64); ok && strings.HasPrefix(fmt.Sprint(line["machine"]), wholeMachine) {
			at[fmt.Sprintf("%v %v %v %v", line["name"], line["machine"], line["case"], line["devices"])] = value
		}
	}
	for key, want := range map[string]float64{
		slicesPublishWrites + " 8xh100-mig <nil> 208": 11, slicesChangeWrites + " 8xh100-mig device 208": 1,
		slicesChangeWrites + " 8xh100-mig withheld 208": 1,
		allocateGiven + " 8xh100 whole <nil>":           4, allocateGiven + " 8xh100-mig whole <nil>": 4,
		allocateGiven + " 8xh100-mig mixed <nil>": 20,
	} {
		if at[key] != want {
			t.Errorf("%s: %v, want %v", key, at[key], want)
		}
	}
	if got := at[slicesChangeWrites+" 8xh100-mig card 208"]; got <= 1 {
		t.Errorf("a card that is divided no more takes %v writes, want several", got)
	}
}

// TestAllocation measures for real: it needs no cluster.
func TestAllocation(t *testing.T) {
	var out bytes.Buffer
	b := &bench{
		options: options{form: form{allocation: allocationForm{nodes: 2, claims: 20}}}, report: newReport(&out), progress: io.Discard,
		begin: time.Now(),
	}
	must(t, b.measureAllocation(t.Context()))
	given := 0
	for _, line := range lines(t, out.Bytes()) {
		if line["name"] == allocateGiven {
			given++
			if want := map[any]float64{caseWhole: 4, caseMixed: 20}[line["case"]]; line["value"] != want {
				t.Errorf("%v: want %v claims to be given devices", line, want)
			}
		}
	}
	if given != 3 {
		t.Errorf("%d cells, want 3:\n%s", given, out.String())
	}
}

// TestAllocationChecks: the check of what is given does not take the allocator's word for it.
func TestAllocationChecks(t *testing.T) {
	n, err := newDividedNodes(1, true)
	must(t, err)
	give := func(claim, device string) error {
		return n.take(claim, &resourceapi.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: "node-000/gpu", Device: device})
	}
	must(t, give("a", "nvidia-0000-0b-00-0-mig-3g-40gb-s4"))
	must(t, give("b", "nvidia-0000-0b-00-0-mig-1g-10gb-s3"))
	must(t, give("c", "nvidia-0000-1b-00-0"))
	for _, device := range []string{
		"nvidia-0000-0b-00-0-mig-1g-10gb-s6", "nvidia-0000-0b-00-0-mig-3g-40gb-s0", "nvidia-0000-0b-00-0", "nvidia-0000-1b-00-0-mig-1g-10gb-s0",
	} {
		if err := give("d", device); err == nil || !strings.Contains(err.Error(), "and to d") {
			t.Errorf("%s is given although it is taken: %v", device, err)
		}
	}
}

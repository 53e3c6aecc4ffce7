// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
)

// TestNothingIsMadeOnRetiredNode: on a node that is retired nothing is made that a policy wants: the node's files are gone, and its GPUs
// may be another driver's. What policies had made is still taken back, and what claims hold is still made again after a reboot.
func TestNothingIsMadeOnRetiredNode(t *testing.T) {
	wanted := wish{governed: true, settings: partition.Settings{SRIOV: &partition.SRIOV{VirtualFunctions: 2}}}
	gpu := discover.Physical{
		Device: device.Device{Kind: device.KindGPU, Name: "intel-0000-03-00-0"}, Address: pci.Address{Bus: 3}, VirtualFunctions: 4,
	}
	held := "intel-0000-03-00-0-vf-0"
	for name, test := range map[string]struct {
		card            card
		serves, retired int
	}{
		"a policy": {card{seen: seen{Physical: gpu, wish: wanted}}, 1, 0},
		"what a policy had made": {
			card{seen: seen{Physical: gpu}, left: left{instances: []mig.Held{{}}}}, 1, 1,
		},
		"what a claim holds": {
			card{
				seen:     seen{Physical: gpu, wish: wanted, held: map[string]bool{held: true}},
				division: partition.Division{Parts: map[string]partition.Part{held: {Type: device.TypeVF}}},
			}, 1, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			isRetired := false
			l := layouts{points: restorepoint.Open(disk.OS{}, t.TempDir(), "boot"), retired: func() bool { return isRetired }}
			if got := len(l.jobs(&test.card)); got != test.serves {
				t.Errorf("%d jobs on a node that serves, want %d", got, test.serves)
			}
			isRetired = true
			if got := len(l.jobs(&test.card)); got != test.retired {
				t.Errorf("%d jobs on a retired node, want %d", got, test.retired)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// FPGARegion is the admin's word for an FPGA that does not tell by itself which bitstreams fit, or that names several.
type FPGARegion struct {
	// Device is the name that the device has once it is published. Until then it is in the message that says what is missing.
	Device string `json:"device"`
	// InterfaceID says which bitstreams fit: 32 hexadecimal digits in lower case. For a chip that has none, any will do that the bitstreams
	// built for this design are given too.
	InterfaceID string `json:"interfaceID"`
	// Nodes are absolute paths of character device nodes of the host, by which pods use what is programmed. A chip that is part of the
	// machine must have them, and only such a one can; a card has its own.
	Nodes []string `json:"nodes,omitempty"`
	// Partial says that the bitstreams are for a part of the chip, whose other parts go on. Only a chip that is part of the machine can
	// have it.
	Partial bool `json:"partial,omitempty"`
}

// Validate checks what can be known without the machine. The error joins everything that is wrong.
func (r FPGARegion) Validate() error {
	var faults []error
	if len(validation.IsDNS1123Label(r.Device)) > 0 {
		faults = append(faults, fmt.Errorf("device %q: want the name of a device, such as amd-firmware-zynqmp-firmware-pcap", r.Device))
	}
	if !backend.ValidID(r.InterfaceID) {
		faults = append(faults, fmt.Errorf("interfaceID %q: want 32 hexadecimal digits in lower case, not all 0 or f", r.InterfaceID))
	}
	for i, node := range r.Nodes {
		dir := sysfs.HostPath(sysfs.Dev) + "/"
		if !strings.HasPrefix(node, dir) || path.Clean(node) != node || strings.ContainsAny(node, `*?[\`) {
			faults = append(faults, fmt.Errorf("nodes[%d] %q: want a clean path below %s without wildcards", i, node, dir))
		}
		if reachesAll(node) {
			faults = append(faults, fmt.Errorf("nodes[%d] %q: with it a pod could program the chip or reach the machine's memory", i, node))
		}
		if slices.Contains(r.Nodes[:i], node) {
			faults = append(faults, fmt.Errorf("nodes[%d] %q: appears twice", i, node))
		}
	}
	return errors.Join(faults...)
}

// reachesAll knows the names of nodes that give more than an accelerator: memory, all of the chip's registers, or programming.
func reachesAll(node string) bool {
	base := path.Base(node)
	if slices.Contains([]string{"mem", "kmem", "port"}, base) {
		return true
	}
	return programs(base) || isNumbered(base, "uio")
}

// ValidateFPGARegions checks all of them, and that no device is named twice.
func ValidateFPGARegions(regions []FPGARegion) error {
	var faults []error
	for i, r := range regions {
		if err := r.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("fpgaRegions[%d]: %w", i, err))
		}
		if slices.ContainsFunc(regions[:i], func(other FPGARegion) bool { return other.Device == r.Device }) {
			faults = append(faults, fmt.Errorf("fpgaRegions[%d]: device %q appears twice", i, r.Device))
		}
	}
	return errors.Join(faults...)
}

// regionOf is what the admin said of a device. What is wrong with it counts as nothing.
func (o Options) regionOf(name string) (FPGARegion, bool) {
	i := slices.IndexFunc(o.FPGARegions, func(r FPGARegion) bool { return r.Device == name })
	if i < 0 || o.FPGARegions[i].Validate() != nil {
		return FPGARegion{}, false
	}
	return o.FPGARegions[i], true
}

// SPDX-License-Identifier: Apache-2.0

package nodefixture

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/pkg/device"
)

// equalNames are pairs of attributes that may have one value on a device, and why both are published.
var equalNames = map[[2]resourceapi.QualifiedName]string{
	{device.AttributePCIAddress, deviceattribute.StandardDeviceAttributePCIBusID}: "selectors of users, demos and converted claims name " +
		"pciAddress, also of parts; constraints with other drivers' devices, and virtual machines, need the standard name",
	{device.AttributeDriver, device.AttributeVendor}: "of NVIDIA both are nvidia; AMD's and Intel's drivers have other names",
	{device.AttributeType, device.AttributeVendor}:   "of a host device both are host",
	{device.AttributeCard, device.AttributePCIAddress}: "card is the function that programs the card, which may be the one that has the " +
		"region; with virtual functions it is another",
	{device.AttributeCard, deviceattribute.StandardDeviceAttributePCIBusID}: "as card and pciAddress",
}

// Twice returns the pairs of attributes that have one text or version on a device, without those that have a reason. Numbers and booleans
// are equal by chance.
func Twice(d resourceapi.Device) []string {
	var twice []string
	names := slices.Sorted(maps.Keys(d.Attributes))
	for i, a := range names {
		if device.StringOf(d.Attributes[a]) == "" {
			continue
		}
		for _, b := range names[i+1:] {
			_, reason := equalNames[[2]resourceapi.QualifiedName{a, b}]
			if !reason && equality.Semantic.DeepEqual(d.Attributes[a], d.Attributes[b]) {
				twice = append(twice, fmt.Sprintf("%s: %s and %s are %s", d.Name, a, b, device.StringOf(d.Attributes[a])))
			}
		}
	}
	return twice
}

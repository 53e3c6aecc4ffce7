// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// valueType is the type that a selector finds in an attribute.
type valueType string

// The types. A typeAny is one value or a list, as the node's configuration says.
const (
	typeText     valueType = "string"
	typeVersion  valueType = "version"
	typeInt      valueType = "int"
	typeBool     valueType = "bool"
	typeAny      valueType = "any"
	typeQuantity valueType = "quantity"
)

// published are the attributes of every device that this driver may publish, as docs/user/attributes.md lists them. A name without a domain
// is the driver's own.
func published() map[resourceapi.QualifiedName]valueType {
	return map[resourceapi.QualifiedName]valueType{
		device.AttributeAFUID:             typeText,
		device.AttributeAddressingMode:    typeText,
		device.AttributeArchitecture:      typeText,
		device.AttributeBackend:           typeText,
		device.AttributeBitstreamDigest:   typeText,
		device.AttributeBrand:             typeText,
		device.AttributeCUDADriverVersion: typeVersion,
		device.AttributeCard:              typeText,
		device.AttributeComputeCapability: typeVersion,
		device.AttributeDMAIsolated:       typeBool,
		device.AttributeDriver:            typeText,
		device.AttributeDriverVersion:     typeVersion,
		device.AttributeDriverVersionText: typeText,
		device.AttributeFabricClique:      typeText,
		device.AttributeFabricClusterUUID: typeText,
		device.AttributeFabricState:       typeText,
		device.AttributeFirmwareVersion:   typeText,
		device.AttributeInterfaceID:       typeText,
		device.AttributeMemoryTenant:      typeText,
		device.AttributePCIAddress:        typeText,
		device.AttributePCIDeviceID:       typeText,
		device.AttributePCIVendorID:       typeText,
		device.AttributeParentUUID:        typeText,
		device.AttributeProductName:       typeText,
		device.AttributeProfile:           typeText,
		device.AttributeProgrammingLocked: typeBool,
		device.AttributeRegionIndex:       typeInt,
		device.AttributeSRIOVVF:           typeBool,
		device.AttributeSerial:            typeText,
		device.AttributeShellID:           typeText,
		device.AttributeShellVersion:      typeText,
		device.AttributeType:              typeText,
		device.AttributeUUID:              typeText,
		device.AttributeVendor:            typeText,

		deviceattribute.StandardDeviceAttributePCIBusID: typeText,
		deviceattribute.StandardDeviceAttributePCIeRoot: typeAny,
		deviceattribute.StandardDeviceAttributeNUMANode: typeAny,
	}
}

// capacities are those of every device that this driver may publish.
func capacities() map[resourceapi.QualifiedName]valueType {
	return map[resourceapi.QualifiedName]valueType{
		device.CapacityComputeUnits:     typeQuantity,
		device.CapacityMemory:           typeQuantity,
		device.CapacityMultiprocessors:  typeQuantity,
		device.CapacityShares:           typeQuantity,
		device.CapacityStorage:          typeQuantity,
		device.CapacityVirtualFunctions: typeQuantity,
	}
}

// table has the names and types of one map of a device, by domain: what device.attributes or device.capacity has.
type table map[string]map[string]valueType

func newTable(rows map[resourceapi.QualifiedName]valueType) table {
	t := table{}
	for qualified, of := range rows {
		domain, name := split(qualified)
		if t[domain] == nil {
			t[domain] = map[string]valueType{}
		}
		t[domain][name] = of
	}
	return t
}

// split returns the domain and the name of an attribute. Without a domain it is the driver's own.
func split(qualified resourceapi.QualifiedName) (domain, name string) {
	if domain, name, found := strings.Cut(string(qualified), "/"); found {
		return domain, name
	}
	return v1alpha1.DriverName, string(qualified)
}

// domains lists the domains, sorted.
func (t table) domains() []string { return slices.Sorted(maps.Keys(t)) }

// names lists the names of a domain, sorted.
func (t table) names(domain string) []string { return slices.Sorted(maps.Keys(t[domain])) }

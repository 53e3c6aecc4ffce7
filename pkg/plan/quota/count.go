// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// counter adds up.
type counter struct {
	rules  rules
	pods   map[string]*corev1.Pod
	memory map[deviceID]*resource.Quantity

	namespaces map[string]*Namespace
	classes    map[[2]string]*Class // by namespace and name
	charged    map[string]charges   // by namespace
	limits     map[string][]*limit  // by namespace
	asked      []Asked
	problems   []plan.Problem
}

func (c *counter) namespace(name string) *Namespace {
	if c.namespaces[name] == nil {
		c.namespaces[name] = &Namespace{Name: name}
	}
	return c.namespaces[name]
}

func (c *counter) class(namespace, name string) *Class {
	key := [2]string{namespace, name}
	if c.classes[key] == nil {
		c.classes[key] = &Class{Name: name, Memory: *resource.NewQuantity(0, resource.BinarySI)}
	}
	return c.classes[key]
}

// charge adds to what is charged in a namespace.
func (c *counter) charge(namespace string, more charges) {
	if c.charged[namespace] == nil {
		c.charged[namespace] = charges{}
	}
	c.charged[namespace].add(more)
}

// claim counts a claim and the devices that it has.
func (c *counter) claim(claim *resourceapi.ResourceClaim) {
	c.namespace(claim.Namespace).Claims++
	c.charge(claim.Namespace, c.rules.existing(claim, c.pods))
	for name, n := range devicesByClass(&claim.Spec) {
		c.class(claim.Namespace, name).Charged += n
	}
	if claim.Status.Allocation == nil {
		return
	}
	classes := classByRequest(&claim.Spec)
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		name, known := classes[result.Request]
		if !known {
			c.problems = append(c.problems, plan.Problem{
				Object:  "ResourceClaim " + claim.Namespace + "/" + claim.Name,
				Message: "status.allocation.devices.results: the claim has no request " + result.Request + "; its device is not counted",
			})
			continue
		}
		c.allocated(c.class(claim.Namespace, name), result)
	}
}

// allocated counts one device of a claim.
func (c *counter) allocated(class *Class, result *resourceapi.DeviceRequestAllocationResult) {
	var memory *resource.Quantity
	switch {
	case result.AdminAccess != nil && *result.AdminAccess:
		class.AdminAccess++
		return
	case result.ShareID != nil:
		class.Shares++
		memory = memoryIn(result.Driver, result.ConsumedCapacity)
	default:
		class.Devices++
		memory = c.memory[deviceID{result.Driver, result.Pool, result.Device}]
	}
	if memory == nil {
		class.MemoryUnknown++
		return
	}
	class.Memory.Add(*memory)
}

// report puts together what was counted.
func (c *counter) report() Report {
	for _, key := range slices.SortedFunc(maps.Keys(c.classes), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		n := c.namespace(key[0])
		n.Classes = append(n.Classes, *c.classes[key])
	}
	report := Report{Namespaces: []Namespace{}, Asked: c.asked, Problems: c.problems}
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		n := c.namespaces[name]
		for _, l := range c.limits[name] {
			n.Limits = append(n.Limits, l.Limit)
		}
		report.Namespaces = append(report.Namespaces, *n)
	}
	slices.SortFunc(report.Problems, func(a, b plan.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
	return report
}

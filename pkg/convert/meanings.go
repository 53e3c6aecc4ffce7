// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/drivers"
	"github.com/fettle-dev/fettle/pkg/convert/shares"
	"github.com/fettle-dev/fettle/pkg/device"
)

// meanings say what the names of resources and classes in the input stand for: by the options, by the input's own classes, and by what is
// known of other drivers and plugins.
type meanings struct {
	options Options
	// used are the mapped names that were asked for.
	used map[string]bool
	// offered are the input's DeviceClasses by their extended resources.
	offered map[string]string
}

// gpuWish says what a container asks for with a resource. It is false for resources that are no GPUs.
func (m *meanings) gpuWish(name string) (gpuWish, bool) {
	if class, ok := m.options.Classes[name]; ok {
		m.used[name] = true
		return gpuWish{class: class}, true
	}
	if m.offered[name] != "" {
		return gpuWish{}, false
	}
	if class, ok := drivers.LookupClass(strings.TrimPrefix(name, classResource)); ok && strings.HasPrefix(name, classResource) {
		w := gpuWish{class: class.Name}
		if class.Vendor != "" {
			w.selectors = append(w.selectors, attributeIs("vendor", class.Vendor))
		}
		return w, true
	}
	_, unit, _ := strings.Cut(name, "/")
	switch reason := refusedResource(name, unit); {
	case reason != "":
		return gpuWish{refused: reason}, true
	case strings.HasPrefix(name, "amd.com/spx_"):
		name = amdResource
	case strings.HasPrefix(name, "amd.com/") && strings.Contains(unit, "px_nps"):
		profile := attributeIs(string(device.AttributeProfile), strings.ReplaceAll(unit, "_", "-"))
		return gpuWish{class: drivers.PartClass(device.TypePartition), selectors: []resourceapi.DeviceSelector{profile}}, true
	}
	r := known(name)
	if r == nil || r.kind != device.KindGPU {
		return gpuWish{}, false
	}
	return m.wishOf(r, unit), true
}

// wishOf is what a resource of the table is. An administrator's class (--gpu-class) may give out GPUs of all vendors.
func (m *meanings) wishOf(r *resourceClass, unit string) gpuWish {
	w := gpuWish{class: m.options.GPUClass}
	switch {
	case r.part != "":
		w.class, w.selectors = r.class(), append(w.selectors, attributeIs(r.attribute, r.value))
	case w.class == DefaultGPUClass:
		w.class = drivers.VendorClass(r.value)
	default:
		w.selectors = append(w.selectors, attributeIs(r.attribute, r.value))
	}
	if unit == "i915" || unit == "xe" {
		w.selectors = append(w.selectors, attributeIs(string(device.AttributeDriver), unit))
	}
	return w
}

// isSize reports whether a resource says how large a container's shares of GPUs are. Those that an administrator mapped to classes do not,
// nor do those of a project whose GPUs a class of the input gives out.
func (m *meanings) isSize(name string) bool {
	return m.options.Classes[name] == "" && m.offered[name] == "" && slices.ContainsFunc(shares.Projects(), func(r shares.Resources) bool {
		return r.Has(name) && m.offered[r.Count] == ""
	})
}

// takeShares takes away the resources that say how large a container's shares of GPUs are. It returns the shares by the resource that says
// how many there are. A container that names no GPU has one.
func (m *meanings) takeShares(u *cacheUser, asked map[string]string) (map[string]shares.Share, error) {
	all := map[string]shares.Share{}
	var faults []error
	for _, project := range shares.Projects() {
		sizes := map[string]string{}
		for name, text := range asked {
			if project.Has(name) && m.isSize(name) {
				sizes[name] = text
				delete(asked, name)
			}
		}
		if len(sizes) == 0 {
			continue
		}
		count := m.countOf(project, asked)
		if asked[count] == "" {
			asked[count] = "1"
		}
		share, err := project.Read(sizes, m.options.GPUMemory)
		all[count] = share
		faults = append(faults, prefixed(u.title, err))
	}
	return all, errors.Join(faults...)
}

// countOf is the resource that says how many shares a container has. An administrator may have given it another name in the project's
// domain, which --map says what it means.
func (m *meanings) countOf(project shares.Resources, asked map[string]string) string {
	domain, _, _ := strings.Cut(project.Count, "/")
	var others []string
	for name := range asked {
		if m.options.Classes[name] != "" && strings.HasPrefix(name, domain+"/") {
			others = append(others, name)
		}
	}
	if asked[project.Count] == "" && len(others) == 1 {
		return others[0]
	}
	return project.Count
}

// parseResource says what one unit of a resource is.
func (m *meanings) parseResource(name string) (region, error) {
	if match := regionName.FindStringSubmatch(name); match != nil {
		id, err := v1alpha1.CanonicalID(match[1])
		if err != nil {
			return region{}, fmt.Errorf("the interface id after region-: %w", err)
		}
		return region{interfaceID: id}, nil
	}
	if match := functionName.FindStringSubmatch(name); match != nil {
		return parsePacked(match[1])
	}
	f, ok := m.options.Functions[name]
	if !ok {
		return region{}, fmt.Errorf("a name that an administrator mapped: say what it means with --map %s=INTERFACE[/AFU]", name)
	}
	m.used[name] = true
	return region{interfaceID: f.InterfaceID, id: f.ID}, nil
}

// regionsOf are the regions that a container's resources ask for, by the resources' names.
func (m *meanings) regionsOf(container *node) ([]region, error) {
	resources := child(container, "resources")
	limits, requests := child(resources, "limits"), child(resources, "requests")
	quantities := map[string]string{}
	var names []string
	var faults []error
	for _, p := range append(pairs(limits), pairs(requests)...) {
		name, ours := strings.CutPrefix(p.key.Value, resourcePrefix)
		if !ours {
			continue
		}
		before, seen := quantities[name]
		if seen && !sameAmount(before, p.value.Value) {
			faults = append(faults, fmt.Errorf("resource %s: %.40q in limits and %.40q in requests: expected the same",
				clip(p.key.Value), before, p.value.Value))
		}
		if !seen {
			names = append(names, name)
		}
		quantities[name] = p.value.Value
	}
	slices.Sort(names)
	var regions []region
	for _, name := range names {
		r, count, err := m.resource(name, quantities[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("resource %s: %w", clip(resourcePrefix+name), err))
			continue
		}
		r.resource = resourcePrefix + name
		regions = append(regions, slices.Repeat([]region{r}, count)...)
	}
	if len(faults) == 0 && len(regions) > maxRegions {
		faults = append(faults, fmt.Errorf("%d regions, expected at most %d", len(regions), maxRegions))
	}
	return regions, errors.Join(faults...)
}

func (m *meanings) resource(name, quantity string) (region, int, error) {
	r, err := m.parseResource(name)
	if err != nil {
		return region{}, 0, err
	}
	count, err := wholeQuantity(quantity, maxRegions, "regions")
	return r, count, err
}

// classOf is the class that stands for a resource, and what is known of it.
func (m *meanings) classOf(name string) (string, *resourceClass, error) {
	if class, ok := m.options.Classes[name]; ok {
		m.used[name] = true
		return class, nil, nil
	}
	switch r := known(name); { // whose class is that of the requests that pods get for it
	case m.offered[name] != "":
		return m.offered[name], r, nil
	case r == nil:
	case r.vendorClass():
		return m.wishOf(r, "").class, r, nil
	case r.kind == device.KindFPGA:
		return m.options.Class, r, nil
	default:
		return r.class(), r, nil
	}
	return "", nil, fmt.Errorf("resource %.80q: no DeviceClass is known for it: say which with --map %[1]s=CLASS", clip(name))
}

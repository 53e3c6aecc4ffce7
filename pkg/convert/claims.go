// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/drivers"
)

// resourceGroup is the API group of claims.
const resourceGroup = "resource.k8s.io/"

// claimConversion is that of one ResourceClaim, ResourceClaimTemplate or DeviceClass.
type claimConversion struct {
	*notes
	*meanings
	title   string
	changed bool
	// ours says that a request is for Fettle's devices.
	ours   bool
	faults []error
}

func (k *claimConversion) faultf(format string, args ...any) {
	k.faults = append(k.faults, fmt.Errorf(k.title+": "+format, args...))
}

func (k *claimConversion) note(format string, args ...any) { k.notef(k.title+": "+format, args...) }

// isResource says whether an object is of the API group of claims, and of a kind that may name drivers or classes.
func isResource(n *node) bool {
	kinds := []string{"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule"}
	return strings.HasPrefix(value(n, "apiVersion"), resourceGroup) && slices.Contains(kinds, value(n, "kind"))
}

// resourceObject converts what an object says of other drivers' devices, and the API's older versions if it is for Fettle's devices then.
func (c *conversion) resourceObject(n *node) (text []byte, changed bool, err error) {
	k := &claimConversion{notes: c.notes, meanings: c.meanings, title: titleOf(n)}
	k.object(n)
	if err := errors.Join(k.faults...); err != nil {
		return nil, false, err
	}
	if k.ours || k.changed {
		k.upgrade(n)
	}
	if text, err = render(n); err != nil || !k.changed {
		return text, false, err
	}
	w := &workload{title: k.title, typed: map[string]any{
		"ResourceClaim": &resourceapi.ResourceClaim{}, "ResourceClaimTemplate": &resourceapi.ResourceClaimTemplate{},
		"DeviceClass": &resourceapi.DeviceClass{}, "DeviceTaintRule": &map[string]any{},
	}[value(n, "kind")]}
	return text, true, w.check(text)
}

func (k *claimConversion) object(n *node) {
	spec := child(n, "spec")
	if version := value(n, "apiVersion"); strings.HasPrefix(version, resourceGroup+"v1alpha") && value(n, "kind") != "DeviceTaintRule" {
		if child(spec, "resourceClassName") != nil || child(child(spec, "spec"), "resourceClassName") != nil {
			k.faultf("apiVersion %s: its claims name a resourceClass, which Kubernetes removed in 1.32: write a claim of %sv1", version,
				resourceGroup)
			return
		}
	}
	switch value(n, "kind") {
	case "DeviceClass":
		k.selectors(spec, "spec", nil)
		k.configs(spec, "spec")
	case "DeviceTaintRule":
		k.taintRule(spec)
	case "ResourceClaimTemplate":
		k.claim(child(spec, "spec"), "spec.spec")
	default:
		k.claim(spec, "spec")
	}
}

// upgrade writes the API's only version.
func (k *claimConversion) upgrade(n *node) {
	const latest = resourceGroup + "v1"
	if version := value(n, "apiVersion"); version != latest {
		below := ""
		if version == resourceGroup+"v1beta1" {
			below = ", with the fields of a request below exactly"
		}
		k.note("apiVersion %s is %s now%s", version, latest, below)
		child(n, "apiVersion").Value, k.changed = latest, true
	}
}

// taintRule renames the driver of a rule that taints devices by their names. Without them it would taint the devices of other vendors too.
func (k *claimConversion) taintRule(spec *node) {
	selector := child(spec, "deviceSelector")
	d := drivers.Lookup(value(selector, "driver"))
	switch {
	case value(selector, "driver") == v1alpha1.DriverName:
		k.ours = true
	case d == nil || d.Name == drivers.Example && len(k.options.Classes) == 0:
	case d.Name == drivers.Example:
		child(selector, "driver").Value, k.changed = v1alpha1.DriverName, true
		k.note("spec.deviceSelector.driver %s is %s now, which has the devices of all vendors: name a pool and a device, as fettle devices "+
			"--cluster shows them", d.Name, v1alpha1.DriverName)
	case value(selector, "device") == "":
		k.faultf("spec.deviceSelector.driver %s: driver %s has the devices of all vendors: write that name, with pool and device as "+
			"fettle devices --cluster shows them", d.Name, v1alpha1.DriverName)
	default:
		k.faultf("spec.deviceSelector.device %s: devices have other names: write those that fettle devices --cluster shows, and driver %s",
			clip(value(selector, "device")), v1alpha1.DriverName)
	}
}

// claim converts the devices of a claim's spec.
func (k *claimConversion) claim(spec *node, path string) {
	devices := child(spec, "devices")
	path += ".devices"
	for i, request := range items(child(devices, "requests")) {
		at := fmt.Sprintf("%s.requests[%d]", path, i)
		exactly(request)
		if one := child(request, "exactly"); one != nil {
			k.request(one, at+".exactly")
		}
		for j, one := range items(child(request, "firstAvailable")) {
			k.request(one, fmt.Sprintf("%s.firstAvailable[%d]", at, j))
		}
	}
	for i, constraint := range items(child(devices, "constraints")) {
		for _, key := range []string{"matchAttribute", "distinctAttribute"} {
			k.constraint(child(constraint, key), fmt.Sprintf("%s.constraints[%d].%s", path, i, key))
		}
	}
	k.configs(devices, path)
}

// exactly moves the fields that v1beta1 had in the request itself.
func exactly(request *node) {
	if child(request, "deviceClassName") == nil || child(request, "exactly") != nil {
		return
	}
	moved := &node{Kind: goyaml.MappingNode, Tag: "!!map"}
	for _, p := range pairs(request) {
		if p.key.Value != "name" {
			moved.Content = append(moved.Content, p.key, p.value)
		}
	}
	remove(request, func(key string) bool { return key != "name" })
	request.Content = append(request.Content, scalar("exactly"), moved)
}

// request converts the class, the selectors and the tolerations of a request.
func (k *claimConversion) request(n *node, at string) {
	class := child(n, "deviceClassName")
	if !isScalar(class) {
		return
	}
	was := class.Value
	target, known := drivers.LookupClass(was)
	mapped, isMapped := k.options.Classes[was]
	if isMapped {
		k.used[was] = true
		target, known = drivers.Class{Name: mapped}, true
	}
	k.ours = k.ours || known || strings.HasSuffix(was, "."+v1alpha1.DriverName)
	if !known {
		if strings.HasSuffix(was, ".nvidia.com") || strings.HasSuffix(was, ".amd.com") || strings.HasSuffix(was, ".intel.com") {
			k.note("%s: class %s is another driver's, which has to be in the cluster", at, clip(was))
		}
		k.selectors(n, at, nil)
		return
	}
	class.Value, k.changed = target.Name, true
	types := k.selectors(n, at, &target)
	if part := drivers.PartClass(strings.Join(types, "+")); !isMapped && len(types) == 1 && types[0] != "gpu" && class.Value != part {
		class.Value = part
		target.Vendor = drivers.Lookup(target.Driver).Vendor
	}
	k.note("%s: class %s is %s now", at, clip(was), class.Value)
	k.partNote(class.Value, at)
	if target.Vendor != "" {
		k.addSelector(n, at, target.Vendor)
	}
	k.tolerations(n, at)
	k.share(child(child(n, "capacity"), "requests"), at)
}

// share converts how much of a device a request has.
func (k *claimConversion) share(capacity *node, at string) {
	for _, p := range pairs(capacity) {
		name := p.key.Value[strings.LastIndex(p.key.Value, "/")+1:]
		if name != "memory" {
			k.faultf("%s.capacity.requests: %.80q: Fettle counts the memory of shares, and a claim has one share of a device: leave it out",
				at, p.key.Value)
			continue
		}
		p.key.Value = name
		k.note("%s.capacity.requests: a PartitionPolicy must have the GPUs in spec.devices.sharing, with memory", at)
	}
}

// partNote says what parts of GPUs need.
func (k *claimConversion) partNote(class, at string) {
	switch {
	case class == drivers.PartClass("vfio"):
		k.note("%s: %s exists if deviceClasses.vfio is set in the chart, and a PartitionPolicy must offer the devices", at, class)
	case slices.Contains([]string{drivers.PartClass("mig"), drivers.PartClass("partition"), drivers.PartClass("vf")}, class):
		k.note("%s: a PartitionPolicy must offer such parts", at)
	}
}

// addSelector narrows a request to the devices of a vendor.
func (k *claimConversion) addSelector(n *node, at, vendor string) {
	entry, err := nodeOf(attributeIs("vendor", vendor))
	if err == nil {
		err = extend(n, "selectors", []*node{entry})
	}
	if err != nil {
		k.faultf("%s: %w", at, err)
	}
}

// selectors converts CEL expressions and returns the types of devices that they ask for. Those that are true of every device go. Without a
// class, the selectors are those of a DeviceClass or of a request for another driver.
func (k *claimConversion) selectors(n *node, at string, class *drivers.Class) (types []string) {
	list := child(n, "selectors")
	var kept []*node
	for i, s := range items(list) {
		text := child(child(s, "cel"), "expression")
		if !isScalar(text) || strings.Contains(text.Value, drivers.Example) && len(k.options.Classes) == 0 {
			kept = append(kept, s)
			continue
		}
		out, ok := k.selector(text, fmt.Sprintf("%s.selectors[%d]", at, i), class != nil)
		types = append(types, out.Types...)
		if ok && !out.Always {
			kept = append(kept, s)
		}
	}
	if len(kept) < len(items(list)) && len(k.faults) == 0 {
		if list.Content = kept; len(kept) == 0 && class != nil {
			removeKey(n, "selectors")
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// selector converts one expression. It is false if that is not possible. ours says that it is for Fettle's devices.
func (k *claimConversion) selector(text *node, at string, ours bool) (out drivers.Expression, ok bool) {
	out, err := drivers.Convert(text.Value)
	for _, fault := range unjoin(err) {
		k.faultf("%s: %w", at, fault)
	}
	for _, note := range out.Notes {
		k.note("%s: %s", at, note)
	}
	if ours && len(out.Unknown) > 0 {
		k.note("%s: no device of the class has attributes of %s", at, strings.Join(out.Unknown, ", "))
	}
	if out.Changed {
		text.Value, text.Style, text.Tag, k.changed = out.Text, 0, "!!str", true
	}
	return out, err == nil
}

// constraint converts the name of an attribute.
func (k *claimConversion) constraint(n *node, at string) {
	if !isScalar(n) {
		return
	}
	name, err := drivers.ConvertConstraint(n.Value)
	if err != nil {
		k.faultf("%s: %w", at, err)
		return
	}
	if name != n.Value {
		hint := ""
		if name == drivers.ModelID {
			hint = "; " + drivers.SameCard
		}
		k.note("%s: %s is %s now%s", at, clip(n.Value), name, hint)
		n.Value, k.changed = name, true
	}
}

// tolerations renames the taint that the vendors' drivers give to unhealthy devices.
func (k *claimConversion) tolerations(n *node, at string) {
	for i, toleration := range items(child(n, "tolerations")) {
		key := child(toleration, "key")
		domain, name, _ := strings.Cut(value(toleration, "key"), "/")
		switch d := drivers.Lookup(domain); {
		case d == nil || d.Vendor == "":
		case name == "unhealthy":
			key.Value = v1alpha1.DriverName + "/unhealthy"
		default:
			k.note("%s.tolerations[%d]: no taint of Fettle has the key %s", at, i, clip(key.Value))
		}
	}
}

// configs converts opaque configurations. What says nothing that Fettle needs is left out.
func (k *claimConversion) configs(n *node, at string) {
	list := child(n, "config")
	var kept []*node
	for i, entry := range items(list) {
		opaque := child(entry, "opaque")
		driver := child(opaque, "driver")
		d := drivers.Lookup(value(opaque, "driver"))
		if d == nil || d.Vendor == "" && len(k.options.Classes) == 0 {
			kept = append(kept, entry)
			continue
		}
		path := fmt.Sprintf("%s.config[%d]", at, i)
		config, err := k.config(d.Name, child(opaque, "parameters"))
		for _, fault := range unjoin(err) {
			k.faultf("%s: %w", path, fault)
		}
		for _, note := range config.Notes {
			k.note("%s: %s", path, note)
		}
		k.changed = true
		if err != nil || config.Parameters == nil {
			continue
		}
		parameters, err := nodeOf(config.Parameters)
		if err != nil {
			k.faultf("%s: %w", path, err)
			continue
		}
		driver.Value = v1alpha1.DriverName
		*child(opaque, "parameters") = *parameters
		kept = append(kept, entry)
	}
	if len(kept) < len(items(list)) {
		if list.Content = kept; len(kept) == 0 {
			removeKey(n, "config")
		}
	}
}

func (k *claimConversion) config(driver string, parameters *node) (drivers.Config, error) {
	var content any
	if parameters == nil {
		return drivers.Config{}, errors.New("opaque.parameters: expected an object")
	}
	if err := parameters.Decode(&content); err != nil {
		return drivers.Config{}, fmt.Errorf("opaque.parameters: expected YAML: %s", oneLine(err))
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return drivers.Config{}, fmt.Errorf("opaque.parameters: expected only strings as keys: %s", oneLine(err))
	}
	return drivers.ConvertConfig(driver, raw)
}

// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/convert/drivers"
	"github.com/fettle-dev/fettle/pkg/device"
)

// The prefixes of resources that stand for GPUs. A class's own resource (KEP-5004) stands behind classResource.
const (
	nvidiaResource = "nvidia.com/gpu"
	amdResource    = "amd.com/gpu"
	classResource  = "deviceclass.resource.kubernetes.io/"
)

// gpuWords are in every document whose containers may ask for GPUs as resources.
func gpuWords() []string {
	return []string{"nvidia.com/", "amd.com/", `"intel.com/gpu"`, `"gpu.intel.com/`, `"alpha.kubernetes.io/nvidia-gpu"`, `"` + classResource}
}

// gpuWish is what one unit of a resource is.
type gpuWish struct {
	class     string
	selectors []resourceapi.DeviceSelector
	// refused says why it cannot be converted.
	refused string
}

// gpuWish says what a container asks for with a resource. It is false for resources that are no GPUs.
func (c *conversion) gpuWish(name string) (gpuWish, bool) {
	if class, ok := c.options.Classes[name]; ok {
		c.used[name] = true
		return gpuWish{class: class}, true
	}
	if c.offered[name] != "" {
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
	return c.wishOf(r, unit), true
}

// refusedResource says why a resource of a GPU plugin cannot be converted. Empty: it can, or it is of no such plugin.
func refusedResource(name, unit string) string {
	switch intel := strings.HasPrefix(name, "gpu.intel.com/"); {
	case strings.HasPrefix(name, "nvidia.com/") && strings.HasSuffix(name, ".shared"):
		return "a share of a GPU: say the class of GPUs that a PartitionPolicy shares with --map " + name + "=CLASS"
	case intel && strings.HasSuffix(name, "monitoring"):
		return "monitoring is a claim with adminAccess and allocationMode All, in a namespace with the label " +
			"resource.kubernetes.io/admin-access=true (docs/user/claims.md)"
	case intel && unit != "i915" && unit != "xe":
		return "a claim has the whole GPU: leave it out"
	}
	return ""
}

// wishOf is what a resource of the table is. An administrator's class (--gpu-class) may give out GPUs of all vendors.
func (c *conversion) wishOf(r *resourceClass, unit string) gpuWish {
	w := gpuWish{class: c.options.GPUClass}
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

// takeGPUs makes requests of the GPUs that a container asks for as resources: the cache has to fit them, so they are the claim's.
func (c *conversion) takeGPUs(u *cacheUser) error {
	resources := child(u.node, "resources")
	asked := map[string]string{}
	isGPU := func(name string) bool { _, ok := c.gpuWish(name); return ok }
	for _, key := range []string{"requests", "limits"} {
		list := child(resources, key)
		for _, p := range pairs(list) {
			if isGPU(p.key.Value) {
				asked[p.key.Value] = p.value.Value
			}
		}
		if remove(list, isGPU); isMapping(list) && len(list.Content) == 0 {
			removeKey(resources, key)
		}
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		wish, _ := c.gpuWish(name)
		count, err := wholeQuantity(asked[name], maxRegions, "GPUs")
		if wish.refused != "" {
			err = errors.New(wish.refused)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: resource %s: %w", u.title, clip(name), err))
			continue
		}
		if count == 0 {
			continue
		}
		// The request has the resource's name until it gets its own.
		u.gpus = append(u.gpus, resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: wish.class, Selectors: wish.selectors,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
		}})
		c.wishNote(u, name, count, wish)
	}
	return errors.Join(faults...)
}

// wishNote says what became of a resource.
func (c *conversion) wishNote(u *cacheUser, name string, count int, wish gpuWish) {
	text := fmt.Sprintf("%s: resource %s is a request of the claim now, for %d of class %s", u.title, clip(name), count, wish.class)
	for _, s := range wish.selectors {
		_, condition, _ := strings.Cut(s.CEL.Expression, " && ")
		text += " with " + strings.TrimPrefix(condition, `device.attributes["fettle.dev"].`)
	}
	c.notef("%s", text)
	if r := known(name); r != nil && r.part != "" && r.attribute != string(device.AttributeProfile) {
		c.notef("%s: %s names no profile that is known: add a selector for it to the template", u.title, clip(name))
	}
}

// gpuPods makes a claim of the GPUs that a pod's containers ask for as resources, and gives its template; nothing where they ask for none.
// Pods keep their resources if caches keep their volumes.
func (c *conversion) gpuPods(w *workload) ([]byte, error) {
	if c.options.KernelCacheVolumes {
		return nil, nil
	}
	var users []*cacheUser
	var faults []error
	for _, list := range []string{"initContainers", "containers"} {
		for i, n := range items(child(w.spec, list)) {
			u := &cacheUser{node: n, title: fmt.Sprintf("%s: %s[%d]", w.title, list, i)}
			if name := value(n, "name"); name != "" {
				u.title = w.title + ": container " + clip(name)
			}
			faults = append(faults, c.takeGPUs(u))
			if len(u.gpus) == 0 {
				continue
			}
			users = append(users, u)
			if list == "initContainers" && value(n, "restartPolicy") != "Always" {
				c.notef("%s: an init container has GPUs of its own now, which no other container uses after it", u.title)
			}
		}
	}
	if err := errors.Join(faults...); err != nil || len(users) == 0 {
		return nil, err
	}
	parts := slices.ContainsFunc(users, func(u *cacheUser) bool { return slices.ContainsFunc(u.gpus, ofPart) })
	selectors, err := c.labelSelectors(w, parts)
	if err != nil {
		return nil, err
	}
	c.dropRuntime(w, users)
	return c.gpuTemplate(w, users, selectors)
}

// gpuTemplate makes the claim's template, and has the containers name its requests.
func (c *conversion) gpuTemplate(w *workload, users []*cacheUser, selectors []resourceapi.DeviceSelector) ([]byte, error) {
	if value(w.spec, "nodeName") != "" {
		c.notef("%s: nodeName passes by the scheduler, which allocates claims: use a nodeSelector", w.title)
	}
	// Labels are of the vendors' GPUs. Only where a pod has none may what an administrator mapped be GPUs by another name.
	labelled := slices.ContainsFunc(users, func(u *cacheUser) bool {
		return slices.ContainsFunc(u.gpus, func(r resourceapi.DeviceRequest) bool { return c.ofVendor(r.Name) })
	})
	return c.ownTemplate(w, func(devices *resourceapi.DeviceClaim, claim string) error {
		for _, u := range users {
			var mine []string
			for _, request := range u.gpus {
				if c.ofVendor(request.Name) || !labelled {
					request.Exactly.Selectors = append(request.Exactly.Selectors, selectors...)
				}
				if request.Name = "gpu"; len(devices.Requests) > 0 {
					request.Name = fmt.Sprintf("gpu-%d", len(devices.Requests)+1)
				}
				devices.Requests, mine = append(devices.Requests, request), append(mine, request.Name)
			}
			if err := nameRequests(u.node, claim, mine); err != nil {
				return fmt.Errorf("%s: %w", u.title, err)
			}
		}
		return nil
	})
}

// ofVendor says whether a resource that is converted is of GPUs, whatever class it is mapped to.
func (c *conversion) ofVendor(name string) bool {
	_, mapped := c.options.Classes[name]
	vendors := []string{"nvidia.com/", "amd.com/", "intel.com/gpu", "gpu.intel.com/", "alpha.kubernetes.io/nvidia-gpu"}
	return !mapped || slices.ContainsFunc(vendors, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// ownTemplate makes a template for a claim of the workload's pods, which fill fills, and has the pods name it. It returns the
// template as YAML.
func (c *conversion) ownTemplate(w *workload, fill func(devices *resourceapi.DeviceClaim, claim string) error) ([]byte, error) {
	if faults := validation.IsDNS1123Subdomain(w.name); len(faults) > 0 {
		return nil, fmt.Errorf("%s: metadata.name: %s", w.title, faults[0])
	}
	name, claim := c.templateName(w, "-gpu"), freeClaimName(w.spec, "gpu")
	t := resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
	}
	devices := &t.Spec.Spec.Devices
	if err := fill(devices, claim); err != nil {
		return nil, err
	}
	total := int64(0)
	for _, request := range devices.Requests {
		total += max(request.Exactly.Count, 1)
	}
	if total > maxRegions {
		return nil, fmt.Errorf("%s: %d devices, expected at most %d in a pod: no claim is given more", w.title, total, maxRegions)
	}
	entry, err := nodeOf(corev1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: &name})
	if err == nil {
		err = extend(w.spec, "resourceClaims", []*node{entry})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.title, err)
	}
	return renderTemplate(t)
}

// ofPart says whether a request is for parts of GPUs. It has the resource's name yet.
func ofPart(request resourceapi.DeviceRequest) bool {
	r := known(request.Name)
	return r != nil && r.part != "" || request.Exactly.DeviceClassName == drivers.PartClass(device.TypePartition)
}

// labelSelectors takes the labels of a node selector that say which GPU a pod wants, and gives the claim's selectors for them. The labels
// have the memory of whole GPUs: where the pod has parts, that stays a label.
func (c *conversion) labelSelectors(w *workload, parts bool) ([]resourceapi.DeviceSelector, error) {
	var selectors []resourceapi.DeviceSelector
	var faults []error
	labels := child(w.spec, "nodeSelector")
	taken := map[string]bool{}
	for _, p := range pairs(labels) {
		expression, ok, err := drivers.ConvertLabel(p.key.Value, p.value.Value)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: nodeSelector: %w", w.title, err))
		case ok && (!parts || !drivers.OfMemory(p.key.Value)):
			selectors = append(selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
			taken[p.key.Value] = true
			c.notef("%s: the label %s of nodeSelector is a selector of the claim now", w.title, clip(p.key.Value))
		case strings.HasPrefix(p.key.Value, "nvidia.com/") || strings.HasPrefix(p.key.Value, "amd.com/"):
			c.notef("%s: nodeSelector keeps %s, a label that the vendor's software puts on nodes", w.title, clip(p.key.Value))
		}
	}
	if remove(labels, func(key string) bool { return taken[key] }); isMapping(labels) && len(labels.Content) == 0 {
		removeKey(w.spec, "nodeSelector")
	}
	affinity := child(w.spec, "affinity")
	if affinity == nil {
		return selectors, errors.Join(faults...)
	}
	if text, err := render(affinity); err == nil && strings.Contains(string(text), ".com/") {
		c.notef("%s: affinity is left as it is: what it says of GPUs belongs into the claim's selectors", w.title)
	}
	return selectors, errors.Join(faults...)
}

// dropRuntime takes away what chooses the GPUs of a container past its claim.
func (c *conversion) dropRuntime(w *workload, users []*cacheUser) {
	const visible = "NVIDIA_VISIBLE_DEVICES"
	if value(w.spec, "runtimeClassName") == "nvidia" {
		removeKey(w.spec, "runtimeClassName")
		c.notef("%s: runtimeClassName nvidia is left out: it gives a container the GPUs that its image or environment names", w.title)
	}
	for _, u := range users {
		env := child(u.node, "env")
		if !isSequence(env) {
			continue
		}
		before := len(env.Content)
		env.Content = slices.DeleteFunc(env.Content, func(v *node) bool { return value(v, "name") == visible && value(v, "value") != "void" })
		if len(env.Content) < before {
			c.notef("%s: %s is left out: the claim says which GPUs it has", u.title, visible)
		}
		if len(env.Content) == 0 {
			removeKey(u.node, "env")
		}
	}
}

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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/convert/drivers"
	"github.com/fettle-dev/fettle/pkg/convert/peak"
	"github.com/fettle-dev/fettle/pkg/convert/shares"
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
	return []string{
		"nvidia.com/", "amd.com/", `"intel.com/gpu"`, `"gpu.intel.com/`, `"alpha.kubernetes.io/nvidia-gpu"`, `"` + classResource,
		`"` + shares.KAIFraction, `"` + shares.KAIMemory,
	}
}

// gpuWish is what one unit of a resource is.
type gpuWish struct {
	class     string
	selectors []resourceapi.DeviceSelector
	// refused says why it cannot be converted.
	refused string
}

// request returns the request for so many units. It has the resource's name until it gets its own.
func (w gpuWish) request(name string, count int) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: w.class, Selectors: w.selectors,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
	}}
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
	_, shared := c.gpuWish(nvidiaResource)
	isGPU := func(name string) bool {
		_, ok := c.gpuWish(name)
		return ok || shared && shares.IsHAMi(name) && c.offered[name] == ""
	}
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
	share, err := takeShare(u, asked, c.options.Classes)
	faults := []error{err}
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
		request := wish.request(name, count)
		c.wishNote(u, name, count, wish)
		if name == nvidiaResource {
			c.notesOf(u.title, ofShare(&request, share))
		}
		u.gpus = append(u.gpus, request)
	}
	return errors.Join(faults...)
}

// takeShare takes away the resources that say how large a container's shares of GPUs are, but for those that an administrator mapped to
// classes. A container that names no GPU has one.
func takeShare(u *cacheUser, asked, mapped map[string]string) (shares.Share, error) {
	sizes := map[string]string{}
	for name, text := range asked {
		if shares.IsHAMi(name) && mapped[name] == "" {
			sizes[name] = text
			delete(asked, name)
		}
	}
	if len(sizes) == 0 {
		return shares.Share{}, nil
	}
	if asked[nvidiaResource] == "" {
		asked[nvidiaResource] = "1"
	}
	share, err := shares.FromHAMi(sizes)
	if err != nil {
		err = fmt.Errorf("%s: %w", u.title, err)
	}
	return share, err
}

// ofShare has a request ask for the memory of a share, and returns what there is to say of it.
func ofShare(request *resourceapi.DeviceRequest, share shares.Share) []string {
	if share.Memory == nil {
		return share.Lost
	}
	request.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{device.CapacityMemory: *share.Memory},
	}
	return append(share.Lost, fmt.Sprintf("it asks for %s of the memory of each GPU: where no PartitionPolicy shares GPUs, "+
		"it gets a whole one that has as much", share.Memory))
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
			u := &cacheUser{node: n, phase: phaseOf(list, n), title: fmt.Sprintf("%s: %s[%d]", w.title, list, i)}
			if name := value(n, "name"); name != "" {
				u.title = w.title + ": container " + clip(name)
			}
			faults = append(faults, c.takeGPUs(u))
			if len(u.gpus) == 0 {
				continue
			}
			users = append(users, u)
		}
	}
	err := errors.Join(faults...)
	if err == nil && len(users) == 0 {
		users, err = c.annotatedUsers(w)
	}
	if err != nil || len(users) == 0 {
		return nil, err
	}
	c.notesOf(w.title, leftNotes(w, c.offered))
	parts := slices.ContainsFunc(users, func(u *cacheUser) bool { return slices.ContainsFunc(u.gpus, ofPart) })
	selectors, err := c.labelSelectors(w, parts)
	if err != nil {
		return nil, err
	}
	c.dropRuntime(w, users)
	return c.gpuTemplate(w, users, selectors)
}

// annotatedUsers returns the container whose pod asks for shares by annotations, none if it does not.
func (c *conversion) annotatedUsers(w *workload) ([]*cacheUser, error) {
	annotations := child(w.meta, "annotations")
	texts := map[string]string{}
	for _, p := range pairs(annotations) {
		texts[p.key.Value] = p.value.Value
	}
	kai, err := shares.FromKAI(texts)
	if err != nil || kai.Devices == 0 {
		return nil, prefixed(w.title, err)
	}
	for _, n := range items(child(w.spec, "containers")) {
		if kai.Container != "" && value(n, "name") != kai.Container {
			continue
		}
		u := &cacheUser{node: n, title: w.title + ": container " + clip(value(n, "name"))}
		wish, ok := c.gpuWish(nvidiaResource)
		if !ok {
			return nil, fmt.Errorf("%s: annotations ask for a share of a GPU, and class %s gives out %s: write a claim",
				w.title, c.offered[nvidiaResource], nvidiaResource)
		}
		request := wish.request(nvidiaResource, kai.Devices)
		c.notef("%s: the annotations of a share are a request of the claim now, for %d of class %s", u.title, kai.Devices, wish.class)
		c.notesOf(u.title, ofShare(&request, kai.Share))
		u.gpus = append(u.gpus, request)
		if remove(annotations, shares.IsKAI); len(annotations.Content) == 0 {
			removeKey(w.meta, "annotations")
		}
		return []*cacheUser{u}, nil
	}
	return nil, fmt.Errorf("%s: annotation %s: no container is called %s", w.title, shares.KAIContainer, clip(kai.Container))
}

// prefixed says what an error is about.
func prefixed(title string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", title, err)
}

// leftNotes names what a pod keeps of the software that gave it GPUs before. offered are the resources that classes of the input give out.
func leftNotes(w *workload, offered map[string]string) []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for _, list := range []string{"annotations", "labels"} {
		for _, p := range pairs(child(w.meta, list)) {
			if ofVendorSoftware(p.key.Value) {
				note("%s keep %s, which Fettle does not read: what it says of GPUs belongs into the claim's selectors", list, clip(p.key.Value))
			}
		}
	}
	for _, toleration := range items(child(w.spec, "tolerations")) {
		if key := value(toleration, "key"); ofVendorSoftware(key) {
			note("the toleration of %s stays, for as long as nodes have that taint", clip(key))
		}
	}
	if name := value(w.spec, "schedulerName"); name != "" && name != corev1.DefaultSchedulerName {
		note("schedulerName %s stays: without that scheduler the pod waits for ever", clip(name))
	}
	for _, n := range slices.Concat(items(child(w.spec, "initContainers")), items(child(w.spec, "containers"))) {
		for _, name := range resourcesOf(n) {
			if ofVendorSoftware(name) && offered[name] == "" {
				note("container %s keeps the resource %s: without what offers it the pod waits for ever; --map %s=CLASS converts it",
					clip(value(n, "name")), clip(name), clip(name))
			}
		}
	}
	return notes
}

// resourcesOf lists the resources that a container asks for, by name.
func resourcesOf(n *node) []string {
	var names []string
	for _, key := range []string{"requests", "limits"} {
		for _, p := range pairs(child(child(n, "resources"), key)) {
			names = append(names, p.key.Value)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ofVendorSoftware reports whether a name belongs to the software of a GPU's vendor, or to what shares GPUs on top of it.
func ofVendorSoftware(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	for _, of := range []string{"nvidia.com", "amd.com", "gpu.intel.com", "hami.io", "kai.scheduler", "run.ai"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return shares.IsKAI(name)
}

// gpuTemplate makes the claim's template, and has the containers name its requests.
func (c *conversion) gpuTemplate(w *workload, users []*cacheUser, selectors []resourceapi.DeviceSelector) ([]byte, error) {
	if value(w.spec, "nodeName") != "" {
		c.notef("%s: nodeName passes by the scheduler, which allocates claims: use a nodeSelector", w.title)
	}
	// Labels are of the vendors' GPUs. Only where a pod has none may what an administrator mapped be GPUs by another name.
	labelled := slices.ContainsFunc(users, func(u *cacheUser) bool {
		return slices.ContainsFunc(u.gpus, func(r resourceapi.DeviceRequest) bool { return ofVendor(r.Name, c.options.Classes) })
	})
	return c.ownTemplate(w, func(devices *resourceapi.DeviceClaim, claim string) error {
		requests, notes := requestsOf(users)
		c.notesOf(w.title, notes)
		mine := make([][]string, len(users))
		for _, r := range requests {
			if ofVendor(r.Name, c.options.Classes) || !labelled {
				r.Exactly.Selectors = append(r.Exactly.Selectors, selectors...)
			}
			name := addRequest(devices, r.DeviceRequest)
			for _, i := range r.users {
				mine[i] = append(mine[i], name)
			}
		}
		for i, u := range users {
			if err := nameRequests(u.node, claim, mine[i]); err != nil {
				return fmt.Errorf("%s: %w", u.title, err)
			}
		}
		return nil
	})
}

// usedRequest is a request of a claim, with the containers that have its devices, by their places in a list.
type usedRequest struct {
	resourceapi.DeviceRequest
	users []int
}

// requestsOf gives the requests of containers, which are in the order in which they start. An init container that ends hands its devices
// on, as it did when they were resources; notes say which. Requests have the names of their resources.
func requestsOf(users []*cacheUser) (requests []usedRequest, notes []string) {
	var names []string
	for _, u := range users {
		for i := range u.gpus {
			names = append(names, u.gpus[i].Name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		containers := make([]peak.Container, len(users))
		for i, u := range users {
			containers[i].Phase = u.phase
			if r := u.gpu(name); r != nil {
				containers[i].Count = r.Exactly.Count
			}
		}
		for _, r := range peak.Requests(containers) {
			request := users[r.Containers[0]].gpu(name).DeepCopy()
			request.Exactly.Count = r.Count
			for _, i := range r.Containers[1:] {
				request.Exactly.Capacity = larger(request.Exactly.Capacity, users[i].gpu(name).Exactly.Capacity)
			}
			requests = append(requests, usedRequest{*request, r.Containers})
			if len(r.Containers) > 1 {
				notes = append(notes, sharedNote(users, r))
			}
		}
	}
	slices.SortStableFunc(requests, func(a, b usedRequest) int { return slices.Compare(a.users, b.users) })
	return requests, notes
}

// larger is what serves two containers one after the other. Nil is all that a device has.
func larger(a, b *resourceapi.CapacityRequirements) *resourceapi.CapacityRequirements {
	if a == nil || b == nil {
		return nil
	}
	if first, second := a.Requests[device.CapacityMemory], b.Requests[device.CapacityMemory]; first.Cmp(second) < 0 {
		return b
	}
	return a
}

// sharedNote names the containers that have the same devices, one after the other.
func sharedNote(users []*cacheUser, r peak.Request) string {
	var names []string
	for _, i := range r.Containers {
		names = append(names, clip(value(users[i].node, "name")))
	}
	devices := "a device"
	if r.Count > 1 {
		devices = fmt.Sprintf("%d devices", r.Count)
	}
	return fmt.Sprintf("containers %s have %s in common, since each of them ends before the next begins", strings.Join(names, ", "), devices)
}

// gpu returns what a container asks for of a resource. Nil: nothing.
func (u *cacheUser) gpu(name string) *resourceapi.DeviceRequest {
	i := slices.IndexFunc(u.gpus, func(r resourceapi.DeviceRequest) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &u.gpus[i]
}

// notesOf notes sentences about an object or a container.
func (c *conversion) notesOf(title string, sentences []string) {
	for _, sentence := range sentences {
		c.notef("%s: %s", title, sentence)
	}
}

// addRequest adds a request to a claim, and returns the name that it gets.
func addRequest(devices *resourceapi.DeviceClaim, request resourceapi.DeviceRequest) string {
	if request.Name = "gpu"; len(devices.Requests) > 0 {
		request.Name = fmt.Sprintf("gpu-%d", len(devices.Requests)+1)
	}
	devices.Requests = append(devices.Requests, request)
	return request.Name
}

// phaseOf returns when a container of a list runs.
func phaseOf(list string, n *node) peak.Phase {
	switch {
	case list != "initContainers":
		return peak.Main
	case value(n, "restartPolicy") == "Always":
		return peak.Sidecar
	}
	return peak.Init
}

// ofVendor says whether a resource that is converted is of GPUs, whatever class it is mapped to.
func ofVendor(name string, classes map[string]string) bool {
	_, mapped := classes[name]
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

// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
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
		"nvidia.com/", "amd.com/", "volcano.sh/vgpu", `"intel.com/gpu"`, `"gpu.intel.com/`, `"alpha.kubernetes.io/nvidia-gpu"`,
		`"` + classResource, `"` + shares.KAIFraction, `"` + shares.KAIMemory,
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

// takeGPUs makes requests of the GPUs that a container asks for as resources: the cache has to fit them, so they are the claim's. It says
// whether there were any.
func (c *conversion) takeGPUs(u *cacheUser) (bool, error) {
	resources := child(u.node, "resources")
	asked := map[string]string{}
	isGPU := func(name string) bool {
		_, ok := c.gpuWish(name)
		return ok || c.isSize(name)
	}
	var faults []error
	for _, key := range []string{"requests", "limits"} {
		list := child(resources, key)
		for _, p := range pairs(list) {
			if !isGPU(p.key.Value) {
				continue
			}
			if before, seen := asked[p.key.Value]; seen && !sameAmount(before, p.value.Value) {
				faults = append(faults, fmt.Errorf("%s: resource %s: %.40q in limits and %.40q in requests: expected the same",
					u.title, clip(p.key.Value), p.value.Value, before))
			}
			asked[p.key.Value] = p.value.Value
		}
		if remove(list, isGPU); isMapping(list) && len(list.Content) == 0 {
			removeKey(resources, key)
		}
	}
	found := len(asked) > 0
	sizes, err := c.takeShares(u, asked)
	faults = append(faults, err)
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
			c.notef("%s: resource %s: 0 is left out: it asks for nothing", u.title, clip(name))
			c.notesOf(u.title, ofNothing(sizes[name]))
			continue
		}
		request := wish.request(name, count)
		c.wishNote(u, name, count, wish)
		c.notesOf(u.title, ofShare(&request, sizes[name]))
		u.gpus = append(u.gpus, request)
	}
	return found, errors.Join(faults...)
}

// ofShare has a request ask for the memory of a share, and returns what there is to say of it.
func ofShare(request *resourceapi.DeviceRequest, share shares.Share) []string {
	if share.Memory == nil {
		return share.Lost
	}
	request.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{device.CapacityMemory: *share.Memory},
	}
	return append(share.Lost, fmt.Sprintf("it asks for %s of the memory of each GPU (%s): where no PartitionPolicy shares GPUs, "+
		"it gets a whole one that has as much", share.Memory, share.From))
}

// ofNothing says what is lost with a share of no GPU.
func ofNothing(share shares.Share) []string {
	if share.Memory == nil {
		return share.Lost
	}
	return append(share.Lost, fmt.Sprintf("resource %s is left out: the container has no GPU that it is of", share.From))
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
// Pods keep their resources if caches keep their volumes. It says whether the pod changed.
func (c *conversion) gpuPods(w *workload) (template []byte, changed bool, err error) {
	if c.options.KernelCacheVolumes {
		return nil, false, nil
	}
	var users []*cacheUser
	var faults []error
	for _, list := range []string{"initContainers", "containers"} {
		for i, n := range items(child(w.spec, list)) {
			u := &cacheUser{node: n, phase: phaseOf(list, n), title: fmt.Sprintf("%s: %s[%d]", w.title, list, i)}
			if name := value(n, "name"); name != "" {
				u.title = w.title + ": container " + clip(name)
			}
			did, err := c.takeGPUs(u)
			changed, faults = changed || did, append(faults, err)
			if len(u.gpus) > 0 {
				users = append(users, u)
			}
		}
	}
	err = errors.Join(faults...)
	if err == nil && len(users) == 0 {
		users, err = c.annotatedUsers(w)
	}
	if err != nil || len(users) == 0 {
		return nil, changed, err
	}
	parts := slices.ContainsFunc(users, func(u *cacheUser) bool { return slices.ContainsFunc(u.gpus, ofPart) })
	selectors, err := c.labelSelectors(w, parts)
	if err != nil {
		return nil, false, err
	}
	c.dropRuntime(w, users)
	c.notesOf(w.title, slices.Concat(dropShare(w), chosenGPUs(w, users)))
	template, err = c.gpuTemplate(w, users, selectors)
	return template, true, err
}

// annotatedUsers returns the container whose pod asks for shares by annotations, none if it does not.
func (c *conversion) annotatedUsers(w *workload) ([]*cacheUser, error) {
	annotations := child(w.meta, "annotations")
	kai, err := shares.FromKAI(textsOf(annotations), c.options.GPUMemory)
	if err != nil || kai.Devices == 0 {
		return nil, prefixed(w.title, err)
	}
	n := annotatedContainer(w, kai)
	if n == nil {
		return nil, fmt.Errorf("%s: annotation %s: no container is called %s", w.title, shares.KAIContainer, clip(kai.Container))
	}
	u := &cacheUser{node: n, title: w.title + ": container " + clip(value(n, "name"))}
	wish, ok := c.gpuWish(nvidiaResource)
	if !ok {
		return nil, fmt.Errorf("%s: annotations ask for a share of a GPU, and class %s gives out %s: write a claim",
			w.title, c.offered[nvidiaResource], nvidiaResource)
	}
	request := wish.request(nvidiaResource, kai.Devices)
	names := removeAnnotations(w, shares.IsKAI)
	slices.Sort(names)
	c.notef("%s: the annotations of a share (%s) are a request of the claim now, for %d of class %s", u.title, strings.Join(names, ", "),
		kai.Devices, wish.class)
	c.notesOf(u.title, ofShare(&request, kai.Share))
	u.gpus = append(u.gpus, request)
	return []*cacheUser{u}, nil
}

// annotatedContainer returns the container that has the share which annotations ask for. Nil: the pod has none of the name.
func annotatedContainer(w *workload, kai shares.KAI) *node {
	containers := items(child(w.spec, "containers"))
	at := slices.IndexFunc(containers, func(n *node) bool { return kai.Container == "" || value(n, "name") == kai.Container })
	if at < 0 {
		return nil
	}
	return containers[at]
}

// shareOfCaches has the request of a container with caches ask for the share that annotations ask for: the caches are for that GPU. Where
// containers ask for GPUs by resources, annotations ask for none.
func (c *conversion) shareOfCaches(w *workload, users []*cacheUser) error {
	kai, err := shares.FromKAI(textsOf(child(w.meta, "annotations")), c.options.GPUMemory)
	if err != nil || kai.Devices == 0 || c.asksForGPUs(w, users) {
		return nil //nolint:nilerr // gpuPods says what is wrong with the annotations
	}
	at := slices.IndexFunc(users, func(u *cacheUser) bool { return u.node == annotatedContainer(w, kai) })
	if at < 0 {
		return nil
	}
	annotated, err := c.annotatedUsers(w)
	for _, u := range annotated {
		users[at].gpus = u.gpus
	}
	return err
}

// asksForGPUs reports whether a container asks for GPUs by resources, which those of users did already.
func (c *conversion) asksForGPUs(w *workload, users []*cacheUser) bool {
	if slices.ContainsFunc(users, func(u *cacheUser) bool { return len(u.gpus) > 0 }) {
		return true
	}
	all := slices.Concat(items(child(w.spec, "initContainers")), items(child(w.spec, "containers")))
	return slices.ContainsFunc(all, func(n *node) bool {
		resources := child(n, "resources")
		return slices.ContainsFunc(append(pairs(child(resources, "requests")), pairs(child(resources, "limits"))...), func(p pair) bool {
			_, ok := c.gpuWish(p.key.Value)
			return ok || c.isSize(p.key.Value)
		})
	})
}

// chosenGPUs takes the annotations of HAMi that say which NVIDIA GPUs a pod may have, and has the requests for these select them. Notes say
// which annotations these are.
func chosenGPUs(w *workload, users []*cacheUser) (notes []string) {
	taken := map[string]bool{}
	for _, choice := range shares.Choices(textsOf(child(w.meta, "annotations"))) {
		for _, u := range users {
			taken[choice.Annotation] = u.choose(choice.Expression) || taken[choice.Annotation]
		}
		if taken[choice.Annotation] {
			notes = append(notes, fmt.Sprintf("the annotation %s is a selector of the claim now", choice.Annotation))
		}
	}
	removeAnnotations(w, func(key string) bool { return taken[key] })
	return notes
}

// choose has the container's requests for NVIDIA GPUs select some, and says whether it has such requests.
func (u *cacheUser) choose(expression string) bool {
	chosen := false
	for i := range u.gpus {
		r := &u.gpus[i]
		if r.Name == nvidiaResource || strings.HasPrefix(r.Name, migResource) || strings.HasPrefix(r.Name, "volcano.sh/") {
			selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
			r.Exactly.Selectors = append(slices.Clone(r.Exactly.Selectors), selector)
			chosen = true
		}
	}
	return chosen
}

// dropShare takes away the annotations that ask KAI-Scheduler for a share, where containers ask for GPUs: it refuses such pods.
func dropShare(w *workload) (notes []string) {
	for _, name := range removeAnnotations(w, shares.IsKAI) {
		notes = append(notes, fmt.Sprintf("the annotation %s is left out: containers ask for GPUs, and the claim has these", name))
	}
	return notes
}

// removeAnnotations takes annotations of a pod away, and returns their names.
func removeAnnotations(w *workload, gone func(name string) bool) []string {
	annotations := child(w.meta, "annotations")
	var names []string
	for _, p := range pairs(annotations) {
		if gone(p.key.Value) {
			names = append(names, p.key.Value)
		}
	}
	if remove(annotations, gone); len(names) > 0 && len(annotations.Content) == 0 {
		removeKey(w.meta, "annotations")
	}
	return names
}

// textsOf reads a mapping of texts.
func textsOf(n *node) map[string]string {
	texts := map[string]string{}
	for _, p := range pairs(n) {
		texts[p.key.Value] = p.value.Value
	}
	return texts
}

// prefixed says what an error is about.
func prefixed(title string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", title, err)
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
		mine, names := make([][]string, len(users)), []string{}
		for _, r := range requests {
			if ofVendor(r.Name, c.options.Classes) || !labelled {
				r.Exactly.Selectors = append(r.Exactly.Selectors, selectors...)
			}
			name := addRequest(devices, r.DeviceRequest)
			names = append(names, name)
			for _, i := range r.users {
				mine[i] = append(mine[i], name)
			}
		}
		c.apart(devices, users, requests, names)
		for i, u := range users {
			if err := nameRequests(u.node, claim, mine[i]); err != nil {
				return fmt.Errorf("%s: %w", u.title, err)
			}
		}
		return nil
	})
}

// apart has shares that a container asks for together be of different GPUs, as they are for the other software: where they are in several
// requests of a claim, these may have shares of one GPU. Names are those of the requests in the claim.
func (c *conversion) apart(devices *resourceapi.DeviceClaim, users []*cacheUser, requests []usedRequest, names []string) {
	for i, u := range users {
		for _, g := range u.gpus {
			of := requestsFor(g.Name, i, requests, names)
			if g.Exactly.Capacity == nil || len(of) < 2 {
				continue
			}
			devices.Constraints = append(devices.Constraints, resourceapi.DeviceConstraint{
				Requests: of, DistinctAttribute: new(resourceapi.FullyQualifiedName(drivers.BusID)),
			})
			c.notef("%s: its %d shares are of different GPUs by the claim's distinctAttribute, which needs what shares need: Kubernetes 1.36, or "+
				"the feature gate DRAConsumableCapacity", u.title, g.Exactly.Count)
		}
	}
}

// requestsFor returns the names of the requests that a container, by its place, has for a resource.
func requestsFor(resource string, user int, requests []usedRequest, names []string) (of []string) {
	for i, r := range requests {
		if r.Name == resource && slices.Contains(r.users, user) {
			of = append(of, names[i])
		}
	}
	return of
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

// templateName is one that no template of the stream has.
func (c *conversion) templateName(w *workload, suffix string) string {
	const room = 3 // for a number
	namespace := cmp.Or(w.namespace, c.options.Namespace)
	name := w.name
	if longest := validation.DNS1123SubdomainMaxLength - len(suffix) - room; len(name) > longest {
		name = strings.TrimRight(name[:longest], "-.")
	}
	name = free(name+suffix, func(name string) bool { return c.taken[namespace+"/"+name] })
	c.taken[namespace+"/"+name] = true
	return name
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
		}
	}
	if remove(labels, func(key string) bool { return taken[key] }); isMapping(labels) && len(labels.Content) == 0 {
		removeKey(w.spec, "nodeSelector")
	}
	return selectors, errors.Join(faults...)
}

// dropRuntime takes away what chooses the GPUs of a container past its claim.
func (c *conversion) dropRuntime(w *workload, users []*cacheUser) {
	const visible = "NVIDIA_VISIBLE_DEVICES"
	if class := value(w.spec, "runtimeClassName"); slices.Contains([]string{"nvidia", "nvidia-cdi", "nvidia-legacy", "amd"}, class) {
		removeKey(w.spec, "runtimeClassName")
		c.notef("%s: runtimeClassName %s is left out: it gives a container the GPUs that its image or environment names", w.title, class)
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

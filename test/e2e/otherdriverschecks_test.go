// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// askedFor is what an example asks for, read from the example itself: what fettle convert loses of it is missed.
type askedFor struct {
	// specs are those of claims and of templates, by KIND/NAME.
	specs map[string]resourceapi.ResourceClaimSpec
	pods  []askedPod
}

// askedPod is a pod, or the pods of a Deployment.
type askedPod struct {
	name string
	// replicas is set for a Deployment.
	replicas *int32
	spec     corev1.PodSpec
}

// askedBy reads an example.
func askedBy(text string) askedFor {
	GinkgoHelper()
	asked := askedFor{specs: map[string]resourceapi.ResourceClaimSpec{}}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var meta metav1.PartialObjectMetadata
		Expect(yaml.Unmarshal([]byte(document), &meta)).To(Succeed())
		key := meta.Kind + "/" + meta.Name
		switch meta.Kind {
		case "ResourceClaim":
			var claim struct{ Spec map[string]any }
			Expect(yaml.Unmarshal([]byte(document), &claim)).To(Succeed())
			asked.specs[key] = specOfAnyVersion(claim.Spec)
		case "ResourceClaimTemplate":
			var template struct{ Spec struct{ Spec map[string]any } }
			Expect(yaml.Unmarshal([]byte(document), &template)).To(Succeed())
			asked.specs[key] = specOfAnyVersion(template.Spec.Spec)
		case "Pod":
			var pod corev1.Pod
			Expect(yaml.UnmarshalStrict([]byte(document), &pod)).To(Succeed())
			asked.pods = append(asked.pods, askedPod{name: pod.Name, spec: pod.Spec})
		case "Deployment":
			var d appsv1.Deployment
			Expect(yaml.UnmarshalStrict([]byte(document), &d)).To(Succeed())
			replicas := int32(1)
			if d.Spec.Replicas != nil {
				replicas = *d.Spec.Replicas
			}
			asked.pods = append(asked.pods, askedPod{name: d.Name, replicas: &replicas, spec: d.Spec.Template.Spec})
		case "Namespace", "DeviceClass", "DeviceTaintRule":
		default:
			Fail("the example has a " + meta.Kind + ", and nothing here knows what to expect of it")
		}
	}
	Expect(asked.pods).NotTo(BeEmpty())
	return asked
}

// specOfAnyVersion reads the spec of a claim. In v1beta1 the fields of a request stand beside its name, where v1 has them below exactly.
func specOfAnyVersion(spec map[string]any) resourceapi.ResourceClaimSpec {
	GinkgoHelper()
	devices, ok := spec["devices"].(map[string]any)
	Expect(ok).To(BeTrue(), "the claim asks for devices")
	requests, ok := devices["requests"].([]any)
	Expect(ok).To(BeTrue(), "the claim has requests")
	for i := range requests {
		r, ok := requests[i].(map[string]any)
		Expect(ok).To(BeTrue())
		if r["exactly"] != nil || r["firstAvailable"] != nil {
			continue
		}
		exactly := maps.Clone(r)
		delete(exactly, "name")
		requests[i] = map[string]any{"name": r["name"], "exactly": exactly}
	}
	data, err := yaml.Marshal(spec)
	Expect(err).NotTo(HaveOccurred())
	var out resourceapi.ResourceClaimSpec
	Expect(yaml.UnmarshalStrict(data, &out)).To(Succeed(), "%s", data)
	return out
}

// exampleLook is how an example that runs is looked at.
type exampleLook struct {
	// nodes returns the device nodes that a container with these devices has, as listNodes prints them.
	nodes func(context.Context, []resourceapi.DeviceRequestAllocationResult) []string
	// described says that the plugin writes files that describe a claim's devices into its containers.
	described bool
	// configured looks at what a configuration of the example does to the device of a request. Nil: no example has one.
	configured func(e foreignExample, config map[string]any, device resourceapi.DeviceRequestAllocationResult)
}

// wholeNodes are the nodes of devices that are given whole.
func wholeNodes(_ context.Context, results []resourceapi.DeviceRequestAllocationResult) []string {
	GinkgoHelper()
	want := map[string]bool{}
	for _, d := range devicesOf(results) {
		for _, n := range d.nodes {
			want[n.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(want))
}

// runningExample is an example whose pods run.
type runningExample struct {
	foreignExample
	asked askedFor
	look  exampleLook
	// published are the devices of all nodes, by POOL/DEVICE.
	published map[string]resourceapi.Device
	// holders are the claims that have devices for themselves, by POOL/DEVICE and share.
	holders map[string]string
}

// checkExample holds what the pods of an example have against what the example asks for: the allocated devices, and what is in each
// container.
func checkExample(ctx context.Context, e foreignExample, ns string, asked askedFor, look exampleLook) {
	GinkgoHelper()
	r := &runningExample{e, asked, look, publishedDevices(ctx), map[string]string{}}
	pods, err := h.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	left := pods.Items
	for _, a := range asked.pods {
		var own []corev1.Pod
		left = slices.DeleteFunc(left, func(p corev1.Pod) bool {
			is := a.replicas == nil && p.Name == a.name || a.replicas != nil && strings.HasPrefix(p.Name, a.name+"-")
			if is {
				own = append(own, *p.DeepCopy())
			}
			return is
		})
		count := 1
		if a.replicas != nil {
			count = int(*a.replicas)
		}
		Expect(own).To(HaveLen(count), "pods of %s", a.name)
		for i := range own {
			r.checkPod(ctx, a, &own[i])
		}
	}
	Expect(left).To(BeEmpty(), "pods that the example does not ask for")
}

// publishedDevices are what all nodes publish.
func publishedDevices(ctx context.Context) map[string]resourceapi.Device {
	GinkgoHelper()
	list, err := h.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	out := map[string]resourceapi.Device{}
	for i := range list.Items {
		for _, d := range list.Items[i].Spec.Devices {
			out[list.Items[i].Spec.Pool.Name+"/"+d.Name] = d
		}
	}
	return out
}

// checkPod looks at a pod's claims and containers.
func (r *runningExample) checkPod(ctx context.Context, a askedPod, pod *corev1.Pod) {
	GinkgoHelper()
	claims := claimsOf(ctx, pod)
	for _, c := range a.spec.ResourceClaims {
		key := "ResourceClaim/"
		if c.ResourceClaimTemplateName != nil {
			key = "ResourceClaimTemplate/" + *c.ResourceClaimTemplateName
		} else {
			key += *c.ResourceClaimName
		}
		spec, known := r.asked.specs[key]
		Expect(known).To(BeTrue(), key)
		Expect(claims).To(HaveKey(c.Name), "claims of pod %s", pod.Name)
		r.checkClaim(ctx, spec, claims[c.Name])
	}
	for i := range a.spec.Containers {
		c := &a.spec.Containers[i]
		var all []resourceapi.DeviceRequestAllocationResult
		for _, ref := range c.Resources.Claims {
			got := resultsOf(claims[ref.Name], ref.Request)
			Expect(got).NotTo(BeEmpty())
			all = append(all, got...)
			if r.look.described {
				r.checkDescription(ctx, pod, c.Name, ref.Name, got)
			}
		}
		all = append(all, r.extended(c, pod, claims)...)
		r.checkShares(ctx, pod, c.Name, all)
		r.checkContainer(ctx, pod, c.Name, all)
	}
}

// resultsOf are a claim's devices for a request and its alternatives, or for all requests.
func resultsOf(c *resourceapi.ResourceClaim, request string) []resourceapi.DeviceRequestAllocationResult {
	GinkgoHelper()
	return slices.DeleteFunc(results(c), func(r resourceapi.DeviceRequestAllocationResult) bool {
		main, _, _ := strings.Cut(r.Request, "/")
		return request != "" && main != request
	})
}

// extended are the devices of a container that asks for resources: as many as it asks for, of the claim that the scheduler made.
func (r *runningExample) extended(
	c *corev1.Container, pod *corev1.Pod, claims map[string]*resourceapi.ResourceClaim,
) []resourceapi.DeviceRequestAllocationResult {
	GinkgoHelper()
	var got []resourceapi.DeviceRequestAllocationResult
	for name, want := range c.Resources.Limits {
		Expect(pod.Status.ExtendedResourceClaimStatus).NotTo(BeNil(), "the scheduler makes a claim for %s", name)
		before := len(got)
		for _, m := range pod.Status.ExtendedResourceClaimStatus.RequestMappings {
			if m.ContainerName == c.Name && m.ResourceName == string(name) {
				got = append(got, resultsOf(claims[""], m.RequestName)...)
			}
		}
		Expect(len(got)-before).To(BeEquivalentTo(want.Value()), "devices for %s", name)
	}
	for i := range got {
		r.checkDevice(claims[""], &got[i], false, nil)
	}
	return got
}

// checkClaim holds a claim's devices against what its example asks for.
func (r *runningExample) checkClaim(ctx context.Context, asked resourceapi.ResourceClaimSpec, claim *resourceapi.ResourceClaim) {
	GinkgoHelper()
	Expect(claim.Status.Allocation).NotTo(BeNil())
	total := 0
	for i := range asked.Devices.Requests {
		want := &asked.Devices.Requests[i]
		got := resultsOf(claim, want.Name)
		total += len(got)
		at := slices.IndexFunc(claim.Spec.Devices.Requests, func(q resourceapi.DeviceRequest) bool { return q.Name == want.Name })
		Expect(at).To(BeNumerically(">=", 0), "request %s", want.Name)
		if live := &claim.Spec.Devices.Requests[at]; want.Exactly != nil {
			r.checkExactly(ctx, want.Exactly, live.Exactly, claim, got)
		} else {
			r.checkFirstAvailable(ctx, want, live, claim, got)
		}
		for _, config := range asked.Devices.Config {
			if len(config.Requests) == 0 || slices.Contains(config.Requests, want.Name) {
				r.checkConfig(config.Opaque, got)
			}
		}
	}
	Expect(results(claim)).To(HaveLen(total), "devices that no request asks for")
	for _, c := range asked.Devices.Constraints {
		r.checkConstraint(c, claim)
	}
}

// checkExactly looks at the devices of a request that has no alternatives.
func (r *runningExample) checkExactly(
	ctx context.Context, asked, live *resourceapi.ExactDeviceRequest, claim *resourceapi.ResourceClaim,
	got []resourceapi.DeviceRequestAllocationResult,
) {
	GinkgoHelper()
	matching := r.matching(ctx, live.DeviceClassName, live.Selectors)
	want := max(1, int(asked.Count))
	if asked.AllocationMode == resourceapi.DeviceAllocationModeAll {
		node := claimNode(claim)
		want = len(slices.DeleteFunc(slices.Clone(matching), func(name string) bool { return !strings.HasPrefix(name, node+"/") }))
	}
	Expect(got).To(HaveLen(want), "devices of the request")
	for i := range got {
		Expect(matching).To(ContainElement(got[i].Pool+"/"+got[i].Device), "the device is one that the request selects")
		r.checkDevice(claim, &got[i], asked.AdminAccess != nil && *asked.AdminAccess, asked.Capacity)
	}
}

// checkFirstAvailable wants the devices of the first alternative that any node has a device for.
func (r *runningExample) checkFirstAvailable(
	ctx context.Context, asked, live *resourceapi.DeviceRequest, claim *resourceapi.ResourceClaim,
	got []resourceapi.DeviceRequestAllocationResult,
) {
	GinkgoHelper()
	Expect(live.FirstAvailable).To(HaveLen(len(asked.FirstAvailable)), "alternatives")
	for i := range asked.FirstAvailable {
		matching := r.matching(ctx, live.FirstAvailable[i].DeviceClassName, live.FirstAvailable[i].Selectors)
		if len(matching) == 0 {
			continue
		}
		Expect(got).To(HaveLen(max(1, int(asked.FirstAvailable[i].Count))))
		for j := range got {
			Expect(got[j].Request).To(Equal(asked.Name+"/"+asked.FirstAvailable[i].Name), "the first alternative that can be had")
			Expect(matching).To(ContainElement(got[j].Pool + "/" + got[j].Device))
			r.checkDevice(claim, &got[j], false, asked.FirstAvailable[i].Capacity)
		}
		return
	}
	Fail("no alternative can be had, and the claim is allocated")
}

// matching are the published devices that a class and further selectors select.
func (r *runningExample) matching(ctx context.Context, class string, selectors []resourceapi.DeviceSelector) []string {
	GinkgoHelper()
	object, err := h.Kube.ResourceV1().DeviceClasses().Get(ctx, class, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for name, d := range r.published {
		all := !slices.ContainsFunc(slices.Concat(object.Spec.Selectors, selectors), func(s resourceapi.DeviceSelector) bool {
			compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(s.CEL.Expression, cel.Options{})
			Expect(compiled.Error).To(BeNil(), s.CEL.Expression)
			is, _, err := compiled.DeviceMatches(ctx, cel.Device{Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity})
			return err != nil || !is
		})
		if all {
			out = append(out, name)
		}
	}
	return out
}

// checkDevice looks at one allocated device: its driver, its vendor, its access, its share, and that no other claim has it.
func (r *runningExample) checkDevice(
	claim *resourceapi.ResourceClaim, got *resourceapi.DeviceRequestAllocationResult, admin bool, asked *resourceapi.CapacityRequirements,
) {
	GinkgoHelper()
	Expect(got.Driver).To(Equal(v1alpha1.DriverName))
	if vendor := strings.TrimSuffix(strings.TrimPrefix(r.driver, "gpu."), ".com"); vendor != "example" {
		Expect(got.Device).To(HavePrefix(vendor + "-"))
	}
	Expect(got.AdminAccess != nil && *got.AdminAccess).To(Equal(admin), "admin access to %s", got.Device)
	key := got.Pool + "/" + got.Device
	if asked == nil || len(asked.Requests) == 0 {
		Expect(got.ShareID).To(BeNil(), "%s was asked for whole", got.Device)
		Expect(got.ConsumedCapacity).To(BeEmpty())
	} else {
		Expect(got.ShareID).NotTo(BeNil(), "a share of %s was asked for", got.Device)
		key += "/" + string(*got.ShareID)
		for name, quantity := range asked.Requests {
			consumed := got.ConsumedCapacity[name]
			Expect(consumed.Cmp(quantity)).To(BeZero(), "%s of %s: asked for %s, consumed %s", name, got.Device, &quantity, &consumed)
		}
	}
	if admin {
		return
	}
	if holder, held := r.holders[key]; held {
		Expect(holder).To(Equal(string(claim.UID)), "%s is of one claim", key)
	}
	r.holders[key] = string(claim.UID)
}

// attributeNames are what attributes of other drivers are in Fettle's slices (docs/user/from-other-drivers.md).
func (r *runningExample) attributeName(name resourceapi.FullyQualifiedName) resourceapi.QualifiedName {
	ours := map[string]resourceapi.QualifiedName{
		r.driver + "/parentUUID": "parentUUID", r.driver + "/deviceID": "pciDeviceID", r.driver + "/pciRoot": pcieRoot,
	}
	if own, known := ours[string(name)]; known {
		return own
	}
	return resourceapi.QualifiedName(name)
}

// checkConstraint looks at the attribute that the devices of some requests must have the same of, or must not.
func (r *runningExample) checkConstraint(c resourceapi.DeviceConstraint, claim *resourceapi.ResourceClaim) {
	GinkgoHelper()
	name := c.MatchAttribute
	if name == nil {
		name = c.DistinctAttribute
	}
	Expect(name).NotTo(BeNil(), "the constraint is one that this test knows")
	values, devices := map[string]bool{}, 0
	for _, got := range results(claim) {
		main, _, _ := strings.Cut(got.Request, "/")
		if len(c.Requests) > 0 && !slices.Contains(c.Requests, main) {
			continue
		}
		value, has := r.published[got.Pool+"/"+got.Device].Attributes[r.attributeName(*name)]
		Expect(has).To(BeTrue(), "%s has the attribute %s", got.Device, r.attributeName(*name))
		text, err := json.Marshal(value)
		Expect(err).NotTo(HaveOccurred())
		values[string(text)], devices = true, devices+1
	}
	Expect(devices).To(BeNumerically(">", 1), "the constraint is about several devices")
	if c.MatchAttribute != nil {
		Expect(values).To(HaveLen(1), "all have the same %s", *name)
	} else {
		Expect(values).To(HaveLen(devices), "each has another %s", *name)
	}
}

// checkConfig looks at what a configuration did.
func (r *runningExample) checkConfig(config *resourceapi.OpaqueDeviceConfiguration, got []resourceapi.DeviceRequestAllocationResult) {
	GinkgoHelper()
	Expect(r.look.configured).NotTo(BeNil(), "the example has a configuration, and nothing here looks at what it does")
	var parameters map[string]any
	Expect(json.Unmarshal(config.Parameters.Raw, &parameters)).To(Succeed())
	for i := range got {
		r.look.configured(r.foreignExample, parameters, got[i])
	}
}

// checkShares wants a container to be told what it was granted of each device that it shares.
func (r *runningExample) checkShares(
	ctx context.Context, pod *corev1.Pod, container string, got []resourceapi.DeviceRequestAllocationResult,
) {
	GinkgoHelper()
	var want []string
	for _, d := range got {
		if memory, has := d.ConsumedCapacity["memory"]; has {
			want = append(want, fmt.Sprintf("FETTLE_MEMORY_%s=%d", strings.ToUpper(strings.ReplaceAll(d.Device, "-", "_")), memory.Value()))
		}
	}
	slices.Sort(want)
	Expect(lines(inside(ctx, pod, container, "env | grep ^FETTLE_MEMORY_ | sort || true"))).To(ConsistOf(want))
}

// checkDescription wants a container to have a file for each request of a claim, which names its devices with the attributes that they have
// in their slices (KEP-5304).
func (r *runningExample) checkDescription(
	ctx context.Context, pod *corev1.Pod, container, claim string, got []resourceapi.DeviceRequestAllocationResult,
) {
	GinkgoHelper()
	kind := "resourceclaimtemplates"
	at := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == claim })
	if named := pod.Spec.ResourceClaims[at].ResourceClaimName; named != nil {
		kind, claim = "resourceclaims", *named
	}
	byRequest := map[string][]resourceapi.DeviceRequestAllocationResult{}
	for _, d := range got {
		byRequest[d.Request] = append(byRequest[d.Request], d)
	}
	for request, devices := range byRequest {
		main, _, _ := strings.Cut(request, "/")
		file := path.Join(metadata.ContainerDir, kind, claim, main, v1alpha1.DriverName+metadata.MetadataFileSuffix)
		var described metadatav1beta1.DeviceMetadata
		decoder := json.NewDecoder(strings.NewReader(inside(ctx, pod, container, "cat "+file)))
		Expect(decoder.Decode(&described)).To(Succeed())
		var older metadatav1alpha1.DeviceMetadata
		Expect(decoder.Decode(&older)).To(Succeed(), "what KubeVirt reads")
		Expect(older.APIVersion).To(Equal(metadatav1alpha1.SchemeGroupVersion.String()))
		Expect(described.Requests).To(HaveLen(1))
		Expect(described.Requests[0].Name).To(Equal(request))
		var want, have []string
		for _, d := range devices {
			want = append(want, d.Driver+"/"+d.Pool+"/"+d.Device)
		}
		for _, d := range described.Requests[0].Devices {
			have = append(have, d.Driver+"/"+d.Pool+"/"+d.Name)
			Expect(asText(d.Attributes)).To(Equal(asText(r.published[d.Pool+"/"+d.Name].Attributes)), "attributes of %s", d.Name)
		}
		Expect(have).To(ConsistOf(want), "devices of %s", file)
	}
}

// asText is JSON, for a comparison that shows what differs.
func asText(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) string {
	GinkgoHelper()
	data, err := json.MarshalIndent(attributes, "", " ")
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// checkContainer wants a container to have the nodes of its devices and no other. With admin access it may read and not write.
func (r *runningExample) checkContainer(
	ctx context.Context, pod *corev1.Pod, container string, got []resourceapi.DeviceRequestAllocationResult,
) {
	GinkgoHelper()
	Expect(got).NotTo(BeEmpty())
	want := r.look.nodes(ctx, got)
	Expect(want).NotTo(BeEmpty())
	Expect(lines(inside(ctx, pod, container, listNodes))).To(Equal(want), "device nodes of container %s of pod %s", container, pod.Name)
	var closed []string
	for _, line := range lines(inside(ctx, pod, container, openNodes)) {
		if node, is := strings.CutPrefix(line, "cannot open "); is {
			closed = append(closed, node)
		}
	}
	if got[0].AdminAccess == nil || !*got[0].AdminAccess {
		Expect(closed).To(BeEmpty(), "nodes that do not open")
		return
	}
	var paths []string
	for _, node := range want {
		paths = append(paths, strings.Fields(node)[0])
	}
	Expect(closed).To(Equal(paths), "with admin access nothing is written to")
}

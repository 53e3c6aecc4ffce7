// SPDX-License-Identifier: Apache-2.0

// Package explain tells what presets give to claims, and why. Its callers read the objects. It decides nothing itself: package preset
// decides, as it does for the plugin.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Objects is what the caller knows of a cluster and a node.
type Objects struct {
	Claims  []*resourceapi.ResourceClaim
	Pods    []*corev1.Pod
	Presets []preset.Preset
	// Namespaces has the labels of namespaces, by name.
	Namespaces map[string]map[string]string
	// ConfigMap reads a ConfigMap, and reports whether it exists.
	ConfigMap func(namespace, name string) (map[string]string, bool)
	Slices    []*resourceapi.ResourceSlice
	// Driver is the name of the DRA driver. DriverNamespace is the namespace where it runs.
	Driver          string
	DriverNamespace string
	// Edits looks up what a request gets on a node. It is nil if no node is known.
	Edits func(preset.Request) (container.Edits, error)
}

// Explanation is the answer, by claim.
type Explanation struct {
	Claims []Claim `json:"claims"`
}

// Claim is what presets give to one claim.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pod is the pod that the claim was made for. It is empty if pods may share the claim.
	Pod      string    `json:"pod,omitempty"`
	Requests []Request `json:"requests"`
	// Refusals, Missing and Notes are those of the claim.
	Refusals []preset.Refusal `json:"refusals,omitempty"`
	Missing  []preset.Refusal `json:"missing,omitempty"`
	Notes    []preset.Refusal `json:"notes,omitempty"`
	// Others lists presets that do not select the claim.
	Others []preset.Origin `json:"others,omitempty"`
	// Remarks say what the explanation does not know.
	Remarks []string `json:"remarks,omitempty"`
}

// Request is what presets give to the containers that use one request.
type Request struct {
	preset.Request
	// Devices lists the devices that the request holds, POOL/DEVICE.
	Devices []string `json:"devices,omitempty"`
	// Containers lists the containers that use the request. They are unknown if pods may share the claim.
	Containers []string `json:"containers,omitempty"`
	// Running says what containers that run do not have of this. It is nil if none is known to run.
	Running *Running `json:"running,omitempty"`
	// Host is what the request gets on the node.
	Host *Host `json:"host,omitempty"`
}

// Host is what a request gets on a node.
type Host struct {
	Edits container.Edits `json:"edits"`
	// Faults lists what the node lacks. The claim waits for it.
	Faults []string `json:"faults,omitempty"`
}

// ErrNotAllocated is about a claim that holds no device yet.
var ErrNotAllocated = errors.New("is not allocated: presets look at the devices that a claim holds. Start a pod that uses it, and take " +
	"the claim as it is then: kubectl get resourceclaim NAME -o yaml")

// Explain answers for the wanted claims, sorted by name.
func Explain(ctx context.Context, o Objects, wanted func(*resourceapi.ResourceClaim) bool) (Explanation, error) {
	claims := slices.SortedFunc(slices.Values(o.Claims), func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	o.Claims = claims
	out := Explanation{Claims: []Claim{}}
	var conditions preset.Conditions
	var errs []error
	for _, c := range claims {
		if !wanted(c) {
			continue
		}
		claim, err := o.claim(ctx, c, &conditions)
		if err != nil {
			errs = append(errs, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err))
			continue
		}
		out.Claims = append(out.Claims, claim)
	}
	return out, errors.Join(errs...)
}

// claim resolves presets as the plugin does: the claims that a pod owns together, and a shared claim alone.
func (o *Objects) claim(ctx context.Context, c *resourceapi.ResourceClaim, conditions *preset.Conditions) (Claim, error) {
	if c.Status.Allocation == nil {
		return Claim{}, ErrNotAllocated
	}
	pod, err := o.ownerOf(c)
	if err != nil {
		return Claim{}, err
	}
	in := preset.Input{
		Presets: o.Presets, Namespace: c.Namespace, NamespaceLabels: o.labels(c.Namespace), Pod: pod,
		ConfigMap: o.ConfigMap, DriverNamespace: o.DriverNamespace, Driver: o.Driver,
	}
	for _, s := range o.Claims {
		switch {
		case s == c || pod != nil && owns(pod, s):
			in.Claims = append(in.Claims, preset.OfClaim(s, o.Driver, pod != nil, o.published))
		case pod != nil && s.Namespace == c.Namespace && slices.Contains(preset.ClaimsOf(pod), s.Name):
			in.Shared = append(in.Shared, preset.OfClaim(s, o.Driver, false, o.published))
		}
	}
	out := Claim{Namespace: c.Namespace, Name: c.Name, Requests: []Request{}}
	if pod != nil {
		out.Pod = pod.Name
	}
	resolution := preset.Resolve(ctx, in, conditions)
	out.Refusals, out.Missing = refusalsOf(c, resolution.Refusals), refusalsOf(c, resolution.Missing)
	out.Notes = refusalsOf(c, resolution.Notes)
	for i := range resolution.Requests {
		if resolution.Requests[i].Claim == c.Name {
			out.Requests = append(out.Requests, o.request(c, pod, &resolution.Requests[i], &in))
		}
	}
	out.Others = o.others(&out)
	out.Remarks = o.remarks(c, pod)
	for _, a := range preset.Ambiguities(ctx, in, &resolution, conditions) {
		if a.Claim == c.Name {
			out.Remarks = append(out.Remarks, "request "+a.Request+": "+a.Message)
		}
	}
	return out, nil
}

// refusalsOf returns the refusals of one claim.
func refusalsOf(c *resourceapi.ResourceClaim, all []preset.Refusal) []preset.Refusal {
	return slices.DeleteFunc(slices.Clone(all), func(r preset.Refusal) bool { return r.Claim != c.Name })
}

func (o *Objects) request(c *resourceapi.ResourceClaim, pod *corev1.Pod, r *preset.Request, in *preset.Input) Request {
	out := Request{Request: *r}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver == o.Driver && resourceclaim.BaseRequestRef(result.Request) == r.Request {
			out.Devices = append(out.Devices, result.Pool+"/"+result.Device)
		}
	}
	if pod != nil {
		i := slices.IndexFunc(in.Claims, func(s preset.Claim) bool { return s.Name == c.Name })
		out.Containers = preset.Containers(pod, &in.Claims[i], r.Request)
	}
	out.Running = o.running(c, &out)
	if o.Edits != nil {
		edits, err := o.Edits(*r)
		out.Host = &Host{Edits: edits}
		for _, fault := range unjoin(err) {
			out.Host.Faults = append(out.Host.Faults, fault.Error())
		}
	}
	return out
}

// unjoin splits an errors.Join into its errors. It does not look inside an error that wraps one, since the text of the outer error would be
// lost.
func unjoin(err error) []error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return several.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// others lists the presets that do not select the claim.
func (o *Objects) others(c *Claim) []preset.Origin {
	heard := map[preset.Origin]bool{}
	for i := range c.Requests {
		for _, from := range c.Requests[i].Presets {
			heard[from] = true
		}
	}
	for _, r := range slices.Concat(c.Refusals, c.Missing, c.Notes) {
		heard[r.From] = true
	}
	var out []preset.Origin
	for i := range o.Presets {
		if from := o.Presets[i].Origin(); !heard[from] {
			out = append(out, from)
		}
	}
	slices.SortFunc(out, func(a, b preset.Origin) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// published finds a device in the slices.
func (o *Objects) published(pool, name string) *resourceapi.Device {
	for _, s := range o.Slices {
		if s.Spec.Driver != o.Driver || s.Spec.Pool.Name != pool {
			continue
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

// labels returns the labels of a namespace. Every namespace has its name as a label.
func (o *Objects) labels(namespace string) map[string]string {
	if labels, ok := o.Namespaces[namespace]; ok {
		return labels
	}
	return map[string]string{corev1.LabelMetadataName: namespace}
}

// ownerOf returns the pod that a claim was made for, or nil if pods may share it.
func (o *Objects) ownerOf(c *resourceapi.ResourceClaim) (*corev1.Pod, error) {
	ref := metav1.GetControllerOf(c)
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" {
		return nil, nil //nolint:nilnil // documented above
	}
	for _, pod := range o.Pods {
		switch {
		case pod.Namespace != c.Namespace || pod.Name != ref.Name:
		case pod.UID != ref.UID:
			return nil, fmt.Errorf("pod %s has uid %q, and the claim was made for one with uid %q: take both at the same time",
				pod.Name, pod.UID, ref.UID)
		default:
			return pod, nil
		}
	}
	return nil, fmt.Errorf("was made for pod %s, on which its presets depend: give the pod too (--pod)", ref.Name)
}

// owns reports whether a claim was made for the pod.
func owns(pod *corev1.Pod, c *resourceapi.ResourceClaim) bool {
	ref := metav1.GetControllerOf(c)
	return ref != nil && ref.Kind == "Pod" && c.Namespace == pod.Namespace && ref.Name == pod.Name && ref.UID == pod.UID
}

// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// bitstream becomes a ClusterFPGABitstream.
type bitstream struct {
	interfaceID, id string
	namespaces      map[string]bool
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

// template is the claim's: a request for each region, with its configuration.
func (c *conversion) template(w *workload, name string, requests []regionRequest) ([]byte, error) {
	t := resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
	}
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return nil, fmt.Errorf("%s: metadata.name: %s", w.title, faults[0])
	}
	devices := &t.Spec.Spec.Devices
	var faults []error
	for _, r := range requests {
		config, err := c.config(w, r.region)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %s: %w", w.title, r.name, err))
			continue
		}
		devices.Requests = append(devices.Requests, c.request(r.name, r.region))
		devices.Config = append(devices.Config, resourceapi.DeviceClaimConfiguration{
			Requests: []string{r.name},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: config},
			}},
		})
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return renderTemplate(t)
}

// renderTemplate leaves out the empty metadata of the claims.
func renderTemplate(t resourceapi.ResourceClaimTemplate) ([]byte, error) {
	text, err := renderObject(t)
	if err != nil {
		return nil, err
	}
	n, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("write the template: %w", err)
	}
	removeKey(child(n, "spec"), "metadata")
	return render(n)
}

func (c *conversion) request(name string, r region) resourceapi.DeviceRequest {
	selectors := []resourceapi.DeviceSelector{attributeIs("interfaceID", r.interfaceID)}
	if r.loaded {
		selectors = append(selectors, attributeIs("afuID", r.id))
	}
	return resourceapi.DeviceRequest{
		Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: c.options.Class, Selectors: selectors},
	}
}

// attributeIs asks first whether the attribute is there: reading one that is not fails the pod.
func attributeIs(name, value string) resourceapi.DeviceSelector {
	attributes := fmt.Sprintf("device.attributes[%q]", v1alpha1.DriverName)
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("%q in %s && %s.%s == %q", name, attributes, attributes, name, value),
	}}
}

// config is a region's. A region that must hold its function already names no bitstream, since no file of it need be anywhere: the
// selector and the mode say enough. With an image there is one to compare with.
func (c *conversion) config(w *workload, r region) ([]byte, error) {
	config := v1alpha1.FPGAConfig{
		TypeMeta:     metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FPGAConfig"},
		InterfaceID:  r.interfaceID,
		Program:      v1alpha1.ProgramIfDifferent,
		DriverParams: r.params,
	}
	if r.loaded || r.id == "" {
		config.Program = v1alpha1.ProgramNever
	}
	if r.id != "" && (!r.loaded || c.options.Image != "") {
		config.Bitstream = &v1alpha1.BitstreamSource{Kind: v1alpha1.KindClusterFPGABitstream, Name: c.bitstream(w, r)}
	}
	for _, p := range r.params.List() {
		c.params[p.Name] = true
	}
	if faults := config.Validate(false, field.NewPath("")); len(faults) > 0 {
		return nil, faults.ToAggregate()
	}
	return json.Marshal(config)
}

// bitstream notes that a workload needs one, and gives the name of its object.
func (c *conversion) bitstream(w *workload, r region) string {
	name := "intel-" + r.interfaceID + "-" + r.id
	if c.bitstreams[name] == nil {
		c.bitstreams[name] = &bitstream{interfaceID: r.interfaceID, id: r.id, namespaces: map[string]bool{}}
	}
	c.bitstreams[name].namespaces[cmp.Or(w.namespace, c.options.Namespace)] = true
	return name
}

// bitstreamObjects are the objects of all that were named. One artifact cannot have two bitstreams for an interface.
func (c *conversion) bitstreamObjects() ([][]byte, error) {
	var out [][]byte
	by := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.bitstreams)) {
		b := c.bitstreams[name]
		object := v1alpha1.ClusterFPGABitstream{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterFPGABitstream},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ClusterFPGABitstreamSpec{Namespaces: slices.Sorted(maps.Keys(b.namespaces))},
		}
		if c.options.Image != "" {
			if other, twice := by[b.interfaceID]; twice {
				return nil, fmt.Errorf("one image cannot hold two bitstreams for interface %s, %s and %s: convert the pods one by one, "+
					"or without an image", b.interfaceID, other, b.id)
			}
			by[b.interfaceID] = b.id
			object.Spec.Image = c.options.Image
			c.notef("ClusterFPGABitstream %s: %s must hold bitstream %s for interface %s", name, c.options.Image, b.id, b.interfaceID)
		} else {
			object.Spec.HostFile = &v1alpha1.HostBitstream{Store: IntelStore, ID: b.id}
			c.notef("ClusterFPGABitstream %s: the nodes need %s/%s/%s.gbs or .aocx", name, IntelStore, b.interfaceID, b.id)
		}
		text, err := renderObject(object)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

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

// bitstreams are the bitstreams that the input names, and what its claims ask of FPGAs beside.
type bitstreams struct {
	*notes
	options Options
	// wanted are by their object's name.
	wanted map[string]*bitstream
	// params are the driver parameters that claims set.
	params map[string]bool
}

// template is the claim's: a request for each region, with its configuration.
func (b *bitstreams) template(w *workload, name string, requests []regionRequest) ([]byte, error) {
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
		config, err := b.config(w, r.region)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %s: %w", w.title, r.name, err))
			continue
		}
		devices.Requests = append(devices.Requests, b.request(r.name, r.region))
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

func (b *bitstreams) request(name string, r region) resourceapi.DeviceRequest {
	selectors := []resourceapi.DeviceSelector{attributeIs("interfaceID", r.interfaceID)}
	if r.loaded {
		selectors = append(selectors, attributeIs("afuID", r.id))
	}
	return resourceapi.DeviceRequest{
		Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: b.options.Class, Selectors: selectors},
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
func (b *bitstreams) config(w *workload, r region) ([]byte, error) {
	config := v1alpha1.FPGAConfig{
		TypeMeta:     metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FPGAConfig"},
		InterfaceID:  r.interfaceID,
		Program:      v1alpha1.ProgramIfDifferent,
		DriverParams: r.params,
	}
	if r.loaded || r.id == "" {
		config.Program = v1alpha1.ProgramNever
	}
	if r.id != "" && (!r.loaded || b.options.Image != "") {
		config.Bitstream = &v1alpha1.BitstreamSource{Kind: v1alpha1.KindClusterFPGABitstream, Name: b.want(w, r)}
	}
	for _, p := range r.params.List() {
		b.params[p.Name] = true
	}
	if faults := config.Validate(false, field.NewPath("")); len(faults) > 0 {
		return nil, faults.ToAggregate()
	}
	return json.Marshal(config)
}

// want notes that a workload needs a bitstream, and gives the name of its object.
func (b *bitstreams) want(w *workload, r region) string {
	name := "intel-" + r.interfaceID + "-" + r.id
	if b.wanted[name] == nil {
		b.wanted[name] = &bitstream{interfaceID: r.interfaceID, id: r.id, namespaces: map[string]bool{}}
	}
	b.wanted[name].namespaces[cmp.Or(w.namespace, b.options.Namespace)] = true
	return name
}

// objects are the objects of all that were named. One artifact cannot have two bitstreams for an interface.
func (b *bitstreams) objects() ([][]byte, error) {
	var out [][]byte
	by := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(b.wanted)) {
		one := b.wanted[name]
		object := v1alpha1.ClusterFPGABitstream{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterFPGABitstream},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ClusterFPGABitstreamSpec{Namespaces: slices.Sorted(maps.Keys(one.namespaces))},
		}
		if b.options.Image != "" {
			if other, twice := by[one.interfaceID]; twice {
				return nil, fmt.Errorf("one image cannot hold two bitstreams for interface %s, %s and %s: convert the pods one by one, "+
					"or without an image", one.interfaceID, other, one.id)
			}
			by[one.interfaceID] = one.id
			object.Spec.Image = b.options.Image
			b.notef("ClusterFPGABitstream %s: %s must hold bitstream %s for interface %s", name, b.options.Image, one.id, one.interfaceID)
		} else {
			object.Spec.HostFile = &v1alpha1.HostBitstream{Store: IntelStore, ID: one.id}
			b.notef("ClusterFPGABitstream %s: the nodes need %s/%s/%s.gbs or .aocx", name, IntelStore, one.interfaceID, one.id)
		}
		text, err := renderObject(object)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// closingNotes say what the administrator must allow, since the shipped class allows nothing.
func (b *bitstreams) closingNotes() {
	if len(b.wanted) > 0 {
		b.notef("DeviceClass %s must list in policy.allowedBitstreams: %s", b.options.Class,
			strings.Join(slices.Sorted(maps.Keys(b.wanted)), ", "))
	}
	if len(b.params) > 0 {
		b.notef("DeviceClass %s must list in policy.allowedDriverParams: %s", b.options.Class,
			strings.Join(slices.Sorted(maps.Keys(b.params)), ", "))
	}
}

// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
)

// Policies returns what the classes of a claim or template forbid, as far as the known objects tell. Prepare refuses it in any case. What
// holds for an alternative is a remark, since the scheduler may choose another one; so is what may change without an edit of the class or
// the claim. Allowed namespaces are left to a policy of the API server.
func (j *Judge) Policies(namespace string, object runtime.Object, known Known) (faults field.ErrorList, remarks []Remark) {
	devices, path := devicesOf(object)
	if devices == nil {
		return nil, nil
	}
	all := askedOf(devices.Requests, path.Child("requests"))
	for i := range all {
		a := &all[i]
		class := known.Classes[a.class]
		if class == nil || a.admin {
			continue
		}
		kind := j.kind(class)
		if kind == "" {
			continue
		}
		expected, ok := claim.Expect(claim.Expectation{Devices: devices, Path: path, Request: a.name, Kind: kind, Class: class})
		if !ok {
			continue
		}
		wrong := expected.Faults
		if kind == device.KindFPGA && expected.Result.Config.FPGA.Bitstream != nil {
			forbidden, unsure := bitstreamVerdict(namespace, &expected, known)
			wrong, remarks = append(wrong, forbidden...), append(remarks, unsure...)
		}
		if !a.alternative() {
			faults = append(faults, wrong...)
			continue
		}
		for _, fault := range wrong {
			remarks = append(remarks, Remark{Field: fault.Field, Message: fault.ErrorBody()})
		}
	}
	return distinct(faults), slices.Compact(remarks)
}

// bitstreamVerdict judges the bitstream of a request by the policies of its class.
func bitstreamVerdict(namespace string, expected *claim.Expected, known Known) (faults field.ErrorList, remarks []Remark) {
	source := expected.Result.Config.FPGA.Bitstream
	bitstream, complete := referenced(source), false
	if source.Name != "" {
		key := types.NamespacedName{Namespace: namespace, Name: source.Name}
		if source.Kind == v1alpha1.KindClusterFPGABitstream {
			key.Namespace = ""
		}
		object, ok := known.Bitstreams[key]
		if !ok {
			return nil, nil
		}
		bitstream, complete = described(object)
	}
	if bitstream == nil {
		return nil, nil
	}
	// Who signed it is known later, and may change: only a demand that nothing meets yet is worth a word.
	vouched := bitstream.Vouched
	bitstream.Vouched = true
	if complete || !expected.Result.Config.FPGA.NamesDigests() {
		faults = expected.Allows(namespace, bitstream)
	}
	if policy := expected.RequiresSignature(); policy != "" && !vouched && source.Name != "" {
		at, _ := expected.At(claim.FieldBitstream)
		remarks = append(remarks, Remark{Field: at, Message: policy + " asks for a signature that a TrustPolicy vouches for, and " +
			bitstream.String() + " has none yet: pods wait until it has"})
	}
	return faults, remarks
}

// referenced describes a bitstream that is named by digest. Which files are in the artifact is not known.
func referenced(source *v1alpha1.BitstreamSource) *claim.Bitstream {
	ref, err := artifact.ParseReference(source.Ref)
	if err != nil {
		return nil
	}
	return &claim.Bitstream{Repository: ref.Repository(), Digests: []string{ref.Digest().String()}}
}

// described describes the bitstream of an object, and says whether all digests by which a policy may list it are known. An object with
// images for several interface ids counts as listed if any of them is.
func described(object v1alpha1.CommonFPGABitstream) (of *claim.Bitstream, complete bool) {
	of = &claim.Bitstream{
		Kind: object.Kind, Namespace: object.GetNamespace(), Name: object.GetName(), Namespaces: object.Spec.Namespaces,
	}
	if v := object.Status.Verification; v != nil && v.Digest == object.Status.Digest {
		of.Vouched = v.Result == v1alpha1.VerdictVerified
	}
	if file := object.Spec.HostFile; file != nil {
		of.Digests = []string{file.Digest}
		return of, file.Digest != ""
	}
	ref, err := artifact.ParseReference(object.Spec.Image)
	if err != nil {
		return nil, false
	}
	of.Repository = ref.Repository()
	of.Digests = append(of.Digests, object.Status.Digest)
	of.Raw = true
	for i := range object.Status.Images {
		image := &object.Status.Images[i]
		of.Digests = append(of.Digests, image.Manifest)
		if !fpga.Format(image.Format).IsRaw() {
			of.Raw, of.Digests = false, append(of.Digests, image.Layer)
		}
	}
	return of, object.Status.ObservedGeneration == object.GetGeneration() && len(object.Status.Images) > 0
}

// distinct drops faults that say the same: a configuration may be for several requests.
func distinct(faults field.ErrorList) field.ErrorList {
	var kept field.ErrorList
	seen := map[string]bool{}
	for _, fault := range faults {
		if said := fault.Error(); !seen[said] {
			kept, seen[said] = append(kept, fault), true
		}
	}
	return kept
}

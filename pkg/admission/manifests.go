// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claimspec"
)

// maxYAML is the longest input in bytes, far above what the API server takes in one object.
const maxYAML = 16 << 20

// Manifest is a file of YAML or JSON documents.
type Manifest struct {
	// Name is how findings call the file.
	Name string
	Text []byte
}

// ReadManifest reads a manifest of at most 16 MiB.
func ReadManifest(r io.Reader, name string) (Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxYAML+1))
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifests from %s: %w", name, err)
	}
	if len(text) > maxYAML {
		return Manifest{}, fmt.Errorf("read manifests from %s: more than %d MiB: split the file", name, maxYAML>>20)
	}
	return Manifest{Name: name, Text: text}, nil
}

// Report is what was found in manifests.
type Report struct {
	// Findings are in the order of the manifests.
	Findings []Finding
	// Objects is how many objects were judged. Those of other kinds were skipped.
	Objects int
}

// Faults counts the findings that are no warnings.
func (r Report) Faults() int {
	count := 0
	for i := range r.Findings {
		if !r.Findings[i].Warning {
			count++
		}
	}
	return count
}

// ValidateManifests returns what is wrong with the ResourceClaims, ResourceClaimTemplates, DeviceClasses, DevicePresets,
// ClusterDevicePresets, PartitionPolicies, AcceleratorStacks and TrustPolicies of manifests, List items included. It is stricter than the
// API server's default: an unknown field or a duplicate key anywhere in such an object is a finding. Claims are judged by the classes and
// bitstreams of all manifests. Objects of other kinds are skipped.
func ValidateManifests(manifests []Manifest) Report {
	var all []parsed
	for _, m := range manifests {
		all = append(all, parse(m)...)
	}
	known := knownOf(all)
	var judge Judge
	var report Report
	for i := range all {
		p := &all[i]
		if p.object != nil {
			p.findings = append(p.findings, judge.findings(p, known)...)
			if !isBitstream(p.object) {
				report.Objects++
			}
		}
		for _, finding := range p.findings {
			finding.File, finding.Line, finding.Object = p.file, p.line, cmp.Or(finding.Object, p.title())
			report.Findings = append(report.Findings, finding)
		}
	}
	return report
}

// ValidateYAML validates one manifest. The error is that of reading r.
func ValidateYAML(r io.Reader, name string) ([]Finding, error) {
	m, err := ReadManifest(r, name)
	if err != nil {
		return nil, err
	}
	return ValidateManifests([]Manifest{m}).Findings, nil
}

// title is that of the object, and nothing if the document is none.
func (p *parsed) title() string {
	if p.head.Kind == "" {
		return ""
	}
	return p.head.title()
}

// findings judges one object.
func (j *Judge) findings(p *parsed, known Known) []Finding {
	if isBitstream(p.object) {
		return nil
	}
	faults := Validate(p.object)
	if devices, path := devicesOf(p.object); devices != nil && !p.partly {
		faults = append(claimspec.Faults(devices, path), faults...)
	}
	whole := len(faults) == 0 && !p.partly && len(p.findings) == 0
	if !p.partly { // names are judged by the requests, which may lack the value of a wrong type
		faults = append(faults, j.Names(p.object, known)...)
	}
	faults = append(faults, j.Selectors(p.object, known)...)
	remarks := j.Ignored(p.object, known)
	if whole {
		forbidden, unsure := j.Policies(namespaceOf(p.head), p.object, known)
		faults, remarks = append(faults, forbidden...), append(remarks, unsure...)
	}
	return findingsOf(faults, remarks)
}

func findingsOf(faults field.ErrorList, remarks []Remark) []Finding {
	var findings []Finding
	for _, fault := range faults {
		findings = append(findings, Finding{Field: fault.Field, Message: fault.ErrorBody()})
	}
	for _, remark := range remarks {
		findings = append(findings, Finding{Field: remark.Field, Message: remark.Message, Warning: true})
	}
	return findings
}

// knownOf returns the objects of manifests that others name.
func knownOf(all []parsed) Known {
	known := Known{
		Classes: map[string]*resourceapi.DeviceClass{}, Bitstreams: map[types.NamespacedName]v1alpha1.CommonFPGABitstream{},
	}
	for i := range all {
		switch o := all[i].object.(type) {
		case *resourceapi.DeviceClass:
			known.Classes[o.Name] = o
		case *v1alpha1.FPGABitstream:
			o.Namespace = namespaceOf(all[i].head)
			known.Bitstreams[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o.Common()
		case *v1alpha1.ClusterFPGABitstream:
			known.Bitstreams[types.NamespacedName{Name: o.Name}] = o.Common()
		}
	}
	return known
}

// namespaceOf returns the namespace that an object is created in, if nobody says another.
func namespaceOf(head header) string { return cmp.Or(head.Metadata.Namespace, metav1.NamespaceDefault) }

// isBitstream reports whether an object is read for the claims that name it, and not judged itself.
func isBitstream(object runtime.Object) bool {
	switch object.(type) {
	case *v1alpha1.FPGABitstream, *v1alpha1.ClusterFPGABitstream:
		return true
	}
	return false
}

// bitstreamOf decodes an object that is not judged, as far as it can be read.
func bitstreamOf(raw []byte, object runtime.Object) runtime.Object {
	if json.Unmarshal(raw, object) != nil {
		return nil
	}
	return object
}

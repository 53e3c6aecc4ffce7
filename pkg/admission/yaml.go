// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// Finding is one fault in a file of manifests.
type Finding struct {
	// File is the name that the caller gave the input.
	File string `json:"file"`
	// Line is where the YAML document begins, counted from 1.
	Line int `json:"line"`
	// Object is the kind and name of the object, such as "ResourceClaim team-a/work". Empty when the document could not be read.
	Object string `json:"object,omitempty"`
	// Field is the path of the wrong field. Empty when the fault is the document's.
	Field string `json:"field,omitempty"`
	// Message says what was expected and what to do next.
	Message string `json:"message"`
	// Warning says that the object is right in itself, but that it will not do what it seems to say.
	Warning bool `json:"warning,omitempty"`
}

// String is the finding in the form of a compiler's message: FILE:LINE: OBJECT: FIELD: MESSAGE, or FILE:LINE: warning: OBJECT: FIELD:
// MESSAGE.
func (f Finding) String() string {
	parts := []string{fmt.Sprintf("%s:%d", f.File, f.Line)}
	if f.Warning {
		parts = append(parts, "warning")
	}
	for _, part := range []string{f.Object, f.Field, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// parsed is an object of a file of manifests, or what is wrong with a document that is none.
type parsed struct {
	file string
	line int
	head header
	// object is nil for a kind that is not judged, and for a document with a finding.
	object runtime.Object
	// partly says that a value had a wrong type, so that the object lacks it.
	partly   bool
	findings []Finding
}

// parse reads the objects of a manifest, in its order.
func parse(m Manifest) []parsed {
	var all []parsed
	for _, doc := range manifest.Split(m.Text) {
		for _, p := range parseDocument(doc.Text) {
			p.file, p.line = m.Name, doc.Line
			all = append(all, p)
		}
	}
	return all
}

func parseDocument(text []byte) []parsed {
	raw, err := manifest.JSON(text)
	if err != nil {
		return []parsed{{findings: []Finding{{Message: "must be YAML, each key once: " + oneLine(err)}}}}
	}
	return parseObject(raw, false)
}

// header is the part of an object that says whether to look at the rest.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
}

// title is "ResourceClaim team-a/work".
func (h header) title() string {
	name := h.Metadata.Name
	name = cmp.Or(name, h.Metadata.GenerateName)
	if h.Metadata.Namespace != "" {
		name = h.Metadata.Namespace + "/" + name
	}
	return strings.TrimSpace(h.Kind + " " + name)
}

// parseObject looks at one object, or at each item of a list of objects. An item is not looked at as a list again.
func parseObject(raw []byte, isItem bool) []parsed {
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil // a document of comments only
	}
	var head header
	if err := json.Unmarshal(raw, &head); err != nil && (head.Kind == "" || head.APIVersion == "") {
		return []parsed{{findings: []Finding{{
			Message: "must be a Kubernetes object, with apiVersion, kind and metadata: " + typeDetail(err),
		}}}}
	}
	if strings.HasSuffix(head.Kind, "List") && !isItem {
		return parseList(raw)
	}
	object, finding := target(head)
	if finding != nil {
		return []parsed{{head: head, findings: []Finding{*finding}}}
	}
	p := parsed{head: head, object: object}
	switch {
	case head.APIVersion != v1alpha1.GroupVersion.String():
	case head.Kind == v1alpha1.KindFPGABitstream:
		p.object = bitstreamOf(raw, &v1alpha1.FPGABitstream{})
	case head.Kind == v1alpha1.KindClusterFPGABitstream:
		p.object = bitstreamOf(raw, &v1alpha1.ClusterFPGABitstream{})
	}
	if object != nil {
		p.findings, p.partly = strictFindings(raw, object)
	}
	return []parsed{p}
}

func parseList(raw []byte) []parsed {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return []parsed{{findings: []Finding{{Field: "items", Message: "must be a list of Kubernetes objects"}}}}
	}
	var all []parsed
	for _, item := range list.Items {
		all = append(all, parseObject(item, true)...)
	}
	return all
}

// target is an empty object of the kind that the header names, or nil for a kind that carries no configuration.
func target(head header) (runtime.Object, *Finding) {
	group, _, _ := strings.Cut(head.APIVersion, "/")
	if group == v1alpha1.GroupName {
		return own(head)
	}
	if group != resourceapi.GroupName {
		return nil, nil
	}
	var object runtime.Object
	switch head.Kind {
	case "ResourceClaim":
		object = &resourceapi.ResourceClaim{}
	case "ResourceClaimTemplate":
		object = &resourceapi.ResourceClaimTemplate{}
	case "DeviceClass":
		object = &resourceapi.DeviceClass{}
	default:
		return nil, nil
	}
	if want := resourceapi.SchemeGroupVersion.String(); head.APIVersion != want {
		return nil, &Finding{
			Object: head.title(), Field: "apiVersion",
			Message: fmt.Sprintf("Unsupported value: %q: Fettle needs %s", head.APIVersion, want),
		}
	}
	return object, nil
}

// own is an empty object of this driver's API group.
func own(head header) (runtime.Object, *Finding) {
	var object runtime.Object
	switch head.Kind {
	case v1alpha1.KindDevicePreset:
		object = &v1alpha1.DevicePreset{}
	case v1alpha1.KindClusterDevicePreset:
		object = &v1alpha1.ClusterDevicePreset{}
	case v1alpha1.KindPartitionPolicy:
		object = &v1alpha1.PartitionPolicy{}
	case v1alpha1.KindAcceleratorStack:
		object = &v1alpha1.AcceleratorStack{}
	case v1alpha1.KindTrustPolicy:
		object = &v1alpha1.TrustPolicy{}
	default:
		return nil, bareConfig(head)
	}
	if want := v1alpha1.GroupVersion.String(); head.APIVersion != want {
		return nil, &Finding{
			Object: head.title(), Field: "apiVersion", Message: fmt.Sprintf("Unsupported value: %q: want %s", head.APIVersion, want),
		}
	}
	return object, nil
}

// bareConfig tells who applies a configuration like an object what would happen: the API server does not know the kind.
func bareConfig(head header) *Finding {
	for _, kind := range v1alpha1.ConfigKinds() {
		if head.Kind == kind {
			return &Finding{Object: head.title(), Message: "is not an object of its own: " +
				"put it under config[].opaque.parameters of a claim, a template or a DeviceClass"}
		}
	}
	return nil
}

// strictFindings decodes raw into object and reports what a lenient decoder would drop. If a value has a wrong type, all that follow are
// looked at nevertheless.
func strictFindings(raw []byte, object runtime.Object) (findings []Finding, partly bool) {
	strict, err := strictjson.UnmarshalStrict(raw, object)
	if err != nil {
		if findings = mismatches(raw, object); len(findings) == 0 {
			findings = []Finding{misfit("", typeDetail(err))}
		}
		return findings, true
	}
	for _, err := range strict {
		finding := Finding{Message: oneLine(err)}
		var located strictjson.FieldError
		if errors.As(err, &located) {
			finding = unknownField(located.FieldPath())
		}
		findings = append(findings, finding)
	}
	return findings, false
}

func unknownField(path string) Finding {
	return Finding{Field: path, Message: "Invalid value: unknown field"}
}

// typeDetail says which type of JSON was found where another belongs, without the names of Go's types.
func typeDetail(err error) string {
	if _, message, ok := manifest.WrongType(err); ok {
		return message
	}
	return oneLine(err)
}

// oneLine joins the lines of an error of a library.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

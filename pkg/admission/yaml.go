// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// maxYAML is the longest input in bytes, far above what the API server takes in one object.
const maxYAML = 16 << 20

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
}

// String is the finding in the form of a compiler's message, FILE:LINE: OBJECT: FIELD: MESSAGE.
func (f Finding) String() string {
	parts := []string{fmt.Sprintf("%s:%d", f.File, f.Line)}
	for _, part := range []string{f.Object, f.Field, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// ValidateYAML reads YAML or JSON documents and returns what is wrong with the ResourceClaims, ResourceClaimTemplates, DeviceClasses,
// DevicePresets and ClusterDevicePresets in them, List items included, in the order of the file. It is stricter than the API server's
// default: an unknown field or a duplicate key anywhere in such an object is a finding. Objects of other kinds are skipped. The error
// is that of reading r.
func ValidateYAML(r io.Reader, name string) ([]Finding, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxYAML+1))
	if err != nil {
		return nil, fmt.Errorf("read manifests from %s: %w", name, err)
	}
	if len(data) > maxYAML {
		return nil, fmt.Errorf("read manifests from %s: more than %d MiB: split the file", name, maxYAML>>20)
	}
	var findings []Finding
	for _, doc := range manifest.Split(data) {
		for _, finding := range documentFindings(doc.Text) {
			finding.File, finding.Line = name, doc.Line
			findings = append(findings, finding)
		}
	}
	return findings, nil
}

func documentFindings(text []byte) []Finding {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return []Finding{{Message: "must be YAML, each key once: " + oneLine(err)}}
	}
	return objectFindings(raw, false)
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

// objectFindings looks at one object, or at each item of a list of objects. An item is not looked at as a list again.
func objectFindings(raw []byte, isItem bool) []Finding {
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil // a document of comments only
	}
	var head header
	if err := json.Unmarshal(raw, &head); err != nil {
		return []Finding{{Message: "must be a Kubernetes object, with apiVersion, kind and metadata: " + typeDetail(err)}}
	}
	if strings.HasSuffix(head.Kind, "List") && !isItem {
		return listFindings(raw)
	}
	object, finding := target(head)
	if finding != nil {
		return []Finding{*finding}
	}
	if object == nil {
		return nil
	}
	findings := strictFindings(raw, object)
	for _, fault := range Validate(object) {
		findings = append(findings, Finding{Field: fault.Field, Message: fault.ErrorBody()})
	}
	for i := range findings {
		findings[i].Object = head.title()
	}
	return findings
}

func listFindings(raw []byte) []Finding {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return []Finding{{Field: "items", Message: "must be a list of Kubernetes objects"}}
	}
	var findings []Finding
	for _, item := range list.Items {
		findings = append(findings, objectFindings(item, true)...)
	}
	return findings
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

// strictFindings decodes raw into object and reports what a lenient decoder would drop.
func strictFindings(raw []byte, object runtime.Object) []Finding {
	strict, err := strictjson.UnmarshalStrict(raw, object)
	if err != nil {
		return []Finding{{Field: typePath(err), Message: "Invalid value: does not fit the kind: " + typeDetail(err)}}
	}
	var findings []Finding
	for _, err := range strict {
		finding := Finding{Message: oneLine(err)}
		var located strictjson.FieldError
		if errors.As(err, &located) {
			finding = Finding{Field: located.FieldPath(), Message: "Invalid value: unknown field"}
		}
		findings = append(findings, finding)
	}
	return findings
}

// typePath is the field whose type is wrong, if that is what the error says.
func typePath(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return wrong.Field
	}
	return ""
}

// typeDetail says which type of JSON was found where another belongs, without the names of Go's types.
func typeDetail(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return wrong.Value + " is of the wrong type here"
	}
	return oneLine(err)
}

// oneLine joins the lines of an error of a library.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

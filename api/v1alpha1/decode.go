// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
)

// MaxConfigSize is the longest opaque configuration in bytes, the limit of resource.k8s.io/v1 (OpaqueParametersMaxLength).
const MaxConfigSize = 10 * 1024

// DecodeConfig reads the JSON of an opaque configuration. It takes exactly one object of a known kind, and refuses unknown
// fields (also when only their case is wrong), duplicate keys, null, wrong types and anything after the object: a typing
// error must never silently give a pod less, or more, than its author meant. All faults are reported, each with its path
// below the given path, and the Config is nil when there are any. Values are not judged: that is Config.Validate.
func DecodeConfig(raw []byte, path *field.Path) (Config, field.ErrorList) {
	if len(raw) > MaxConfigSize {
		return nil, field.ErrorList{field.TooLong(path, "", MaxConfigSize)}
	}
	tree, faults := parseObject(raw, path)
	if tree == nil {
		return nil, faults
	}
	config, wrongKind := newConfig(tree, path)
	if config == nil {
		return nil, append(faults, wrongKind...)
	}
	faults = append(faults, checkShape(tree, reflect.TypeOf(config).Elem(), path)...)
	if len(faults) > 0 {
		return nil, faults
	}
	// The shape was right, so this cannot refuse anything; if it ever does, it is right and checkShape is not.
	strict, err := json.UnmarshalStrict(raw, config)
	if err != nil {
		strict = append(strict, err)
	}
	for _, err := range strict {
		faults = append(faults, field.Invalid(path, field.OmitValueType{}, err.Error()))
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return config, nil
}

// parseObject parses raw as one JSON object and reports duplicate keys. The tree is nil when raw is not an object.
func parseObject(raw []byte, path *field.Path) (map[string]any, field.ErrorList) {
	var tree any
	duplicates, err := json.UnmarshalStrict(raw, &tree)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, syntaxDetail(err))}
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return nil, field.ErrorList{wrongType(path, tree, "an object")}
	}
	var faults field.ErrorList
	for _, err := range duplicates {
		at := path
		if located, ok := err.(json.FieldError); ok { //nolint:errorlint // the library returns these bare
			at = below(path, located.FieldPath())
		}
		fault := field.Duplicate(at, field.OmitValueType{})
		fault.Detail = "the key is set more than once: keep one"
		faults = append(faults, fault)
	}
	return object, faults
}

func syntaxDetail(err error) string {
	if isSyntax, offset := json.SyntaxErrorOffset(err); isSyntax {
		return fmt.Sprintf("must be JSON: at byte %d: %s", offset, err)
	}
	return "must be JSON: " + err.Error()
}

// newConfig picks the kind that the object names.
func newConfig(tree map[string]any, path *field.Path) (Config, field.ErrorList) {
	var faults field.ErrorList
	if fault := expectText(tree, "apiVersion", []string{GroupVersion.String()}, path); fault != nil {
		faults = append(faults, fault)
	}
	if fault := expectText(tree, "kind", ConfigKinds(), path); fault != nil {
		faults = append(faults, fault)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return configKinds()[tree["kind"].(string)](), nil //nolint:forcetypeassert // expectText saw a string
}

func expectText(tree map[string]any, key string, known []string, path *field.Path) *field.Error {
	value, present := tree[key]
	if !present {
		return field.Required(path.Child(key), fmt.Sprintf("set it to one of %q", known))
	}
	text, ok := value.(string)
	if !ok {
		return wrongType(path.Child(key), value, "a string")
	}
	for _, k := range known {
		if text == k {
			return nil
		}
	}
	return field.NotSupported(path.Child(key), text, known)
}

// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// mismatches compares a JSON object with a Go type, value by value, and returns every value of a wrong type and every field that the type
// does not have, sorted by path. A decoder stops at the first wrong type and forgets the unknown fields that it has seen. The object is
// decoded without these values.
func mismatches(raw []byte, object runtime.Object) []Finding {
	fitting, findings := compare(raw, reflect.TypeOf(object).Elem(), "")
	if len(findings) > 0 && fitting != nil && json.Unmarshal(fitting, object) != nil {
		return nil // cannot happen: what is left fits
	}
	return findings
}

// compare returns what of a value fits a type, and the mismatches. It returns nothing of a value that does not fit at all.
func compare(raw json.RawMessage, of reflect.Type, path string) (json.RawMessage, []Finding) {
	if string(raw) == "null" {
		return raw, nil
	}
	if of.Kind() == reflect.Pointer {
		return compare(raw, of.Elem(), path)
	}
	if _, ok := reflect.New(of).Interface().(json.Unmarshaler); ok {
		return compareValue(raw, of, path)
	}
	switch of.Kind() { //nolint:exhaustive // other kinds have no parts
	case reflect.Struct:
		fields := fieldsOf(of)
		return compareObject(raw, path, func(name string) (reflect.Type, string) { return fields[name], strings.TrimPrefix(path+"."+name, ".") })
	case reflect.Map:
		return compareObject(raw, path, func(key string) (reflect.Type, string) { return of.Elem(), path + "[" + key + "]" })
	case reflect.Slice:
		if of.Elem().Kind() != reflect.Uint8 {
			return compareList(raw, of.Elem(), path)
		}
	}
	return compareValue(raw, of, path)
}

// compareValue decodes a value whose type has no parts.
func compareValue(raw json.RawMessage, of reflect.Type, path string) (json.RawMessage, []Finding) {
	if err := json.Unmarshal(raw, reflect.New(of).Interface()); err != nil {
		return nil, []Finding{misfit(path, typeDetail(err))}
	}
	return raw, nil
}

// compareObject compares each value of an object. The type of a value is nil for an unknown field.
func compareObject(raw json.RawMessage, path string, member func(string) (reflect.Type, string)) (json.RawMessage, []Finding) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, []Finding{misfit(path, typeDetail(err))}
	}
	var findings []Finding
	for _, name := range slices.Sorted(maps.Keys(values)) {
		of, at := member(name)
		if of == nil {
			findings = append(findings, unknownField(at))
			delete(values, name)
			continue
		}
		fitting, wrong := compare(values[name], of, at)
		findings = append(findings, wrong...)
		if values[name] = fitting; fitting == nil {
			delete(values, name)
		}
	}
	return encoded(values), findings
}

// compareList compares each value of a list. One that does not fit becomes null, so that the others keep their places.
func compareList(raw json.RawMessage, of reflect.Type, path string) (json.RawMessage, []Finding) {
	var values []json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, []Finding{misfit(path, typeDetail(err))}
	}
	var findings []Finding
	for i := range values {
		fitting, wrong := compare(values[i], of, path+"["+strconv.Itoa(i)+"]")
		findings = append(findings, wrong...)
		if values[i] = fitting; fitting == nil {
			values[i] = json.RawMessage("null")
		}
	}
	return encoded(values), findings
}

// encoded returns values that were decoded before as JSON.
func encoded(values any) json.RawMessage {
	raw, err := json.Marshal(values)
	if err != nil {
		return nil
	}
	return raw
}

// fieldsOf returns the types of a struct's fields by their names in JSON, those of inlined structs included.
func fieldsOf(of reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			maps.Copy(fields, fieldsOf(field.Type))
			continue
		}
		if name != "" && name != "-" {
			fields[name] = field.Type
		}
	}
	return fields
}

func misfit(path, detail string) Finding {
	return Finding{Field: path, Message: "Invalid value: does not fit the kind: " + detail}
}

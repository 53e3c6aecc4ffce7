// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkShape compares a parsed JSON value with the Go type it is meant for and reports every unknown field, null and wrong
// type with its full path. The JSON decoder itself stops at the first wrong type and gives no path for types that decode
// themselves.
func checkShape(value any, want reflect.Type, path *field.Path) field.ErrorList {
	if want.Kind() == reflect.Pointer {
		want = want.Elem()
	}
	if value == nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must not be null: give a value or leave the field out")}
	}
	if decoder, ok := reflect.New(want).Interface().(json.Unmarshaler); ok {
		return checkDecoder(value, decoder, path)
	}
	switch want.Kind() {
	case reflect.Struct:
		return checkStruct(value, want, path)
	case reflect.Slice:
		return checkSlice(value, want, path)
	case reflect.String:
		_, ok := value.(string)
		return expect(ok, value, "a string", path)
	case reflect.Bool:
		_, ok := value.(bool)
		return expect(ok, value, "true or false", path)
	case reflect.Int32:
		n, ok := value.(int64)
		return expect(ok && n >= math.MinInt32 && n <= math.MaxInt32, value, "a whole number of 32 bits", path)
	default:
		return field.ErrorList{field.InternalError(path, fmt.Errorf("no rule for Go type %s", want))}
	}
}

// checkDecoder asks a type that reads its own JSON, a resource.Quantity or a metav1.Duration. It gets a string or a number only, the
// forms that those have.
func checkDecoder(value any, decoder json.Unmarshaler, path *field.Path) field.ErrorList {
	what := "a quantity such as 512Mi"
	if _, ok := decoder.(*metav1.Duration); ok {
		what = "a duration such as 90s"
	}
	switch value.(type) {
	case string, int64, float64:
	default:
		return expect(false, value, what, path)
	}
	raw, err := json.Marshal(value)
	if err == nil {
		err = checkExponent(string(raw))
	}
	if err == nil {
		err = decoder.UnmarshalJSON(raw)
	}
	if err != nil {
		return field.ErrorList{field.Invalid(path, value, "must be "+what+": "+err.Error())}
	}
	return nil
}

// maxExponent is how many digits the exponent of a quantity may have. Reading or comparing one computes the power of ten: with eight digits
// that takes seconds, and with ten more memory than a node has.
const maxExponent = 2

var errExponent = fmt.Errorf("its exponent has more than %d digits: use a suffix such as Gi", maxExponent)

// checkExponent returns an error for a text of which no quantity may be made. It is for texts that the API server did not read as one.
func checkExponent(text string) error {
	at := strings.LastIndexAny(text, "eE")
	if at < 0 {
		return nil
	}
	digits := 0
	for _, r := range text[at+1:] {
		if r >= '0' && r <= '9' {
			digits++
		}
	}
	if digits > maxExponent {
		return errExponent
	}
	return nil
}

func checkStruct(value any, want reflect.Type, path *field.Path) field.ErrorList {
	object, ok := value.(map[string]any)
	if !ok {
		return expect(false, value, "an object", path)
	}
	fields := jsonFields(want)
	var faults field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(object)) {
		inner, known := fields[key]
		if !known {
			faults = append(faults, unknownField(key, fields, path))
			continue
		}
		faults = append(faults, checkShape(object[key], inner, path.Child(key))...)
	}
	return faults
}

func checkSlice(value any, want reflect.Type, path *field.Path) field.ErrorList {
	list, ok := value.([]any)
	if !ok {
		return expect(false, value, "a list", path)
	}
	var faults field.ErrorList
	for i, item := range list {
		faults = append(faults, checkShape(item, want.Elem(), path.Index(i))...)
	}
	return faults
}

// jsonFields maps the JSON names of a struct's fields, those of inlined structs included, to their types.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && strings.Contains(options, "inline") {
			maps.Copy(fields, jsonFields(f.Type))
			continue
		}
		fields[name] = f.Type
	}
	return fields
}

// unknownField names the fields that exist, and the one that was meant when only the case differs.
func unknownField(key string, fields map[string]reflect.Type, path *field.Path) *field.Error {
	known := slices.Sorted(maps.Keys(fields))
	for _, name := range known {
		if strings.EqualFold(name, key) {
			return field.Invalid(path.Child(key), field.OmitValueType{}, "unknown field: its case is wrong, write "+name)
		}
	}
	return field.Invalid(path.Child(key), field.OmitValueType{}, "unknown field: use one of "+strings.Join(known, ", "))
}

func expect(ok bool, value any, what string, path *field.Path) field.ErrorList {
	if ok {
		return nil
	}
	return field.ErrorList{wrongType(path, value, what)}
}

func wrongType(path *field.Path, value any, want string) *field.Error {
	got := "null"
	switch value.(type) {
	case map[string]any:
		return field.Invalid(path, field.OmitValueType{}, "must be "+want+", not an object")
	case []any:
		return field.Invalid(path, field.OmitValueType{}, "must be "+want+", not a list")
	case string:
		got = "a string"
	case int64, float64:
		got = "a number"
	case bool:
		got = "a boolean"
	}
	if value == nil {
		value = field.OmitValueType{}
	}
	return field.Invalid(path, value, "must be "+want+", not "+got)
}

// below appends a decoder's path such as "sharing.mps" or "items[2].name" to path.
func below(path *field.Path, text string) *field.Path {
	for part := range strings.SplitSeq(text, ".") {
		path = path.Child(part)
	}
	return path
}

// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// WrongType says of an error of decoding which field has a value of which type, and what belongs there, without the names of Go's types. ok
// is false for any other error.
func WrongType(err error) (field, message string, ok bool) {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return "", "", false
	}
	kind, _, _ := strings.Cut(wrong.Value, " ") // of a number the text comes behind it
	message = "got " + kindWords()[kind] + ", want " + typeWords(wrong.Type)
	switch of := wrong.Type; {
	case of.Kind() != reflect.String:
	case kind == "bool":
		message += ": YAML takes y, n, yes, no, on, off, true and false without quotes for true or false: put the value into quotes"
	case kind == "number":
		message += ": put the number into quotes"
	}
	return wrong.Field, message, true
}

// WithoutTypes says an error of decoding in the words of WrongType, and each of several that were joined. It returns any other as it is.
func WithoutTypes(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, WithoutTypes(one))
		}
		return errors.Join(all...)
	}
	field, message, ok := WrongType(err)
	switch {
	case !ok:
		return err
	case field == "":
		return errors.New(message)
	}
	return fmt.Errorf("%s: %s", field, message)
}

// kindWords are the kinds of JSON in encoding/json's words.
func kindWords() map[string]string {
	return map[string]string{
		"bool": "true or false", "number": "a number", "string": "text", "array": "a list", "object": "an object",
	}
}

// typeWords says what a field of a type holds.
func typeWords(of reflect.Type) string {
	switch of.Kind() { //nolint:exhaustive // the others are objects
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "an object"
}

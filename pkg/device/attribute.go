// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// String is a text attribute. Empty text, more than 64 bytes and control characters are errors: a value that was cut short would
// match selectors that it should not.
func String(value string) (resourceapi.DeviceAttribute, error) {
	if err := checkString(value); err != nil {
		return resourceapi.DeviceAttribute{}, err
	}
	return resourceapi.DeviceAttribute{StringValue: &value}, nil
}

func checkString(value string) error {
	switch {
	case value == "":
		return errors.New("string is empty")
	case len(value) > resourceapi.DeviceAttributeMaxValueLength:
		return fmt.Errorf("string %q... has %d bytes, want at most %d",
			strings.ToValidUTF8(value[:16], "?"), len(value), resourceapi.DeviceAttributeMaxValueLength)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("string %q: want UTF-8 without control characters", value)
	}
	return nil
}

// Version is a version attribute, made from what a kernel or vendor prints with NormalizeVersion.
func Version(raw string) (resourceapi.DeviceAttribute, error) {
	version, err := NormalizeVersion(raw)
	if err != nil {
		return resourceapi.DeviceAttribute{}, err
	}
	return resourceapi.DeviceAttribute{VersionValue: &version}, nil
}

// Int is a number.
func Int(value int64) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: &value}
}

// Bool is a flag.
func Bool(value bool) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{BoolValue: &value}
}

// Bytes is a capacity in bytes, printed in powers of 1024 where that is exact: 80Gi.
func Bytes(n int64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, resource.BinarySI)}
}

// Count is a capacity of whole things.
func Count(n int64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, resource.DecimalSI)}
}

// StringOf returns the text of a string or a version, empty for any other value.
func StringOf(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	default:
		return ""
	}
}

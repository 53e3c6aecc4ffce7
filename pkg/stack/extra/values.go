// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"regexp"
	"strings"

	"github.com/fettle-dev/fettle/pkg/stack"
)

// Values are what the variables of manifests stand for.
type Values struct {
	stack.Platform
	// DriverVersion is that of the driver which the stack brings. Empty: it brings none.
	DriverVersion string
	// Suffix is what the name of an object for one platform ends with. It is ${PLATFORM}, for texts that name such an object.
	Suffix string
}

//nolint:gochecknoglobals // a constant that Go cannot express as such
var variable = regexp.MustCompile(`[$]?[$][{](KERNEL|OS|ARCH|PLATFORM|DRIVER_VERSION)[}]`)

// escape stands before a variable that is meant as it is written: $${KERNEL} becomes ${KERNEL}.
const escape = "$$"

// imageKey is the field of containers in which a value has to be a part of a tag.
const imageKey = "image"

// For returns the object with the values in its texts. Keys stay as they are, and so does the name, but for what tells platforms apart.
func (m *Manifest) For(v *Values) map[string]any {
	tags := *v
	tags.Platform = v.ForTags()
	object, _ := put(m.object, "", v, &tags).(map[string]any)
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
		meta["name"] = m.NameFor(v.Suffix)
	}
	return object
}

// NameFor returns the object's name on a platform.
func (m *Manifest) NameFor(suffix string) string {
	if m.PerPlatform {
		return m.Name + "-" + suffix
	}
	return m.Name
}

// put returns a copy of a value with the variables in its texts replaced. key is the field that it is in.
func put(value any, key string, v, tags *Values) any {
	switch of := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(of))
		for k, inner := range of {
			out[k] = put(inner, k, v, tags)
		}
		return out
	case []any:
		out := make([]any, 0, len(of))
		for _, inner := range of {
			out = append(out, put(inner, "", v, tags))
		}
		return out
	case string:
		if key == imageKey {
			return tags.in(of)
		}
		return v.in(of)
	}
	return value
}

func (v *Values) in(text string) string {
	if !strings.Contains(text, "${") {
		return text
	}
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasPrefix(found, escape) {
			return found[1:]
		}
		switch found {
		case "${KERNEL}":
			return v.KernelVersion
		case "${OS}":
			return v.OS
		case "${ARCH}":
			return v.Architecture
		case "${DRIVER_VERSION}":
			return v.DriverVersion
		}
		return v.Suffix
	})
}

// notice looks which variables the object's texts have.
func (m *Manifest) notice() { m.look(m.object) }

func (m *Manifest) look(value any) {
	switch of := value.(type) {
	case map[string]any:
		for _, inner := range of {
			m.look(inner)
		}
	case []any:
		for _, inner := range of {
			m.look(inner)
		}
	case string:
		for _, found := range variable.FindAllString(of, -1) {
			switch {
			case strings.HasPrefix(found, escape):
			case found == "${DRIVER_VERSION}":
				m.NeedsVersion = true
			default:
				m.PerPlatform = true
				m.NeedsOS = m.NeedsOS || found == "${OS}"
			}
		}
	}
}

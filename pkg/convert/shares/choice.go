// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Choice is what an annotation of HAMi says of the GPUs that a pod may have.
type Choice struct {
	Annotation string
	// Expression is the selector that says the same.
	Expression string
}

// Choices reads HAMi's annotations that choose GPUs by UUID, or by a part of the model's name in any case.
func Choices(annotations map[string]string) []Choice {
	var all []Choice
	for _, name := range []string{"nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"} {
		values := strings.FieldsFunc(annotations[name], func(r rune) bool { return r == ',' || r == ' ' })
		if len(values) == 0 {
			continue
		}
		not := strings.Contains(name, "/nouse-")
		if strings.HasSuffix(name, "uuid") {
			all = append(all, Choice{name, among(values, not)})
		} else {
			all = append(all, Choice{name, ofModel(values, not)})
		}
	}
	return all
}

// among selects devices by their UUIDs, or all others.
func among(uuids []string, not bool) string {
	var quoted []string
	for _, uuid := range uuids {
		quoted = append(quoted, strconv.Quote(uuid))
	}
	slices.Sort(quoted)
	path := fmt.Sprintf("device.attributes[%q]", v1alpha1.DriverName)
	return fmt.Sprintf("%q in %s && %s(%[2]s.%[4]s in [%[5]s])", device.AttributeUUID, path, negation(not), device.AttributeUUID,
		strings.Join(quoted, ", "))
}

// ofModel selects devices whose model has one of some words in its name, or all others.
func ofModel(words []string, not bool) string {
	path := fmt.Sprintf("device.attributes[%q]", v1alpha1.DriverName)
	var terms []string
	for _, word := range words {
		terms = append(terms, fmt.Sprintf("%s.%s.lowerAscii().contains(%q)", path, device.AttributeProductName, strings.ToLower(word)))
	}
	return fmt.Sprintf("%q in %s && %s(%s)", device.AttributeProductName, path, negation(not), strings.Join(terms, " || "))
}

func negation(not bool) string {
	if not {
		return "!"
	}
	return ""
}

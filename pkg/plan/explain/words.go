// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"regexp"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// noun says what a class has: GPUs, FPGAs, or devices.
func noun(class string, n int) string {
	word := "device"
	switch {
	case strings.HasPrefix(class, "gpu"):
		word = "GPU"
	case strings.HasPrefix(class, "fpga"):
		word = "FPGA"
	}
	if n != 1 {
		word += "s"
	}
	return word
}

// counted writes a number of devices of a class.
func counted(n int, class string) string { return fmt.Sprintf("%d %s", n, noun(class, n)) }

// are is the verb for a number.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// listed joins names of nodes, and counts those after the first few.
func listed(names []string, most int) string {
	switch {
	case len(names) == 0:
		return "no node"
	case len(names) == 1:
		return "node " + names[0]
	case len(names) > most:
		return fmt.Sprintf("nodes %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return fmt.Sprintf("nodes %s and %s", strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
}

// plain writes an expression without the words that every selector has.
func plain(expression string) string {
	for _, rule := range []struct{ pattern, by string }{
		{`device\.(?:attributes|capacity)\["[^"]*"\]\.\??(\w+)`, "$1"},
		{`(\w+)\.compareTo\(quantity\("([^"]*)"\)\) (>=|<=|>|<|==|!=) 0`, "$1 $3 $2"},
		{`(\w+)\.isGreaterThan\((?:quantity|semver)\("([^"]*)"\)\)`, "$1 > $2"},
		{`(\w+)\.isLessThan\((?:quantity|semver)\("([^"]*)"\)\)`, "$1 < $2"},
		{`(\w+)\.compareTo\(semver\("([^"]*)"\)\) (>=|<=|>|<|==|!=) 0`, "$1 $3 $2"},
	} {
		expression = regexp.MustCompile(rule.pattern).ReplaceAllString(expression, rule.by)
	}
	return expression
}

// longest is how much of selectors is shown in a sentence.
const longest = 80

// with describes what the selectors of a request want, if that is short.
func with(selectors []resourceapi.DeviceSelector) string {
	var parts []string
	for _, s := range selectors {
		if s.CEL != nil {
			parts = append(parts, plain(s.CEL.Expression))
		}
	}
	text := strings.Join(parts, " and ")
	if text == "" || len(text) > longest {
		return ""
	}
	return " with " + text
}

// differing says how devices differ, or agree, that a constraint does not allow together.
func differing(attribute string, distinct bool) string {
	words := map[string]string{
		"resource.kubernetes.io/pcieRoot": "PCIe root", "resource.kubernetes.io/numaNode": "NUMA node", "fettle.dev/numaNode": "NUMA node",
	}
	word, found := words[attribute]
	switch {
	case distinct && found:
		return "on the same " + word
	case distinct:
		return "with the same " + attribute
	case found:
		return "on different " + word + "s"
	}
	return "with different values of " + attribute
}

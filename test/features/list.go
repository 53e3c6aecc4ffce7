// SPDX-License-Identifier: Apache-2.0

package features

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// There is the line of a program that is rendered, and Configured that of a feature that changes the kubelet plugin's configuration.
	There      = "is there"
	Configured = "* the configuration of the kubelet plugin"
)

// Heading begins what the list says of a feature.
func Heading(name string) string { return "with " + name + "\n" }

// List is what the chart gives to its programs, with each feature, as the tests of the chart have written it down.
type List struct{ text string }

// OpenList reads the list of a chart in this source tree.
func OpenList(chart string) (List, error) {
	text, err := os.ReadFile(filepath.Join(chart, "../../../test/chart/testdata/golden/features.txt"))
	if err != nil {
		return List{}, fmt.Errorf("read what the chart's features change: %w", err)
	}
	return List{string(text)}, nil
}

// Name names a program.
type Name struct{ Kind, Component, Container string }

// Programs lists the programs that the chart can render.
func (l List) Programs() []Name {
	var out []Name
	for _, found := range regexp.MustCompile(`(?m)^(?:\+ )?(\w+) (\w+)/(\w+): `+There+"$").FindAllStringSubmatch(l.text, -1) {
		if name := (Name{found[1], found[2], found[3]}); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// OfPlugin lists the features that change the kubelet plugin's container or its configuration. Two kinds are left out, since no test node
// can have them: directories that test nodes have at one place, and what only OpenShift serves.
func (l List) OfPlugin() []string {
	elsewhere := []string{"hostRoot", "kubeletDir", "nvidia.driverRoot", "fpga.firmwareDir", "fpga.xrt.driverRoot", "openshift.enabled"}
	var out []string
	for _, section := range strings.Split(l.text, "\n\nwith ")[1:] {
		name, changes, _ := strings.Cut(section, "\n")
		if (strings.Contains(changes, "DaemonSet kubeletplugin/plugin: ") || strings.Contains(changes, Configured)) &&
			!slices.Contains(elsewhere, name) {
			out = append(out, name)
		}
	}
	return out
}

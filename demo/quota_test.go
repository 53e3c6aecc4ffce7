// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
)

// kueueConfiguration has the fields of Kueue's configuration that the document uses (apis/config/v1beta2/configuration_types.go of v0.19).
type kueueConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Resources  struct {
		DeviceClassMappings []struct {
			Name             string   `json:"name"`
			DeviceClassNames []string `json:"deviceClassNames"`
			Sources          []struct {
				Counter struct {
					Name           string                     `json:"name"`
					Driver         string                     `json:"driver"`
					DeviceSelector resourceapi.DeviceSelector `json:"deviceSelector"`
				} `json:"counter"`
			} `json:"sources"`
		} `json:"deviceClassMappings"`
	} `json:"resources"`
}

// TestQuotaDocument: the ResourceQuota, the chart's limits and Kueue's mappings name classes that Fettle makes, and the counter that it
// publishes, by a selector that fits its devices.
func TestQuotaDocument(t *testing.T) {
	text := read(t, filepath.Join(documents, "quota.md"))
	var classes []string
	for _, c := range deviceclasses.Classes(deviceclasses.Options{Parts: deviceclasses.PartTypes()}) {
		classes = append(classes, c.Name)
	}
	named := 0
	for _, name := range regexp.MustCompile(`[a-z.]*gpu\.fettle\.dev`).FindAllString(text, -1) {
		named++
		if !slices.Contains(classes, name) {
			t.Errorf("%s is no class that Fettle makes", name)
		}
	}
	if named < 8 {
		t.Errorf("%d names of classes, expected at least 8", named)
	}
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		var object corev1.ConfigMap
		if !strings.Contains(block[1], "kind: ConfigMap") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(block[1]), &object); err != nil {
			t.Fatal(err)
		}
		var kueue kueueConfiguration
		if err := yaml.UnmarshalStrict([]byte(object.Data["controller_manager_config.yaml"]), &kueue); err != nil {
			t.Fatal(err)
		}
		for _, mapping := range kueue.Resources.DeviceClassMappings {
			for _, source := range mapping.Sources {
				if source.Counter.Name != "memory" || source.Counter.Driver != "fettle.dev" {
					t.Errorf("counter %s of %s is not one of Fettle's", source.Counter.Name, source.Counter.Driver)
				}
				class := resourceapi.DeviceClass{}
				class.Spec.Selectors = []resourceapi.DeviceSelector{source.Counter.DeviceSelector}
				class.APIVersion, class.Kind, class.Name = "resource.k8s.io/v1", "DeviceClass", "kueue"
				text, err := yaml.Marshal(class)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range findings(t, string(text), mapping.Name) {
					t.Error(f)
				}
			}
		}
		return
	}
	t.Error("no configuration of Kueue in the document")
}

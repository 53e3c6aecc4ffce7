// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDocument: the manifests of the user's page are such that a stack makes, for each platform.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/user/stack-states.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(block[1], "\nkind: ConfigMap\n") {
			continue
		}
		found++
		var c corev1.ConfigMap
		if err := yaml.UnmarshalStrict([]byte(block[1]), &c); err != nil {
			t.Fatal(err)
		}
		manifests, err := Parse(c.Data, namespace)
		if err != nil || c.Namespace != namespace || !manifests[0].PerPlatform {
			t.Errorf("%s/%s: %+v, %v", c.Namespace, c.Name, manifests, err)
		}
	}
	if found == 0 {
		t.Error("the page has no manifests")
	}
}

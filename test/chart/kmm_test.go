// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestKMMValues renders the chart with the values in docs/user/kmm.md. The DaemonSet must keep off the nodes where KMM runs the plugin.
func TestKMMValues(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs/user/kmm.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```yaml\n(# values of the chart\n.*?)^```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/user/kmm.md has no values of the chart")
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, block[1], 0o600); err != nil {
		t.Fatal(err)
	}
	pod := podOf(t, find(t, renderObjects(t, "--values="+values), "DaemonSet", "fettle-kubeletplugin"))
	var refused bool
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, r := range term.MatchExpressions {
				refused = refused || r.Key == "example.com/fettle" && r.Operator == corev1.NodeSelectorOpNotIn && r.Values[0] == "kmm"
			}
		}
	}
	if !refused {
		t.Errorf("affinity %+v, want nodes of KMM left out", pod.Spec.Affinity)
	}
}

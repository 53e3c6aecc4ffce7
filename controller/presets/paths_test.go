// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestPresetPaths: the status reports a path that no namespace may name before a claim waits for it.
func TestPresetPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/etc": "False HostPathsNotAllowed, False NoConflict", "/data/x": "True Valid, False NoConflict",
	} {
		p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "a", Generation: 1}}
		p.Spec.PresetRules = presetSpec("1")
		p.Spec.Mounts = []v1alpha1.PresetMount{{HostPath: path, ContainerPath: "/opt/x"}}
		b := newPresetBench(t, p)
		b.allowed = []preset.AllowedHostPath{{Path: "/data"}}
		if got, _ := b.reconciled(t, p); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
		says := strings.Contains(p.Status.Conditions[0].Message, "spec.mounts[0].hostPath: Forbidden: /etc")
		if says != strings.Contains(want, "Allowed") {
			t.Errorf("message %q", p.Status.Conditions[0].Message)
		}
	}
}

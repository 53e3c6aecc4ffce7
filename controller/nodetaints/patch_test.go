// SPDX-License-Identifier: Apache-2.0

package nodetaints

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPatch: the last note that goes takes no annotation of others along. The controller's copy of a Node has none of them.
func TestPatch(t *testing.T) {
	taints := []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	for _, tc := range []struct {
		taints      []corev1.Taint
		noted, want string
	}{
		{
			taints, "k:NoSchedule",
			`{"metadata":{"annotations":{"fettle.dev/taints":"k:NoSchedule"},"resourceVersion":"7"},` +
				`"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`,
		},
		{nil, "", `{"metadata":{"annotations":{"fettle.dev/taints":null},"resourceVersion":"7"},"spec":{"taints":null}}`},
	} {
		patch, err := patchOf("7", tc.taints, tc.noted)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := patch.Data(nil); err != nil || string(data) != tc.want {
			t.Errorf("%s (%v), want %s", data, err, tc.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestKernelWithoutLandlockIsSaid: a node whose kernel lets a taken-over program reach everything says so.
func TestKernelWithoutLandlockIsSaid(t *testing.T) {
	for version, want := range map[int]string{0: "has no Landlock", 5: "Landlock 5", 6: "", 9: ""} {
		v := nodefixture.Snapshot(t, "8xh100-sxm")
		status := nodeStatus(statusInput{node: nodefixture.Node, snapshot: v, unconfined: unconfined(version, nil), now: time.Now()})
		said := ""
		for _, p := range status.Problems {
			if p.Reason == ReasonProgramsUnconfined {
				said = p.Message
			}
		}
		if (said == "") != (want == "") || !strings.Contains(said, want) {
			t.Errorf("Landlock %d: %q, want %q in it", version, said, want)
		}
	}
}

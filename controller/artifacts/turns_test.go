// SPDX-License-Identifier: Apache-2.0

package artifacts

import "testing"

// TestTurns: one namespace does not take what others wait for, and nothing of it is left when it is done.
func TestTurns(t *testing.T) {
	t.Parallel()
	var all turns
	for i := range turnsPerNamespace {
		if !all.take("a") {
			t.Fatalf("turn %d was refused", i)
		}
	}
	if all.take("a") {
		t.Error("a namespace got more than its turns")
	}
	if !all.take("b") || !all.take("") {
		t.Error("other namespaces got none")
	}
	all.giveBack("a")
	if !all.take("a") {
		t.Error("a turn that was given back is not there")
	}
	for range turnsPerNamespace {
		all.giveBack("a")
	}
	all.giveBack("b")
	all.giveBack("")
	if len(all.taken) != 0 {
		t.Errorf("left: %v", all.taken)
	}
}

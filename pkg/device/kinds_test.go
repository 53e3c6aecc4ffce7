// SPDX-License-Identifier: Apache-2.0

package device

import (
	"slices"
	"testing"
)

// TestKindOf: the type of each device, whole or a part, tells its kind, and each kind has a noun.
func TestKindOf(t *testing.T) {
	if kinds := Kinds(); !slices.IsSorted(kinds) {
		t.Errorf("kinds %v are not sorted", kinds)
	}
	for _, kind := range Kinds() {
		if got, ok := KindOf(string(kind)); !ok || got != kind || kind.Noun() == "" {
			t.Errorf("type %s is of kind %q, which is called %q", kind, got, kind.Noun())
		}
	}
	for _, part := range []string{TypeMIG, TypePartition, TypeVF, TypeVFIO} {
		if got, ok := KindOf(part); !ok || got != KindGPU {
			t.Errorf("type %s is of kind %q, want %s", part, got, KindGPU)
		}
	}
	if got, ok := KindOf("nic"); ok || Kind("nic").Noun() != "" {
		t.Errorf("type nic is of kind %q", got)
	}
}

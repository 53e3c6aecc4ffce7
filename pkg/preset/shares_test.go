// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestSharesOfAnAttacker: whatever tenants create, change and delete, no namespace has more kept than its share, and all together not more
// than the whole. A namespace that is within its share is not refused for what others do.
func TestSharesOfAnAttacker(t *testing.T) {
	random := seed.New(t)
	type object struct {
		namespace string
		uid       types.UID
	}
	var s Shares
	kept, sizes := map[object]int{}, map[object]int{}
	for range 4_000 {
		o := object{fmt.Sprintf("n%d", random.IntN(60)), types.UID(fmt.Sprintf("u%d", random.IntN(400)))}
		if random.IntN(3) == 0 {
			s.Forget(o.namespace, o.uid)
			delete(kept, o)
			delete(sizes, o)
		} else {
			size := random.IntN(v1alpha1.MaxPresetSize)
			delete(kept, o)
			sizes[o] = max(size, v1alpha1.MinPresetSize)
			if s.Note(o.namespace, o.uid, size) {
				kept[o] = sizes[o]
			}
		}
		all, own, count, sum := 0, 0, 0, 0
		for k, size := range kept {
			all += size
			if k.namespace == o.namespace {
				own += size
			}
		}
		for k, size := range sizes {
			if k.namespace == o.namespace {
				count, sum = count+1, sum+size
			}
		}
		if own > v1alpha1.MaxPresetsSize || all > maxKept || all != s.kept {
			t.Fatalf("%d bytes of %s are kept, and %d of all, %d as counted", own, o.namespace, all, s.kept)
		}
		over, refused := errors.AsType[*OverError](s.Check(o.namespace))
		if want := count > v1alpha1.MaxPresets || sum > v1alpha1.MaxPresetsSize; refused != want {
			t.Fatalf("with %d presets of %d bytes: %v", count, sum, over)
		}
		if refused && (over.Presets != count || over.Size != sum) {
			t.Fatalf("%v, want %d and %d", over, count, sum)
		}
	}
}

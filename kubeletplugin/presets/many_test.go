// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

// manyPresets are of a namespace, with values of so many bytes each.
func manyPresets(namespace string, n, size int) (all []runtime.Object) {
	const each = 4096
	for i := range n {
		p := teamPreset(func(r *v1alpha1.PresetRules) {
			for j := range max(1, size/each) {
				r.Env = append(r.Env, v1alpha1.PresetEnv{Name: fmt.Sprintf("V%d_%d", i, j), Value: new(strings.Repeat("v", min(each, size)))})
			}
		})
		p.Namespace, p.Name, p.UID = namespace, fmt.Sprintf("p%03d", i), types.UID(fmt.Sprintf("%s-%d", namespace, i))
		all = append(all, p)
	}
	return all
}

// kept returns the bytes of the presets of all namespaces that the plugin has in memory.
func (w *presetWorld) kept() (bytes int) {
	for _, object := range w.informers[presetResource].GetStore().List() {
		if known, ok := object.(*readPreset); ok && known.preset != nil {
			bytes += known.preset.Rules.Size()
		}
	}
	return bytes
}

// TestManyPresetsOfATenant: a tenant makes presets that would fill the memory of every node. The plugin keeps a share, refuses the tenant's
// claims with what to do, and gives others what their presets say. When the tenant has deleted enough, the rest is given again.
func TestManyPresetsOfATenant(t *testing.T) {
	tests := []struct {
		name    string
		presets []runtime.Object
	}{
		{"540 presets of 64 KiB", manyPresets("team-a", 540, 64<<10)},
		{"2,000 small presets", manyPresets("team-a", 2000, 1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newPresetWorld(t, append(manyPresets("team-b", 1, 1), tt.presets...)...)
			claim := claimOfClass("u1", ofGPU("gpu", "gpu0"))
			over := func(when string) {
				t.Helper()
				if _, err := w.plan(claim); !errors.Is(err, errUnmet) || !strings.Contains(err.Error(), "namespace team-a has ") ||
					!strings.Contains(err.Error(), "delete some") {
					t.Errorf("%s: %v", when, err)
				}
			}
			over("asked for")
			w.follow()
			over("followed")
			if kept := w.kept(); kept > v1alpha1.MaxPresetsSize+v1alpha1.MinPresetSize {
				t.Errorf("the plugin keeps %d bytes of presets", kept)
			}
			other := claimOfClass("u2", ofGPU("gpu", "gpu1"))
			other.Namespace = "team-b"
			if given := w.gives(other).Edits["gpu"].Shared.Env; !slices.Equal(given, []string{"V0_0=v"}) {
				t.Errorf("another namespace's claim is given %q", given)
			}
			for i := range len(tt.presets) - 1 {
				check.Must(t, w.Feature.presets(presetResource, "team-a").Delete(t.Context(), fmt.Sprintf("p%03d", i), metav1.DeleteOptions{}))
				if i%50 == 0 { // a fake watch holds 100 changes
					check.Eventually(t, "the plugin follows", func() bool {
						return len(w.informers[presetResource].GetStore().ListKeys()) == len(tt.presets)-i
					})
				}
			}
			last := fmt.Sprintf("V%d_0=", len(tt.presets)-1)
			check.Eventually(t, "the last preset is given", func() bool {
				given, err := w.plan(claim)
				return err == nil && strings.HasPrefix(given.Edits["gpu"].Shared.Env[0], last)
			})
		})
	}
}

// TestPresetTooLarge: a preset that is larger than a definition allows, since an older one allowed it, is not kept, and refused by itself.
func TestPresetTooLarge(t *testing.T) {
	large := manyPresets("team-a", 1, 1<<20)
	good := teamPreset(func(r *v1alpha1.PresetRules) { r.Env = []v1alpha1.PresetEnv{{Name: "GOOD", Value: new("1")}} })
	good.UID = "good"
	w := newPresetWorld(t, append(large, good)...)
	w.follow()
	if kept := w.kept(); kept > 2*v1alpha1.MinPresetSize {
		t.Errorf("the plugin keeps %d bytes of presets", kept)
	}
	given := w.gives(claimOfClass("u1", ofGPU("gpu", "gpu0"))).Edits["gpu"].Shared.Env
	told := strings.Join(w.told, "\n")
	if !slices.Equal(given, []string{"GOOD=1"}) || !strings.Contains(told, "team-a/p000") || !strings.Contains(told, "at most 262144") {
		t.Errorf("given %q, told:\n%s", given, told)
	}
}

// TestManyConfigMaps: a preset that names more ConfigMaps than are read for a pod makes its claims wait.
func TestManyConfigMaps(t *testing.T) {
	var objects []runtime.Object
	for i := range 80 {
		objects = append(objects, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprintf("m%d", i)},
			Data:       map[string]string{"k": strings.Repeat("v", 500_000)},
		})
	}
	p := teamPreset(func(r *v1alpha1.PresetRules) {
		for i := range 64 {
			r.Env = append(r.Env, v1alpha1.PresetEnv{Name: fmt.Sprintf("V%d", i), ValueFrom: &v1alpha1.PresetEnvSource{
				ConfigMapKeyRef: v1alpha1.PresetConfigMapKey{Name: fmt.Sprintf("m%d", i), Key: "other", Optional: true},
			}})
		}
	})
	w := newPresetWorld(t, append(objects, p)...)
	gets := 0
	w.kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { gets++; return false, nil, nil })
	_, err := w.plan(claimOfClass("u1", ofGPU("gpu", "gpu0")))
	check.WantErr(t, err, errTooManyConfigMaps, "name fewer or smaller ones")
	if gets > v1alpha1.MaxClaimConfigMaps/500_000+1 {
		t.Errorf("%d ConfigMaps were read", gets)
	}
	if reason, _ := (&Feature{}).Reason(err); !errors.Is(err, errUnmet) || reason != reasonUnmet {
		t.Errorf("the reason is %q of %v", reason, err)
	}
	if over, ok := errors.AsType[*preset.OverError](err); ok {
		t.Error(over)
	}
}

// TestLargePresetOfATenant: of one preset the plugin keeps little, whichever field is large.
func TestLargePresetOfATenant(t *testing.T) {
	w := newPresetWorld(t)
	large.KeepsLittle(t, &v1alpha1.DevicePreset{}, large.Unstructured(func(object any) (any, error) {
		kept, err := w.read(object)
		read, ok := kept.(*readPreset)
		if err != nil || !ok || read.preset == nil {
			return kept, err
		}
		return read.preset, nil
	}))
}

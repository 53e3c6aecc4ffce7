// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
)

// keeping has the reconciler read what the manager's cache would have.
func (b *presetBench) keeping(t *testing.T) {
	t.Helper()
	transform := Transform(b.shares, func(any) (any, error) { return nil, errors.New("it is no DevicePreset") })
	kept := map[string]*v1alpha1.DevicePreset{}
	keep := func(p *v1alpha1.DevicePreset) {
		if known := kept[string(p.UID)]; known == nil || known.ResourceVersion != p.ResourceVersion {
			out, err := transform(p.DeepCopy())
			check.Must(t, err)
			again, err := transform(out)
			check.Must(t, err)
			kept[string(p.UID)], _ = again.(*v1alpha1.DevicePreset)
		}
		kept[string(p.UID)].DeepCopyInto(p)
	}
	b.Client = interceptor.NewClient(b.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if p, ok := o.(*v1alpha1.DevicePreset); ok && err == nil {
				keep(p)
			}
			return err
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if l, ok := list.(*v1alpha1.DevicePresetList); ok {
				for i := range l.Items {
					keep(&l.Items[i])
				}
			}
			return err
		},
	})
}

// held returns the bytes of presets that the reconciler has in memory.
func (b *presetBench) held(t *testing.T) (bytes int) {
	t.Helper()
	var all v1alpha1.DevicePresetList
	check.Must(t, b.Client.List(t.Context(), &all))
	for i := range all.Items {
		p := &all.Items[i]
		for key, value := range p.Annotations {
			bytes += len(key) + len(value)
		}
		for j := range p.Spec.Env {
			bytes += len(*p.Spec.Env[j].Value)
		}
	}
	for _, e := range b.index.entries {
		for _, text := range e.settings {
			bytes += len(text)
		}
	}
	return bytes
}

// TestManyPresetsOfATenant: a tenant makes presets that would fill the memory of the controller. It keeps a share, says in each preset what
// is too much, and judges those of others. When the tenant has deleted enough, the rest is judged again.
func TestManyPresetsOfATenant(t *testing.T) {
	const many = 540
	value := strings.Repeat("v", 4096)
	made := func(namespace string, i int) *v1alpha1.DevicePreset {
		p := ownPreset(fmt.Sprintf("p%03d", i), "x")
		p.Namespace, p.UID, p.Spec.Env = namespace, p.UID+"/"+p.UID, nil
		p.Annotations = map[string]string{"a": strings.Repeat("a", 10_000)}
		for j := range 16 {
			p.Spec.Env = append(p.Spec.Env, v1alpha1.PresetEnv{Name: fmt.Sprintf("V%d_%d", i, j), Value: &value})
		}
		return p
	}
	b := newPresetBench(t)
	for i := range many {
		check.Must(t, b.client.Create(t.Context(), made("team", i)))
	}
	other := ownPreset("other", "x")
	other.Namespace = "others"
	check.Must(t, b.client.Create(t.Context(), other))
	b.keeping(t)
	for _, i := range []int{0, many - 1} {
		p := made("team", i)
		if got, _ := b.reconciled(t, p); got != "False Invalid, Unknown NotValid" {
			t.Errorf("preset %d: %s", i, got)
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
		if !strings.Contains(c.Message, "namespace team has 540 DevicePresets") {
			t.Errorf("preset %d: %s", i, c.Message)
		}
	}
	if got, _ := b.reconciled(t, other); got != "True Valid, False NoConflict" {
		t.Errorf("the preset of another namespace: %s", got)
	}
	if held := b.held(t); held > v1alpha1.MaxPresetsSize*5/4 {
		t.Errorf("the controller has %d bytes", held)
	}
	for i := range many - 2 {
		p := made("team", i)
		check.Must(t, b.client.Delete(t.Context(), p))
		b.forgets().Delete(event.DeleteEvent{Object: p})
	}
	p := made("team", many-1)
	if got, _ := b.reconciled(t, p); got != "True Valid, False NoConflict" {
		t.Errorf("after most were deleted: %s: %v", got, p.Status.Conditions)
	}
	if p := made("team", many-2); len(b.again) == 0 {
		t.Errorf("preset %s is not judged again", p.Name)
	}
	if env := p.Spec.Env; len(env) != 16 {
		t.Errorf("the status was written with %d variables in the object", len(env))
	}
}

// TestPresetTooLarge: a preset that an older definition allowed is not kept, and told so.
func TestPresetTooLarge(t *testing.T) {
	p := ownPreset("large", strings.Repeat("v", 1<<20))
	b := newPresetBench(t, p)
	b.keeping(t)
	if got, _ := b.reconciled(t, p); got != "False Invalid, Unknown NotValid" {
		t.Error(got)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
	if held := b.held(t); held > 1000 || !strings.Contains(c.Message, "must have at most 262144 bytes") {
		t.Errorf("%d bytes are kept: %s", held, c.Message)
	}
}

// TestStatusOfATenant: conditions that a tenant wrote, where it may, are not kept if they are many.
func TestStatusOfATenant(t *testing.T) {
	p := ownPreset("p", "x")
	for i := range 100 {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: fmt.Sprint("T", i), Message: strings.Repeat("m", 30_000)})
	}
	if kept := trim(p, &preset.Shares{}); len(kept.Status.Conditions) > 0 || len(kept.Spec.Env) != 1 {
		t.Errorf("kept %d conditions and %d variables", len(kept.Status.Conditions), len(kept.Spec.Env))
	}
	if row := New(reconciler.Services{}, nil, nil); len(row.Queues) != 1 {
		t.Errorf("a table that is only looked at: %v", row)
	}
}

// TestPresetNotRead: presets that the cache does not have, and that the API server did not give once, are read again and judged then.
func TestPresetNotRead(t *testing.T) {
	b := newPresetBench(t)
	made := func(i int, value string) *v1alpha1.DevicePreset { return ownPreset(fmt.Sprintf("p%03d", i), value) }
	for i := range v1alpha1.MaxPresets + 2 {
		check.Must(t, b.client.Create(t.Context(), made(i, fmt.Sprint(i))))
	}
	b.keeping(t)
	last, other := made(v1alpha1.MaxPresets+1, ""), made(v1alpha1.MaxPresets, "")
	if got, _ := b.reconciled(t, last); got != "False Invalid, Unknown NotValid" {
		t.Errorf("too many presets: %s", got)
	}
	for i := range v1alpha1.MaxPresets {
		p := made(i, "")
		check.Must(t, b.client.Delete(t.Context(), p))
		b.forgets().Delete(event.DeleteEvent{Object: p})
	}
	for len(b.again) > 0 {
		<-b.again
	}
	b.Live = interceptor.NewClient(b.client, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no answer")
		},
	})
	_, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(last)})
	check.WantErr(t, err, nil, "no answer")
	if len(b.again) == 0 {
		t.Error("the other preset is not judged again")
	}
	b.Live = b.client
	for _, p := range []*v1alpha1.DevicePreset{last, other} {
		if got, _ := b.reconciled(t, p); got != "True Valid, True Overlaps" {
			t.Errorf("preset %s: %s: %v", p.Name, got, p.Status.Conditions)
		}
	}
}

// TestPresetsOfManyNamespaces: what is not kept of the presets of very many namespaces, each with no more than its share, is not kept in
// the index either.
func TestPresetsOfManyNamespaces(t *testing.T) {
	value := strings.Repeat("v", 4096)
	p, other := ownPreset("p", value), clusterPreset("other", "x")
	for i := range 10 {
		p.Spec.Env = append(p.Spec.Env, v1alpha1.PresetEnv{Name: fmt.Sprint("V", i), Value: &value})
	}
	b := newPresetBench(t, p, other)
	b.begin.Do(func() {}) // the presets of others, which are noted below
	for i := range 40 {
		b.shares.Note(fmt.Sprint("others", i), "u", v1alpha1.MaxPresetsSize)
	}
	b.keeping(t)
	if got, _ := b.reconciled(t, p); got != "True Valid, True Overlaps" {
		t.Errorf("%s: %v", got, p.Status.Conditions)
	}
	if size := b.index.entries[client.ObjectKeyFromObject(p)].preset.Rules.Size(); b.held(t) > 1000 || size > 100 {
		t.Errorf("the cache and the settings have %d bytes, the index %d", b.held(t), size)
	}
}

// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
)

func rulesWith(value string, configMaps ...string) (rules v1alpha1.PresetRules) {
	rules.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{"gpu.fettle.dev"}}
	rules.Env = []v1alpha1.PresetEnv{{Name: "A", Value: &value}}
	for _, name := range configMaps {
		rules.EnvFrom = append(rules.EnvFrom, v1alpha1.PresetEnvFrom{ConfigMapRef: v1alpha1.PresetConfigMap{Name: name}})
	}
	return rules
}

func ownPreset(name, value string, configMaps ...string) *v1alpha1.DevicePreset {
	p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}}
	p.Spec.PresetRules = rulesWith(value, configMaps...)
	return p
}

func clusterPreset(name, value string, configMaps ...string) *v1alpha1.ClusterDevicePreset {
	p := &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.PresetRules = rulesWith(value, configMaps...)
	return p
}

// awaitPreset waits until the conditions are of this generation and as wanted, and the counts too.
func (c cluster) awaitPreset(t *testing.T, object client.Object, valid, conflicting string, claims, nodes int32) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err.Error()
		}
		var status v1alpha1.DevicePresetStatus
		switch p := object.(type) {
		case *v1alpha1.DevicePreset:
			status = p.Status
		case *v1alpha1.ClusterDevicePreset:
			status = p.Status
		}
		for kind, want := range map[string]string{v1alpha1.ConditionValid: valid, v1alpha1.ConditionConflicting: conflicting} {
			got := meta.FindStatusCondition(status.Conditions, kind)
			if got == nil || got.ObservedGeneration != object.GetGeneration() || string(got.Status)+" "+got.Reason != want {
				return fmt.Sprintf("%s of %s is %+v, want %s", kind, object.GetName(), got, want)
			}
		}
		if ptr.Deref(status.Claims, -1) != claims || ptr.Deref(status.Nodes, -1) != nodes {
			return fmt.Sprintf("%s has %d claims on %d nodes, want %d on %d", object.GetName(), ptr.Deref(status.Claims, -1),
				ptr.Deref(status.Nodes, -1), claims, nodes)
		}
		return ""
	})
}

// testPresets: what is said of presets follows what they say, and what nodes say of claims.
func (c cluster) testPresets(t *testing.T) {
	const valid, alone, overlaps = "True Valid", "False NoConflict", "True Overlaps"
	all, own := clusterPreset("site", "x"), ownPreset("site", "v")
	own.Spec.DeviceSelector.DeviceClassNames = append(own.Spec.DeviceSelector.DeviceClassNames, "other.example")
	c.create(t, all)
	c.awaitPreset(t, all, valid, alone, 0, 0)
	c.create(t, own)
	c.awaitPreset(t, own, valid, overlaps, 0, 0)
	apitest.Eventually(t, func() string { return c.missingEvent("site", "Overlaps") })
	rival := clusterPreset("rival", "z")
	c.create(t, rival)
	c.awaitPreset(t, rival, valid, overlaps, 0, 0)
	c.awaitPreset(t, all, valid, overlaps, 0, 0)
	if err := c.client.Delete(t.Context(), rival); err != nil {
		t.Fatal(err)
	}
	c.awaitPreset(t, all, valid, alone, 0, 0) // only the exception reports the conflict

	node := c.accelerator(t, "with-presets", "", true)
	before := node.DeepCopy()
	node.Status.Presets = []v1alpha1.NodePreset{{Name: "site", Claims: 2}, {Namespace: team, Name: "site", Claims: 1}}
	if err := c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	c.awaitPreset(t, all, valid, alone, 2, 1)
	c.awaitPreset(t, own, valid, overlaps, 1, 1)
	c.wantRow(t, "clusterdevicepresets/site", map[string]string{"Valid": "True", "Conflicting": "False", "Claims": "2", "Nodes": "1"})
	c.wantRow(t, "namespaces/"+team+"/devicepresets/site", map[string]string{"Valid": "True", "Conflicting": "True", "Claims": "1"})

	c.update(t, own, func() { own.Spec.DeviceSelector.CEL = "device.driver ==" })
	c.awaitPreset(t, own, "False Invalid", "Unknown NotValid", 1, 1)
	settled := own.ResourceVersion
	if err := c.client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	c.awaitPreset(t, all, valid, alone, 0, 0)
	if c.awaitPreset(t, own, "False Invalid", "Unknown NotValid", 0, 0); own.ResourceVersion == settled {
		t.Error("the count of a preset that is not valid stays")
	}
}

// testPresetGrants: the kubelet plugin may read the ConfigMaps that a preset names, as long as it does.
func (c cluster) testPresetGrants(t *testing.T) {
	const valid, alone = "True Valid", "False NoConflict"
	for _, object := range []client.Object{ownPreset("granted", "x", "m"), clusterPreset("granted", "x", "m")} {
		where := object.GetNamespace()
		if where == "" {
			where = namespace
		}
		may := func(verb, name string, want bool) {
			t.Helper()
			apitest.Eventually(t, func() string {
				if got := c.pluginMay(t, where, verb, "configmaps", name); got != want {
					return fmt.Sprintf("the kubelet plugin may %s ConfigMap %s/%s: %v, want %v", verb, where, name, got, want)
				}
				return ""
			})
		}
		c.create(t, object)
		c.awaitPreset(t, object, valid, alone, 0, 0)
		may("get", "m", true)
		may("get", "n", false)
		may("list", "m", false)
		may("update", "m", false)
		c.update(t, object, func() {
			switch p := object.(type) {
			case *v1alpha1.DevicePreset:
				p.Spec.PresetRules = rulesWith("x")
			case *v1alpha1.ClusterDevicePreset:
				p.Spec.PresetRules = rulesWith("x")
			}
		})
		c.awaitPreset(t, object, valid, alone, 0, 0)
		may("get", "m", false)
	}
}

// testMissingPreset: the class of GPUs that need libraries of the node has a warning until a preset could give these.
func (c cluster) testMissingPreset(t *testing.T, r replica) {
	missing := func(want float64) {
		t.Helper()
		apitest.Eventually(t, func() string {
			if got := gauges(t, r.registry, "fettle_controller_deviceclass_preset_missing")["gpu.fettle.dev"]; got != want {
				return fmt.Sprintf("metric of gpu.fettle.dev is %v, want %v", got, want)
			}
			return ""
		})
	}
	node := c.accelerator(t, "with-gpus", "", true)
	before := node.DeepCopy()
	node.Status.Vendors = []v1alpha1.VendorStatus{{Name: "nvidia", Devices: 1}}
	if err := c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	missing(1)
	apitest.Eventually(t, func() string { return c.missingEvent("gpu.fettle.dev", "PresetMissing") })
	p := clusterPreset("nvidia", "x")
	p.Spec.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libcuda.so.1"}}}
	c.create(t, p)
	missing(0)
}

// wrongMapGrant says whether the kubelet plugin may otherwise read the ConfigMap of the preset that an uninstall leaves.
func (c cluster) wrongMapGrant(t *testing.T, want bool) string {
	t.Helper()
	if got := c.pluginMay(t, team, "get", "configmaps", "left-behind"); got != want {
		return fmt.Sprintf("the kubelet plugin may read the ConfigMap of a preset: %v, want %v", got, want)
	}
	return ""
}

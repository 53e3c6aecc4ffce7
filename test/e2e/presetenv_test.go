// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func presetVariables() {
	It("gives every mode of a variable what it promises, whoever else sets it, and says what it refuses", ofNode, presetTable)
	It("does so for an extended resource, to the containers that ask for it", later("a variant of the same modes"), presetTableExtended)
	It("reads ConfigMaps of the driver's namespace and of a preset's, through Roles of the controller", presetConfigMaps)
}

// The variables of the table are called PLACE_MODE, as in POD_DEFAULT. Whoever sets one says who it is.
const (
	// raw stands for what the container has of it without presets, none for nothing.
	raw, none = "(raw)", "(none)"
	// early and late are presets for GPUs in the order of application, disk comes before either and is for disks.
	early, late, disk = "early", "late", "disk"

	envImage = "fettle.dev/test/env:1"
	// ofPod is the ConfigMap of the table's pods.
	ofPod = "of-pod"
)

// envModes are the columns.
var envModes = []v1alpha1.EnvMode{v1alpha1.EnvSet, v1alpha1.EnvDefault, v1alpha1.EnvPrepend, v1alpha1.EnvAppend}

// envRow is what becomes of the variables that are also set in one place, by mode.
type envRow struct {
	place string
	// owned is for a claim that one pod has, shared for one that pods share.
	owned, shared [4]string
}

// envTable is what docs/design/presets.md promises. What a preset is refused for is raw.
func envTable() []envRow {
	nothing := [4]string{late, none, late, late}
	hidden := [4]string{late, raw, late, late}
	refused := [4]string{late, raw, raw, raw}
	return []envRow{
		{"NONE", [4]string{late, late, late, late}, nothing},
		{"IMAGE", [4]string{late, late, late, late}, hidden}, // It cannot be seen.
		{"POD", [4]string{late, "pod", "late:pod", "pod:late"}, hidden},
		{"PRESET", [4]string{late, early, "late:early", "early:late"}, [4]string{late, early, "late:early", "early:late"}},
		// What the preset for disks says too counts where a container has a disk.
		{"CLAIMS", [4]string{late, late, late, late}, nothing},
		{"DIFFER", refused, hidden},
		{"FIELD", refused, hidden},
		{"REFERS", refused, hidden},
		{"FROM", refused, hidden},
	}
}

// claimsRow is that of CLAIMS with a disk.
func claimsRow() [4]string { return [4]string{late, disk, "late:disk", "disk:late"} }

// asOwned gives a container the columns of a claim that its pod owns.
func asOwned(table []envRow, claims [4]string) map[string][4]string {
	out := map[string][4]string{}
	for _, row := range table {
		out[row.place] = row.owned
	}
	out["CLAIMS"] = claims
	return out
}

func variable(place string, mode v1alpha1.EnvMode) string {
	return place + "_" + strings.ToUpper(string(mode))
}

// without is what a container has of a place without presets.
func without(p *corev1.Pod, container, place string) string {
	switch place {
	case "IMAGE":
		return "image"
	case "POD":
		return "pod"
	case "DIFFER":
		return container
	case "FIELD":
		return p.Name
	case "REFERS":
		return "a word"
	case "FROM":
		return "of the ConfigMap"
	}
	return none
}

// envPod has two containers of an image with variables of its own, which set others.
func envPod(p *corev1.Pod) {
	first := &p.Spec.Containers[0]
	first.Image = envImage
	first.Env = []corev1.EnvVar{{Name: "WORD", Value: "word"}}
	for _, mode := range envModes {
		field := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}
		first.Env = append(first.Env,
			corev1.EnvVar{Name: variable("POD", mode), Value: "pod"}, corev1.EnvVar{Name: variable("DIFFER", mode), Value: first.Name},
			corev1.EnvVar{Name: variable("FIELD", mode), ValueFrom: field}, corev1.EnvVar{Name: variable("REFERS", mode), Value: "a $(WORD)"})
	}
	first.EnvFrom = []corev1.EnvFromSource{{Prefix: "FROM_", ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: ofPod},
	}}}
	second := first.DeepCopy()
	second.Name = "second"
	for i := range second.Env {
		if strings.HasPrefix(second.Env[i].Name, "DIFFER_") {
			second.Env[i].Value = second.Name
		}
	}
	p.Spec.Containers = append(p.Spec.Containers, *second)
}

// newEnvTable makes a namespace with what the pods of the table need, and the presets.
func newEnvTable(ctx context.Context) (namespace string) {
	GinkgoHelper()
	ns := newNamespace(ctx, nil)
	env := builtImage{ref: envImage, files: busybox("bin")}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ofPod}, Data: map[string]string{}}
	all := map[string][]v1alpha1.PresetEnv{}
	for _, mode := range envModes {
		env.env = append(env.env, variable("IMAGE", mode)+"=image")
		config.Data[strings.ToUpper(string(mode))] = "of the ConfigMap"
		for _, row := range envTable() {
			all[late] = append(all[late], v1alpha1.PresetEnv{Name: variable(row.place, mode), Mode: mode, Value: new(late)})
		}
		all[early] = append(all[early], v1alpha1.PresetEnv{Name: variable("PRESET", mode), Value: new(early)})
		all[disk] = append(all[disk], v1alpha1.PresetEnv{Name: variable("CLAIMS", mode), Mode: mode, Value: new(disk)})
	}
	loadImages(ctx, env)
	_, err := h.Kube.CoreV1().ConfigMaps(ns).Create(ctx, config, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i, name := range []string{disk, early, late} {
		newClusterPreset(ctx, ns, "e2e-table-"+name, func(r *v1alpha1.PresetRules) {
			r.Priority, r.Env = int32(i), all[name]
			if name == disk {
				r.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{hostClass}}
			}
		})
	}
	return ns
}

// environment is what the first process of a shell in the container has, each variable once.
func environment(ctx context.Context, p *corev1.Pod, container string) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	for _, line := range lines(inside(ctx, p, container, "env")) {
		name, value, _ := strings.Cut(line, "=")
		Expect(out).NotTo(HaveKey(name), "%s is there twice", name)
		out[name] = value
	}
	return out
}

// expectCells compares every cell.
func expectCells(ctx context.Context, p *corev1.Pod, container string, columns map[string][4]string) {
	GinkgoHelper()
	got, want, have := environment(ctx, p, container), map[string]string{}, map[string]string{}
	for place, cells := range columns {
		for i, mode := range envModes {
			name := variable(place, mode)
			if want[name] = cells[i]; cells[i] == raw {
				want[name] = without(p, container, place)
			}
			have[name] = none
			if value, ok := got[name]; ok {
				have[name] = value
			}
		}
	}
	Expect(have).To(Equal(want), "container %s of pod %s", container, p.Name)
}

func presetTable(ctx SpecContext) {
	ns := newEnvTable(ctx)
	gpu := spec(request("gpu", gpuClass, where(onVendor("nvidia"))))
	newTemplate(ctx, ns, "gpu", gpu)
	newTemplate(ctx, ns, "disk", spec(request("disk", hostClass)))
	newClaim(ctx, ns, "shared", gpu)
	own := newPod(ctx, ns, "own", envPod, withTemplate("gpu"), onNode(gpuNode))
	two := newPod(ctx, ns, "two", envPod, withTemplate("gpu"), withTemplate("disk"), onNode(gpuNode), func(p *corev1.Pod) {
		second := &p.Spec.Containers[1].Resources
		second.Claims = second.Claims[:1]
	})
	sharing := []*corev1.Pod{
		newPod(ctx, ns, "shares", envPod, withClaim("shared"), onNode(gpuNode)),
		newPod(ctx, ns, "shares-too", envPod, withClaim("shared"), onNode(gpuNode)),
	}
	running(ctx, append(sharing, own, two)...)
	table := envTable()
	say("a claim that one pod has, used by two containers; the value is the same with a second claim in whatever order, and for the " +
		"container that has only one of them")
	for _, container := range []string{main, "second"} {
		expectCells(ctx, own, container, asOwned(table, [4]string{late, late, late, late}))
		expectCells(ctx, two, container, asOwned(table, claimsRow()))
	}
	say("a claim that pods share")
	columns := map[string][4]string{}
	for _, row := range table {
		columns[row.place] = row.shared
	}
	for _, p := range sharing {
		expectCells(ctx, p, main, columns)
	}
	presetTableTold(ctx, own)
}

// presetTableTold looks at what is said of the cells that are not as a preset would have them.
func presetTableTold(ctx context.Context, own *corev1.Pod) {
	GinkgoHelper()
	said := func(claim, reason string, words ...string) {
		for _, text := range words {
			eventuallyEvent(ctx, own.Namespace, "ResourceClaim", claim, reason, text)
		}
	}
	claim := onlyClaim(ctx, own)
	why := map[string]string{
		"DIFFER": "containers main and second, which share the request, set it differently, so nothing can be joined to it",
		"FIELD":  "container main sets it from elsewhere, so nothing can be joined to it",
		"REFERS": "container main sets it by way of other variables, so nothing can be joined to it",
		"FROM":   "container main may have it from its envFrom, so nothing can be joined to it",
	}
	explain := "fettle preset explain -n " + own.Namespace + " claim/" + claim.Name
	said(claim.Name, "PresetRefused", "DIFFER_APPEND: "+why["DIFFER"], "FIELD_PREPEND: "+why["FIELD"], " more: "+explain)
	said(claim.Name, "PresetOverridden", "variable POD_SET of ClusterDevicePreset e2e-table-late overrides the pod's",
		"variable FROM_SET of ClusterDevicePreset e2e-table-late overrides the pod's",
		"variable PRESET_SET of ClusterDevicePreset e2e-table-late overrides that of ClusterDevicePreset e2e-table-early")
	const shared = "mode default depends on the pod, and the claim is not of one pod alone: use a ResourceClaimTemplate, or mode set"
	said("shared", "PresetRefused", "CLAIMS_DEFAULT: "+shared, "DIFFER_DEFAULT: "+shared)

	say("what an Event has no room for is explained")
	refusals := func(claim string) []string {
		var out []string
		for _, line := range lines(fettle(ctx, "preset", "explain", "--kubeconfig", h.Kubeconfig(), "-n", own.Namespace, "claim/"+claim)) {
			if _, what, ok := strings.Cut(line, "  refused: request gpu, ClusterDevicePreset e2e-table-late (generation 1), "); ok {
				_, what, _ = strings.Cut(what, ": ") // The field, which is a number in the preset.
				out = append(out, what)
			}
		}
		return out
	}
	var ofOwn, ofShared []string
	for _, row := range envTable() {
		ofShared = append(ofShared, variable(row.place, v1alpha1.EnvDefault)+": "+shared)
		if reason := why[row.place]; reason != "" {
			for _, mode := range []v1alpha1.EnvMode{v1alpha1.EnvAppend, v1alpha1.EnvPrepend} {
				ofOwn = append(ofOwn, fmt.Sprintf("%s: %s: give the value in the pod's env, or use mode set", variable(row.place, mode), reason))
			}
		}
	}
	Expect(refusals(claim.Name)).To(ConsistOf(ofOwn))
	Expect(refusals("shared")).To(ConsistOf(ofShared))
}

func presetTableExtended(ctx SpecContext) {
	if older {
		Skip("this API has no extended resources of DRA")
	}
	ns := newEnvTable(ctx)
	pod := newPod(ctx, ns, "extended", envPod, onNode(gpuNode), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"fettle.dev/gpu": resource.MustParse("1")}
	})
	running(ctx, pod)
	columns := asOwned(envTable(), [4]string{late, late, late, late})
	columns["DIFFER"] = [4]string{late, main, "late:" + main, main + ":late"} // The other container does not count.
	expectCells(ctx, pod, main, columns)
	for place := range columns {
		columns[place] = [4]string{raw, raw, raw, raw}
	}
	expectCells(ctx, pod, "second", columns)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// dra is the part of a Module of KMM that says how the plugin runs.
type dra struct {
	Container          draContainer
	ServiceAccountName string
	DriverName         string
	Volumes            []corev1.Volume
	DeviceClasses      []any
}

// draContainer is what KMM takes of a container.
type draContainer struct {
	Image         string
	Command, Args []string
	Env           []corev1.EnvVar
	VolumeMounts  []corev1.VolumeMount
}

// checkModules has an API server with KMM's CustomResourceDefinition take every Module in docs/user/kmm.md, and refuse what KMM refuses. It
// returns how the Module with spec.dra runs the plugin.
func checkModules(t *testing.T, config *rest.Config, kube kubernetes.Interface) draContainer {
	t.Helper()
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths: []string{"testdata/kmm-modules-crd.yaml"}, ErrorIfPathMissing: true,
	})
	check.Must(t, err)
	client, err := dynamic.NewForConfig(config)
	check.Must(t, err)
	resources := client.Resource(schema.GroupVersionResource{Group: "kmm.sigs.x-k8s.io", Version: "v1beta1", Resource: "modules"})
	create := func(module *unstructured.Unstructured) error {
		_, err := resources.Namespace(module.GetNamespace()).Create(t.Context(), module,
			metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}})
		return err
	}
	modules := documentedModules(t)
	if len(modules) != 2 {
		t.Fatalf("%d Modules in docs/user/kmm.md, want one that loads drivers and one that runs the plugin too", len(modules))
	}
	for _, m := range modules {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.GetNamespace()}}
		if _, err := kube.CoreV1().Namespaces().Get(t.Context(), namespace.Name, metav1.GetOptions{}); err != nil {
			_, err = kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
			check.Must(t, err)
		}
		if err := create(m); err != nil {
			t.Errorf("Module %s: %v", m.GetName(), err)
		}
	}
	withPlugin := modules[1]
	for want, change := range map[string]func(object map[string]any) error{
		`unknown field "spec.dra.container.imag"`: func(o map[string]any) error {
			return unstructured.SetNestedField(o, "x", "spec", "dra", "container", "imag")
		},
		"spec.dra.driverName": func(o map[string]any) error {
			unstructured.RemoveNestedField(o, "spec", "dra", "driverName")
			return nil
		},
		"mutually exclusive": func(o map[string]any) error {
			return unstructured.SetNestedField(o, "x", "spec", "devicePlugin", "container", "image")
		},
	} {
		wrong := withPlugin.DeepCopy()
		check.Must(t, change(wrong.Object))
		if err := create(wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
	return checkDRA(t, withPlugin)
}

// documentedModules returns the Modules in docs/user/kmm.md, in their order.
func documentedModules(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	page, err := os.ReadFile("../../docs/user/kmm.md")
	check.Must(t, err)
	var modules []*unstructured.Unstructured
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(page), -1) {
		var module unstructured.Unstructured
		check.Must(t, yaml.UnmarshalStrict([]byte(block[1]), &module.Object))
		if module.GetKind() == "Module" {
			modules = append(modules, &module)
		}
	}
	return modules
}

// checkDRA wants what KMM's DaemonSet has to be complete: it adds three mounts and six variables to what the Module says, and runs one
// container (setDRAAsDesired in internal/controllers/dra_reconciler.go).
func checkDRA(t *testing.T, module *unstructured.Unstructured) draContainer {
	t.Helper()
	content, _, err := unstructured.NestedMap(module.Object, "spec", "dra")
	check.Must(t, err)
	text, err := json.Marshal(content)
	check.Must(t, err)
	var d dra
	check.Must(t, json.Unmarshal(text, &d))
	if d.DriverName != "fettle.dev" || d.ServiceAccountName != "fettle-kubeletplugin" || len(d.DeviceClasses) != 0 ||
		!slices.Equal(d.Container.Command, []string{"/fettle-kubeletplugin"}) {
		t.Errorf("spec.dra is %+v, want the driver's name, the chart's service account, the plugin, and no class of ours", d)
	}
	chart, err := os.ReadFile("../../test/chart/testdata/golden/default.yaml")
	check.Must(t, err)
	for _, want := range []string{
		"serviceAccountName: " + d.ServiceAccountName, "image: " + d.Container.Image, "namespace: " + module.GetNamespace(),
	} {
		if !strings.Contains(string(chart), want) {
			t.Errorf("the chart has no %q", want)
		}
	}
	taken := []string{"kubelet-plugins", "kubelet-plugins-registry", "cdi"} // by KMM
	for _, v := range d.Volumes {
		if slices.Contains(taken, v.Name) {
			t.Errorf("volume %s is there already", v.Name)
		}
		taken = append(taken, v.Name)
	}
	mounted := map[string]bool{}
	for _, m := range d.Container.VolumeMounts {
		mounted[m.MountPath] = slices.Contains(taken, m.Name)
	}
	if !mounted["/var/lib/fettle"] {
		t.Errorf("mounts %+v, want a volume at /var/lib/fettle: what the plugin keeps there must outlive its pod", d.Container.VolumeMounts)
	}
	for _, v := range d.Container.Env {
		if v.ValueFrom == nil || v.ValueFrom.FieldRef == nil || v.ValueFrom.FieldRef.FieldPath != "metadata.namespace" {
			t.Errorf("variable %+v, want none but the pod's namespace", v)
		}
	}
	tolerations, _, err := unstructured.NestedSlice(module.Object, "spec", "tolerations")
	check.Must(t, err)
	if len(tolerations) != 1 || len(tolerations[0].(map[string]any)) != 1 || tolerations[0].(map[string]any)["operator"] != "Exists" {
		t.Errorf("tolerations %v, want that of everything: another taint would unload the driver", tolerations)
	}
	return d.Container
}

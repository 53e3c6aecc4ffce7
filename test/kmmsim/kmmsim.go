// SPDX-License-Identifier: Apache-2.0

// Package kmmsim stands in for the controllers of the operator Kernel Module Management in tests: it is not KMM, has none of its code, and
// loads nothing. It does with Modules, nodes and NodeModulesConfigs what KMM's sources do (sigs.k8s.io/kernel-module-management, main of
// 2026-07-29): which nodes get a module, in what order versions change, and what is written down of it.
//
// What is as there: a node needs the label version-module with the Module's version; one without it has the module unloaded, one with
// another version keeps what it has. A taint that the Module does not tolerate has it unloaded. The first kernel mapping that matches
// counts, of a release without a plus sign at its end. The status has what was loaded and in which boot.
package kmmsim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	apiVersion = "kmm.sigs.x-k8s.io/v1beta1"
	labels     = "kmm.node.kubernetes.io/"
)

// CRDs returns the kinds of KMM that this package works with. Of their fields only the names of lists and objects are checked.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	return []*apiextensionsv1.CustomResourceDefinition{
		crd("modules", "Module", apiextensionsv1.NamespaceScoped), crd("nodemodulesconfigs", "NodeModulesConfig", apiextensionsv1.ClusterScoped),
	}
}

func crd(plural, kind string, scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	free := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".kmm.sigs.x-k8s.io"}}
	d.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "kmm.sigs.x-k8s.io", Scope: scope,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1beta1", Served: true, Storage: true,
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": free, "status": free},
			}},
		}},
	}
	return d
}

// KMM is the stand-in.
type KMM struct {
	Client client.Client
	// Missing are images that no node can pull.
	Missing map[string]bool
	// Seen is called with each node and what is done there: "load IMAGE" or "unload VERSION". Nil: nobody is told.
	Seen func(node, what string)
}

// Round does what KMM would do next on each node.
func (k *KMM) Round(ctx context.Context) error {
	var modules unstructured.UnstructuredList
	modules.SetAPIVersion(apiVersion)
	modules.SetKind("ModuleList")
	var nodes corev1.NodeList
	if err := errors.Join(k.Client.List(ctx, &modules), k.Client.List(ctx, &nodes)); err != nil {
		return err
	}
	var errs []error
	for i := range nodes.Items {
		errs = append(errs, k.node(ctx, &nodes.Items[i], modules.Items))
	}
	return errors.Join(errs...)
}

// node decides what a node is to have, and then does one of the things that are to be done there: a worker's pod does one thing.
func (k *KMM) node(ctx context.Context, node *corev1.Node, modules []unstructured.Unstructured) error {
	config, err := k.config(ctx, node.Name)
	if err != nil {
		return err
	}
	has := entries(config, "spec")
	wanted := map[string]map[string]any{}
	for i := range modules {
		m := &modules[i]
		key := m.GetNamespace() + "/" + m.GetName()
		if of := wants(m, node, has[key]); of != nil {
			wanted[key] = of
		}
	}
	if !reflect.DeepEqual(has, wanted) {
		config.Object["spec"] = map[string]any{"modules": list(wanted)}
		return k.Client.Update(ctx, config)
	}
	loaded, what := entries(config, "status"), ""
	for key, of := range loaded {
		if wanted[key] == nil && what == "" {
			what = fmt.Sprintf("unload %s", of["version"])
			delete(loaded, key)
		}
	}
	for key, of := range wanted {
		now := map[string]any{"bootId": node.Status.NodeInfo.BootID}
		for field, value := range of {
			now[field] = value
		}
		image, _ := of["config"].(map[string]any)["containerImage"].(string)
		if what == "" && !k.Missing[image] && !reflect.DeepEqual(loaded[key], now) {
			what = "load " + image
			loaded[key] = now
		}
	}
	if what == "" {
		return nil
	}
	if k.Seen != nil {
		k.Seen(node.Name, what)
	}
	config.Object["status"] = map[string]any{"modules": list(loaded)}
	return errors.Join(k.Client.Status().Update(ctx, config), k.ready(ctx, node, loaded))
}

// config returns a node's NodeModulesConfig, a new one if there is none.
func (k *KMM) config(ctx context.Context, node string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(apiVersion)
	o.SetKind("NodeModulesConfig")
	o.SetName(node)
	err := k.Client.Get(ctx, client.ObjectKey{Name: node}, o)
	if apierrors.IsNotFound(err) {
		err = k.Client.Create(ctx, o)
	}
	return o, err
}

// wants returns what a node is to have of a Module, nil for nothing. has is what it was to have before.
func wants(m *unstructured.Unstructured, node *corev1.Node, has map[string]any) map[string]any {
	spec, _, _ := unstructured.NestedMap(m.Object, "spec")
	container, _, _ := unstructured.NestedMap(spec, "moduleLoader", "container")
	version, _ := container["version"].(string)
	label := node.Labels[labels+"version-module."+m.GetNamespace()+"."+m.GetName()]
	release := strings.TrimSuffix(node.Status.NodeInfo.KernelVersion, "+")
	image := imageFor(container, release)
	switch {
	case m.GetDeletionTimestamp() != nil, image == "", !selects(spec, node), !tolerates(spec, node), label == "":
		return nil
	case label != version:
		return has
	}
	return map[string]any{
		"name": m.GetName(), "namespace": m.GetNamespace(), "serviceAccountName": "", "version": version, "tolerations": spec["tolerations"],
		"config": map[string]any{
			"kernelVersion": release, "containerImage": image, "imagePullPolicy": "IfNotPresent", "insecurePull": false,
			"modprobe": container["modprobe"],
		},
	}
}

func selects(spec map[string]any, node *corev1.Node) bool {
	selector, _, _ := unstructured.NestedStringMap(spec, "selector")
	for key, value := range selector {
		if node.Labels[key] != value {
			return false
		}
	}
	return true
}

// tolerates: this stand-in knows the toleration of everything and no other.
func tolerates(spec map[string]any, node *corev1.Node) bool {
	tolerations, _, _ := unstructured.NestedSlice(spec, "tolerations")
	for _, t := range tolerations {
		if of, ok := t.(map[string]any); ok && of["operator"] == "Exists" && of["key"] == nil {
			return true
		}
	}
	for _, t := range node.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			return false
		}
	}
	return true
}

func imageFor(container map[string]any, release string) string {
	mappings, _, _ := unstructured.NestedSlice(container, "kernelMappings")
	for _, m := range mappings {
		of, _ := m.(map[string]any)
		literal, _ := of["literal"].(string)
		form, _ := of["regexp"].(string)
		if literal == release || form != "" && regexp.MustCompile(form).MatchString(release) {
			image, _ := of["containerImage"].(string)
			return strings.ReplaceAll(image, "${KERNEL_FULL_VERSION}", release)
		}
	}
	return ""
}

func entries(config *unstructured.Unstructured, part string) map[string]map[string]any {
	out := map[string]map[string]any{}
	items, _, _ := unstructured.NestedSlice(config.Object, part, "modules")
	for _, item := range items {
		if of, ok := item.(map[string]any); ok {
			out[fmt.Sprintf("%s/%s", of["namespace"], of["name"])] = of
		}
	}
	return out
}

func list(of map[string]map[string]any) []any {
	out := []any{}
	for _, item := range of {
		out = append(out, item)
	}
	return out
}

// ready sets KMM's labels for modules that are loaded. They stay when a node starts again, as KMM's do until it notices.
func (k *KMM) ready(ctx context.Context, node *corev1.Node, loaded map[string]map[string]any) error {
	before := node.DeepCopy()
	for label := range node.Labels {
		if strings.HasPrefix(label, labels) && strings.HasSuffix(label, ".ready") {
			delete(node.Labels, label)
		}
	}
	for key := range loaded {
		namespace, name, _ := strings.Cut(key, "/")
		metav1.SetMetaDataLabel(&node.ObjectMeta, labels+namespace+"."+name+".ready", "")
	}
	return k.Client.Patch(ctx, node, client.MergeFrom(before))
}

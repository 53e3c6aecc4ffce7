// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	sigsyaml "sigs.k8s.io/yaml"
)

// plainRights is every right that the chart gives by default: role → "group/resource [names]" → verbs. A right that is not
// in this table is a fault, so that giving one is a decision of its own.
func plainRights() map[string]map[string]string {
	return map[string]map[string]string{
		"ClusterRole fettle-kubeletplugin": {
			"resource.k8s.io/resourceslices":                     "get list watch create update patch delete",
			"resource.k8s.io/resourceclaims":                     "get",
			"resource.k8s.io/resourceclaims/status":              "update patch",
			"resource.k8s.io/resourceclaims/driver [fettle.dev]": "associated-node:update associated-node:patch",
			"/nodes":                             "get",
			"events.k8s.io/events":               "create patch",
			"fettle.dev/acceleratornodes":        "get list watch create update patch",
			"fettle.dev/acceleratornodes/status": "update patch",
		},
		"ClusterRole fettle-controller": {
			"apiextensions.k8s.io/customresourcedefinitions":                               "create",
			"apiextensions.k8s.io/customresourcedefinitions [acceleratornodes.fettle.dev]": "get patch",
			"resource.k8s.io/deviceclasses":                                                "get list watch create patch",
			"fettle.dev/acceleratornodes":                                                  "get list watch patch delete",
			"/nodes":                                                                       "get list watch",
			"events.k8s.io/events":                                                         "create patch update",
			"admissionregistration.k8s.io/validatingwebhookconfigurations [fettle-config]": "get list watch patch",
		},
		"Role fettle-controller": {
			"coordination.k8s.io/leases":                     "create",
			"coordination.k8s.io/leases [fettle-controller]": "get update patch",
			"coordination.k8s.io/leases [fettle-uninstall]":  "get",
			"/secrets":                         "create",
			"/secrets [fettle-controller-tls]": "get update",
			"/events":                          "create patch",
		},
		"ClusterRole fettle-uninstall": {
			"resource.k8s.io/resourceclaims": "get list",
			"/nodes":                         "get list",
			"/pods":                          "get",
			"resource.k8s.io/deviceclasses":  "get list delete",
			"resource.k8s.io/resourceslices": "list delete",
			"fettle.dev/acceleratornodes":    "get list patch delete",
			"events.k8s.io/events":           "create patch update",
			"apiextensions.k8s.io/customresourcedefinitions [acceleratornodes.fettle.dev]": "get",
		},
		"Role fettle-uninstall": {
			"coordination.k8s.io/leases":                    "create",
			"coordination.k8s.io/leases [fettle-uninstall]": "get update patch delete",
			"/secrets [fettle-controller-tls]":              "delete",
		},
	}
}

func TestRights(t *testing.T) {
	forced := plainRights()
	const definitions = "apiextensions.k8s.io/customresourcedefinitions [acceleratornodes.fettle.dev]"
	forced["ClusterRole fettle-uninstall"]["/pods"] = "get list delete"
	forced["ClusterRole fettle-uninstall"]["/pods/eviction"] = "create"
	forced["ClusterRole fettle-uninstall"][definitions] = "get delete"
	without := plainRights()
	delete(without["ClusterRole fettle-controller"],
		"admissionregistration.k8s.io/validatingwebhookconfigurations [fettle-config]")
	tests := []struct {
		name string
		args []string
		want map[string]map[string]string
	}{
		{"default", nil, plainRights()},
		{"forced uninstall", []string{"--set=uninstall.force=true,uninstall.deleteCRDs=true"}, forced},
		{"no webhook", []string{"--set=admission.webhook=false"}, without},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := rights(t, renderObjects(t, test.args...))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("rights differ (-want +got):\n%s", diff)
			}
		})
	}
}

// rights flattens all roles into the form of plainRights.
func rights(t *testing.T, objects []unstructured.Unstructured) map[string]map[string]string {
	t.Helper()
	result := map[string]map[string]string{}
	for _, object := range objects {
		if object.GetKind() != "ClusterRole" && object.GetKind() != "Role" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			t.Fatal(err)
		}
		table := map[string]string{}
		for _, rule := range role.Rules {
			addRule(t, table, rule)
		}
		result[object.GetKind()+" "+object.GetName()] = table
	}
	return result
}

func addRule(t *testing.T, table map[string]string, rule rbacv1.PolicyRule) {
	t.Helper()
	if len(rule.NonResourceURLs) > 0 || slices.Contains(rule.Verbs, "*") {
		t.Errorf("rule %v: no wildcards and no URLs", rule)
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			key := group + "/" + resource
			if len(rule.ResourceNames) > 0 {
				key += " [" + strings.Join(rule.ResourceNames, " ") + "]"
			}
			if table[key] != "" {
				t.Errorf("%s is in two rules", key)
			}
			table[key] = strings.Join(rule.Verbs, " ")
		}
	}
}

// TestBindings checks that each role is bound to the service account of its own name only, and that each pod runs as one
// that is rendered.
func TestBindings(t *testing.T) {
	for _, object := range renderObjects(t) {
		if object.GetKind() != "ClusterRoleBinding" && object.GetKind() != "RoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			t.Fatal(err)
		}
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: object.GetName(), Namespace: namespace}}
		if diff := cmp.Diff(want, binding.Subjects); diff != "" || binding.RoleRef.Name != object.GetName() {
			t.Errorf("%s %s: role %s, subjects (-want +got):\n%s", object.GetKind(), object.GetName(), binding.RoleRef.Name, diff)
		}
	}
}

// TestCRDNames checks that the rights name exactly the CustomResourceDefinitions that this repository has.
func TestCRDNames(t *testing.T) {
	files, err := filepath.Glob(repository + "/deployments/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in deployments/crds: %v", err)
	}
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd unstructured.Unstructured
		if err := sigsyaml.Unmarshal(data, &crd.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names = append(names, crd.GetName())
	}
	slices.Sort(names)
	key := "apiextensions.k8s.io/customresourcedefinitions [" + strings.Join(names, " ") + "]"
	for _, role := range []string{"ClusterRole fettle-controller", "ClusterRole fettle-uninstall"} {
		if _, ok := rights(t, renderObjects(t))[role][key]; !ok {
			t.Errorf("%s has no rule %s: add the name to fettle.crds in templates/_helpers.tpl", role, key)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	definitions = "apiextensions.k8s.io/customresourcedefinitions " +
		"[acceleratornodes.fettle.dev acceleratorstacks.fettle.dev clusterdevicepresets.fettle.dev clusterfpgabitstreams.fettle.dev " +
		"clustergpukernelcaches.fettle.dev devicepresets.fettle.dev fpgabitstreams.fettle.dev gpukernelcaches.fettle.dev " +
		"partitionpolicies.fettle.dev trustpolicies.fettle.dev]"
	shippedPresets = "fettle.dev/clusterdevicepresets " +
		"[nvidia.fettle.dev amd.fettle.dev intel.fettle.dev xrt.fettle.dev opae.fettle.dev]"
	partClasses = "resource.k8s.io/deviceclasses " +
		"[mig.gpu.fettle.dev partition.gpu.fettle.dev vf.gpu.fettle.dev vfio.gpu.fettle.dev]"
	tokenReviews  = "authentication.k8s.io/tokenreviews"
	accessReviews = "authorization.k8s.io/subjectaccessreviews"
	roles         = "rbac.authorization.k8s.io/roles"
	roleBindings  = "rbac.authorization.k8s.io/rolebindings"
)

// plainRights is every right that the chart gives by default: role → "group/resource [names]" → verbs. A right that is not
// in this table is a fault, so that giving one is a decision of its own.
func plainRights() map[string]map[string]string {
	return map[string]map[string]string{
		"ClusterRole fettle-kubeletplugin": {
			"resource.k8s.io/resourceslices":                     "get list watch create update patch delete",
			"resource.k8s.io/deviceclasses":                      "get list watch",
			"resource.k8s.io/resourceclaims":                     "get",
			"resource.k8s.io/resourceclaims/status":              "update patch",
			"resource.k8s.io/resourceclaims/driver [fettle.dev]": "associated-node:update associated-node:patch",
			"/nodes":                             "get",
			"events.k8s.io/events":               "create patch",
			"fettle.dev/acceleratornodes":        "get list watch create update patch",
			"fettle.dev/acceleratornodes/status": "update patch",
			"fettle.dev/clusterfpgabitstreams":   "get list watch",
			"fettle.dev/fpgabitstreams":          "get list watch",
			"fettle.dev/clustergpukernelcaches":  "get list watch",
			"fettle.dev/gpukernelcaches":         "get list watch",
			"fettle.dev/trustpolicies":           "get list watch",
			"fettle.dev/partitionpolicies":       "get list watch",
			"networking.k8s.io/servicecidrs":     "list",
			"fettle.dev/clusterdevicepresets":    "get list watch",
			"fettle.dev/devicepresets":           "get list watch",
			"/namespaces":                        "get",
			"/pods":                              "get",
			tokenReviews:                         "create",
			accessReviews:                        "create",
		},
		"ClusterRole fettle-controller": {
			"apiextensions.k8s.io/customresourcedefinitions": "create",
			definitions:                                "get patch",
			"resource.k8s.io/deviceclasses":            "get list watch create patch",
			partClasses:                                "delete",
			"resource.k8s.io/resourceclaims":           "list watch",
			"resource.k8s.io/resourceslices":           "list",
			"resource.k8s.io/resourceclaimtemplates":   "list",
			"resource.k8s.io/devicetaintrules":         "list",
			"/pods":                                    "list",
			"/pods/eviction":                           "create",
			"/resourcequotas":                          "list",
			"fettle.dev/acceleratornodes":              "get list watch patch delete",
			"fettle.dev/acceleratornodes/status":       "patch",
			"fettle.dev/clusterfpgabitstreams":         "get list watch",
			"fettle.dev/fpgabitstreams":                "get list watch",
			"fettle.dev/clustergpukernelcaches":        "get list watch",
			"fettle.dev/gpukernelcaches":               "get list watch",
			"fettle.dev/trustpolicies":                 "get list watch",
			"/namespaces":                              "get list watch",
			"fettle.dev/clusterdevicepresets":          "get list watch create",
			shippedPresets:                             "update delete",
			"fettle.dev/devicepresets":                 "get list watch",
			"fettle.dev/clusterdevicepresets/status":   "patch",
			"fettle.dev/devicepresets/status":          "patch",
			"fettle.dev/clusterfpgabitstreams/status":  "patch",
			"fettle.dev/fpgabitstreams/status":         "patch",
			"fettle.dev/clustergpukernelcaches/status": "patch",
			"fettle.dev/gpukernelcaches/status":        "patch",
			"fettle.dev/trustpolicies/status":          "patch",
			"fettle.dev/partitionpolicies":             "get list watch",
			"fettle.dev/partitionpolicies/status":      "patch",
			"scheduling.k8s.io/priorityclasses":        "get list watch create patch delete",
			"apps/daemonsets":                          "list",
			"kmm.sigs.x-k8s.io/modules":                "list",
			"nvidia.com/clusterpolicies":               "list",
			"nvidia.com/nvidiadrivers":                 "list",
			"amd.com/deviceconfigs":                    "list",
			"fettle.dev/acceleratorstacks":             "get list watch",
			"fettle.dev/acceleratorstacks/status":      "patch",
			"networking.k8s.io/servicecidrs":           "get list watch",
			"/nodes":                                   "get list watch patch",
			"events.k8s.io/events":                     "create patch update",
			tokenReviews:                               "create",
			accessReviews:                              "create",
		},
		"Role fettle-controller": {
			"coordination.k8s.io/leases":                     "create",
			"coordination.k8s.io/leases [fettle-controller]": "get update patch",
			"coordination.k8s.io/leases [fettle-uninstall]":  "get",
			"/secrets":    "get",
			"/configmaps": "get",
			"/pods":       "list watch",
			"/events":     "create patch",
			roles:         "get create update delete",
			roleBindings:  "get create update delete",
		},
		"Role fettle-checks": {
			"/pods":                                  "list watch create delete",
			"resource.k8s.io/resourceclaimtemplates": "create",
		},
		"ClusterRole fettle-webhook": {
			"fettle.dev/clusterfpgabitstreams":       "get",
			"fettle.dev/clustergpukernelcaches":      "get",
			"fettle.dev/fpgabitstreams":              "get",
			"fettle.dev/gpukernelcaches":             "get",
			"resource.k8s.io/deviceclasses":          "get list watch",
			"fettle.dev/partitionpolicies":           "list watch",
			"scheduling.k8s.io/priorityclasses":      "list watch",
			"resource.k8s.io/resourceclaims":         "get",
			"resource.k8s.io/resourceclaimtemplates": "get",
			tokenReviews:                             "create",
			accessReviews:                            "create",
		},
		"ClusterRole fettle-metrics-reader": {"/metrics": "get"},
		"ClusterRole fettle-uninstall": {
			"resource.k8s.io/resourceclaims":    "get list",
			"/nodes":                            "get list patch",
			"scheduling.k8s.io/priorityclasses": "list delete",
			"/pods":                             "get",
			"resource.k8s.io/deviceclasses":     "get list delete",
			"resource.k8s.io/resourceslices":    "list delete",
			"fettle.dev/acceleratornodes":       "get list patch delete",
			"events.k8s.io/events":              "create patch update",
			"fettle.dev/clusterfpgabitstreams":  "list",
			"fettle.dev/fpgabitstreams":         "list",
			"fettle.dev/clustergpukernelcaches": "list",
			"fettle.dev/gpukernelcaches":        "list",
			"fettle.dev/clusterdevicepresets":   "list",
			shippedPresets:                      "delete",
			"fettle.dev/devicepresets":          "list",
			definitions:                         "get",
		},
		"Role fettle-uninstall": {
			"coordination.k8s.io/leases":                    "create",
			"coordination.k8s.io/leases [fettle-uninstall]": "get update patch delete",
			"/secrets [fettle-controller-tls]":              "delete",
			roles:                                           "get delete",
			roleBindings:                                    "get delete",
		},
		"ClusterRole fettle-view": {
			"fettle.dev/acceleratorstacks":      "get list watch",
			"fettle.dev/clusterfpgabitstreams":  "get list watch",
			"fettle.dev/fpgabitstreams":         "get list watch",
			"fettle.dev/clustergpukernelcaches": "get list watch",
			"fettle.dev/gpukernelcaches":        "get list watch",
			"fettle.dev/clusterdevicepresets":   "get list watch",
			"fettle.dev/devicepresets":          "get list watch",
			"fettle.dev/partitionpolicies":      "get list watch",
		},
		"ClusterRole fettle-edit": {
			"fettle.dev/fpgabitstreams":  "create update patch delete deletecollection",
			"fettle.dev/gpukernelcaches": "create update patch delete deletecollection",
			"fettle.dev/devicepresets":   "create update patch delete deletecollection",
		},
		"ClusterRole fettle-admin": {"fettle.dev/trustpolicies": "get list watch"},
	}
}

// anywhere is plainRights where objects of every namespace may name what is granted: pull secrets, ConfigMaps or both.
func anywhere(granted ...string) map[string]map[string]string {
	rights := plainRights()
	for _, resource := range granted {
		rights["ClusterRole fettle-controller"][resource] = "get"
	}
	for _, resource := range []string{roles, roleBindings} {
		rights["ClusterRole fettle-controller"][resource] = "get create update delete"
		rights["ClusterRole fettle-uninstall"][resource] = "get delete"
	}
	return rights
}

// TestGrantNamespaces: a namespace that is named for pull secrets or ConfigMaps, and no other, gets the Roles that reading these needs.
func TestGrantNamespaces(t *testing.T) {
	const secrets, configMaps = "bitstreams.pullSecretNamespaces", "presets.configMapNamespaces"
	for _, test := range []struct {
		name, values string
		want         map[string]string // what may be read, by namespace
	}{
		{"none", secrets + "=null," + configMaps + "=null", nil},
		{
			"secrets of two, and of the release's own again", secrets + "={team-b,team-a,team-b," + namespace + "}",
			map[string]string{"team-a": "secrets", "team-b": "secrets"},
		},
		{"secrets of all", secrets + "={team-a,*}", nil},
		{"ConfigMaps", configMaps + "={team-a," + namespace + "}", map[string]string{"team-a": "configmaps"}},
		{
			"both", secrets + "={team-a,team-b}," + configMaps + "={team-b,team-c}",
			map[string]string{"team-a": "secrets", "team-b": "secrets configmaps", "team-c": "configmaps"},
		},
		{"secrets of all, ConfigMaps of one", secrets + "={team-a,*}," + configMaps + "={team-b}", map[string]string{"team-b": "configmaps"}},
		{"ConfigMaps of all, secrets of one", secrets + "={team-a}," + configMaps + "={*}", map[string]string{"team-a": "secrets"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects := renderObjects(t, "--set="+test.values)
			want := append(slices.Sorted(maps.Keys(test.want)), namespace)
			slices.Sort(want)
			got := map[string][]string{}
			for _, object := range objects {
				if kind := object.GetKind(); kind == "Role" || kind == "RoleBinding" {
					got[kind+" "+object.GetName()] = append(got[kind+" "+object.GetName()], object.GetNamespace())
				}
			}
			for _, key := range []string{
				"Role fettle-controller", "RoleBinding fettle-controller", "Role fettle-uninstall", "RoleBinding fettle-uninstall",
			} {
				slices.Sort(got[key])
				if diff := cmp.Diff(want, got[key]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", key, diff)
				}
			}
			if diff := cmp.Diff(test.want, readable(t, objects), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the controller may read (-want +got):\n%s", diff)
			}
		})
	}
}

// readable is what the controller's Roles outside the release's namespace let it read, and checks that they let it grant that.
func readable(t *testing.T, objects []unstructured.Unstructured) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, object := range objects {
		if object.GetKind() != "Role" || object.GetName() != "fettle-controller" || object.GetNamespace() == namespace {
			continue
		}
		table := rights(t, []unstructured.Unstructured{object})["Role fettle-controller"]
		var may []string
		for _, resource := range []string{"secrets", "configmaps"} {
			if table["/"+resource] == "get" {
				may = append(may, resource)
			}
		}
		if len(table) != len(may)+2 || table[roles] != "get create update delete" || table[roleBindings] != table[roles] {
			t.Errorf("in namespace %s the controller may %v", object.GetNamespace(), table)
		}
		out[object.GetNamespace()] = strings.Join(may, " ")
	}
	return out
}

func TestRights(t *testing.T) {
	forced := plainRights()
	forced["ClusterRole fettle-uninstall"]["/pods"] = "get list delete"
	forced["ClusterRole fettle-uninstall"]["/pods/eviction"] = "create"
	forced["ClusterRole fettle-uninstall"][definitions] = "get delete"
	without := plainRights()
	delete(without, "ClusterRole fettle-webhook")
	open := plainRights()
	delete(open, "ClusterRole fettle-metrics-reader")
	for _, table := range open {
		delete(table, tokenReviews)
		delete(table, accessReviews)
	}
	untainted := plainRights() // an uninstall takes off what was put there while the value was another
	untainted["ClusterRole fettle-controller"]["/nodes"] = "get list watch"
	untainted["ClusterRole fettle-webhook"]["resource.k8s.io/deviceclasses"] = "get"
	delete(untainted["ClusterRole fettle-webhook"], "fettle.dev/partitionpolicies")
	delete(untainted["ClusterRole fettle-webhook"], "scheduling.k8s.io/priorityclasses")
	untainted["ClusterRole fettle-controller"]["scheduling.k8s.io/priorityclasses"] = "get list watch"
	delete(untainted["ClusterRole fettle-controller"], "/pods/eviction")
	delete(untainted["ClusterRole fettle-controller"], "apps/daemonsets")
	delete(untainted["ClusterRole fettle-controller"], "kmm.sigs.x-k8s.io/modules")
	silent := map[string]map[string]string{}
	for role, table := range untainted {
		silent[role] = maps.Clone(table)
	}
	for _, resource := range []string{
		"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaimtemplates", "resource.k8s.io/devicetaintrules", "/pods",
		"/resourcequotas",
	} {
		delete(silent["ClusterRole fettle-controller"], resource)
	}
	unchecked := plainRights()
	delete(unchecked, "Role fettle-checks")
	delete(unchecked["ClusterRole fettle-controller"], "fettle.dev/acceleratornodes/status")
	driving := plainRights()
	driving["Role fettle-drivers"] = map[string]string{"/pods": "list watch delete", "kmm.sigs.x-k8s.io/modules": "get create patch delete"}
	for _, resource := range []string{"apps/daemonsets", "apps/deployments", "batch/jobs", "/configmaps", "/services", "/serviceaccounts"} {
		driving["Role fettle-drivers"][resource] = "get list create patch delete"
	}
	driving["ClusterRole fettle-controller"]["kmm.sigs.x-k8s.io/nodemodulesconfigs"] = "list"
	tests := []struct {
		name string
		args []string
		want map[string]map[string]string
	}{
		{"default", nil, plainRights()},
		{"FPGAs are programmed, and their bitstreams fetched ahead", []string{"--set=fpga.programming=true"}, plainRights()},
		{"pods are bound later", []string{"--set=fpga.programming=true,fpga.bindingConditions=true"}, plainRights()},
		{
			"pods are bound later, after their caches",
			[]string{"--set=kernelCaches.enabled=true,kernelCaches.bindingConditions=true"},
			plainRights(),
		},
		{"caches", []string{"--set=kernelCaches.enabled=true"}, plainRights()},
		{"forced uninstall", []string{"--set=uninstall.force=true,uninstall.deleteCRDs=true"}, forced},
		{"pull secrets of all namespaces", []string{"--set=bitstreams.pullSecretNamespaces={*}"}, anywhere("/secrets")},
		{"ConfigMaps of all namespaces", []string{"--set=presets.configMapNamespaces={a,*}"}, anywhere("/configmaps")},
		{"both", []string{"--set=presets.configMapNamespaces={*},bitstreams.pullSecretNamespaces={*}"}, anywhere("/secrets", "/configmaps")},
		{"volumes of caches", []string{"--set=kernelCaches.volumes.enabled=true"}, volumesRights()},
		{"metrics for all", []string{"--set=metrics.authentication=false"}, open},
		{"waiting pods are not explained", []string{"--set=waitingPods.explain=false"}, plainRights()},
		{"waiting pods are neither explained nor preferred", []string{"--set=waitingPods.explain=false,partitions.nodes=false"}, silent},
		{"nodes are not tainted", []string{"--set=partitions.nodes=false"}, untainted},
		{"no checks", []string{"--set=selfTest.enabled=false"}, unchecked},
		{"drivers are run", []string{"--set=drivers.enabled=true"}, driving},
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

// volumesRights is plainRights where caches may be put into volumes.
func volumesRights() map[string]map[string]string {
	rights := plainRights()
	maps.Copy(rights["ClusterRole fettle-controller"], map[string]string{
		"fettle.dev/gpukernelcaches": "get list watch", "fettle.dev/clustergpukernelcaches": "get list watch",
		"/persistentvolumeclaims": "get list watch create patch delete", "batch/jobs": "get list watch create delete",
		"/pods": "list", "/namespaces": "get list watch",
	})
	return rights
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
	if slices.Contains(rule.Verbs, "*") {
		t.Errorf("rule %v: no wildcards", rule)
	}
	for _, url := range rule.NonResourceURLs {
		table[url] = strings.Join(rule.Verbs, " ")
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

// TestBindings checks that each role is bound to the service account of its own name only, but for that of the controller in the namespace
// of checks, and that each pod runs as one that is rendered.
func TestBindings(t *testing.T) {
	for _, object := range renderObjects(t) {
		if object.GetKind() != "ClusterRoleBinding" && object.GetKind() != "RoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			t.Fatal(err)
		}
		account := object.GetName()
		if account == "fettle-checks" || account == "fettle-drivers" {
			account = "fettle-controller"
		}
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: namespace}}
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

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// constraints are the fields of SecurityContextConstraints that the chart sets (security.openshift.io/v1). No module that the repository
// has knows the type.
type constraints struct {
	Users                    []string            `json:"users"`
	AllowPrivilegedContainer bool                `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation bool                `json:"allowPrivilegeEscalation"`
	AllowHostDirVolumePlugin bool                `json:"allowHostDirVolumePlugin"`
	AllowHostIPC             bool                `json:"allowHostIPC"`
	AllowHostNetwork         bool                `json:"allowHostNetwork"`
	AllowHostPID             bool                `json:"allowHostPID"`
	ReadOnlyRootFilesystem   bool                `json:"readOnlyRootFilesystem"`
	AllowedCapabilities      []corev1.Capability `json:"allowedCapabilities"`
	RequiredDropCapabilities []corev1.Capability `json:"requiredDropCapabilities"`
	SeccompProfiles          []string            `json:"seccompProfiles"`
	Volumes                  []string            `json:"volumes"`
}

// restricted is what OpenShift's restricted-v2 grants every service account.
func restricted() constraints {
	return constraints{
		AllowedCapabilities: []corev1.Capability{"NET_BIND_SERVICE"}, SeccompProfiles: []string{"runtime/default"},
		Volumes: []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"},
	}
}

func openshiftVariants() []variant {
	const on, api = "--set=openshift.enabled=true", "--api-versions=security.openshift.io/v1"
	var out []variant
	for _, v := range variants() {
		out = append(out, variant{name: v.name, args: append(slices.Clone(v.args), on, api)})
	}
	return append(out,
		variant{name: "partitions", args: []string{"--set=partitions.pci=true", on, api}},
		variant{name: "nvidia", args: []string{"--set=nvidia.enabled=true", on, api}},
		variant{name: "MPS", args: []string{"--set=nvidia.enabled=true,mps.enabled=true", on, api}})
}

// TestConstraintsAdmitEveryPod: with every set of values, OpenShift admits each pod of the chart under the constraints of its service
// account. NVIDIA's driver for DRA had a daemon's pod that none admitted (kubernetes-sigs/dra-driver-nvidia-gpu#1212).
func TestConstraintsAdmitEveryPod(t *testing.T) {
	for _, v := range openshiftVariants() {
		t.Run(v.name, func(t *testing.T) {
			objects := renderObjects(t, v.args...)
			var all []constraints
			for _, object := range objects {
				if object.GetKind() != "SecurityContextConstraints" {
					continue
				}
				var scc constraints
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &scc); err != nil {
					t.Fatal(err)
				}
				all = append(all, scc)
			}
			pods := 0
			for _, object := range objects {
				if !slices.Contains([]string{"DaemonSet", "Deployment", "Job"}, object.GetKind()) {
					continue
				}
				pods++
				allowed, account := restricted(), podOf(t, object).Spec.ServiceAccountName
				for _, scc := range all {
					if slices.Contains(scc.Users, "system:serviceaccount:"+namespace+":"+account) {
						allowed = scc
					}
				}
				for _, fault := range allowed.refuses(podOf(t, object).Spec) {
					t.Errorf("%s %s, as %s: %s", object.GetKind(), object.GetName(), account, fault)
				}
			}
			if pods < 2 {
				t.Errorf("%d pods were looked at", pods)
			}
		})
	}
}

// refuses says why constraints do not admit a pod.
func (c *constraints) refuses(pod corev1.PodSpec) []string {
	var out []string
	if pod.HostPID && !c.AllowHostPID || pod.HostIPC && !c.AllowHostIPC || pod.HostNetwork && !c.AllowHostNetwork {
		out = append(out, "a namespace of the host")
	}
	for _, volume := range pod.Volumes {
		kind := kindOf(volume)
		if !slices.Contains(c.Volumes, kind) || kind == "hostPath" && !c.AllowHostDirVolumePlugin {
			out = append(out, "volume "+volume.Name+" of kind "+kind)
		}
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, fault := range c.refusesContext(container.SecurityContext) {
			out = append(out, "container "+container.Name+": "+fault)
		}
	}
	return out
}

func (c *constraints) refusesContext(security *corev1.SecurityContext) []string {
	if security == nil {
		return []string{"no security context"}
	}
	var out []string
	if ptr.Deref(security.Privileged, false) && !c.AllowPrivilegedContainer {
		out = append(out, "privileged")
	}
	if ptr.Deref(security.AllowPrivilegeEscalation, !ptr.Deref(security.Privileged, false)) && !c.AllowPrivilegeEscalation {
		out = append(out, "privilege escalation")
	}
	if c.ReadOnlyRootFilesystem && !ptr.Deref(security.ReadOnlyRootFilesystem, false) {
		out = append(out, "a root file system that it may write")
	}
	if security.Capabilities != nil {
		for _, capability := range security.Capabilities.Add {
			if !slices.Contains(c.AllowedCapabilities, capability) {
				out = append(out, fmt.Sprintf("capability %s", capability))
			}
		}
	}
	if profile := security.SeccompProfile; profile != nil && profile.Type == corev1.SeccompProfileTypeUnconfined &&
		!slices.Contains(c.SeccompProfiles, "unconfined") {
		out = append(out, "no seccomp profile")
	}
	return out
}

// kindOf names the source of a volume as constraints do.
func kindOf(volume corev1.Volume) string {
	source, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&volume)
	if err != nil {
		return err.Error()
	}
	for kind := range source {
		if kind != "name" {
			return kind
		}
	}
	return "none"
}

// TestRefuses: the judge of TestConstraintsAdmitEveryPod finds what NVIDIA's daemon failed for, and more.
func TestRefuses(t *testing.T) {
	contained := corev1.Container{Name: "c", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false)}}
	host := corev1.Volume{Name: "shm", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}
	root := corev1.Container{Name: "c", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}
	for name, tc := range map[string]struct {
		pod  corev1.PodSpec
		want int
	}{
		"as it should be": {corev1.PodSpec{Containers: []corev1.Container{contained}}, 0},
		"host PID":        {corev1.PodSpec{HostPID: true, Containers: []corev1.Container{contained}}, 1},
		"host path":       {corev1.PodSpec{Volumes: []corev1.Volume{host}, Containers: []corev1.Container{contained}}, 1},
		"privileged":      {corev1.PodSpec{InitContainers: []corev1.Container{root}}, 1},
		"no context":      {corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, 1},
	} {
		scc := restricted()
		if got := scc.refuses(tc.pod); len(got) != tc.want {
			t.Errorf("%s: %q, want %d reasons", name, got, tc.want)
		}
	}
}

// TestPluginMakesNoWorkload: the plugin may make no pod, and no object of which pods are made. What it runs on a node it runs in its own
// pod, so that no policy of the cluster can refuse it later, and no claim waits for rights that an update of the chart forgot
// (kubernetes-sigs/dra-driver-nvidia-gpu#229).
func TestPluginMakesNoWorkload(t *testing.T) {
	workloads := []string{
		"/pods", "/replicationcontrollers", "apps/deployments", "apps/daemonsets", "apps/statefulsets", "apps/replicasets", "batch/jobs",
		"batch/cronjobs",
	}
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			seen := 0
			for role, table := range rights(t, renderObjects(t, v.args...)) {
				if !strings.HasSuffix(role, " fettle-kubeletplugin") {
					continue
				}
				seen++
				for _, workload := range workloads {
					for verb := range strings.FieldsSeq(table[workload]) {
						if !slices.Contains([]string{"get", "list", "watch"}, verb) {
							t.Errorf("%s may %s %s", role, verb, workload)
						}
					}
				}
			}
			if seen == 0 {
				t.Error("the plugin has no role")
			}
		})
	}
}

// TestSELinuxType: on OpenShift each container that gets a path of the host has the type that may use kubelet's directories and label what
// other containers are to use. NVIDIA's device plugin could not label the directory of its pipes (NVIDIA/k8s-device-plugin#1105).
func TestSELinuxType(t *testing.T) {
	for _, v := range openshiftVariants() {
		t.Run(v.name, func(t *testing.T) {
			seen := 0
			for _, object := range renderObjects(t, v.args...) {
				if !slices.Contains([]string{"DaemonSet", "Deployment", "Job"}, object.GetKind()) {
					continue
				}
				seen += checkSELinux(t, object)
			}
			if seen == 0 {
				t.Error("no container has a path of the host")
			}
		})
	}
}

// checkSELinux returns how many containers of a pod have a path of the host.
func checkSELinux(t *testing.T, object unstructured.Unstructured) (seen int) {
	t.Helper()
	spec := podOf(t, object).Spec
	host := map[string]bool{}
	for _, volume := range spec.Volumes {
		host[volume.Name] = volume.HostPath != nil
	}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return host[m.Name] }) {
			continue
		}
		seen++
		if s := container.SecurityContext; s == nil || s.SELinuxOptions == nil || s.SELinuxOptions.Type != "spc_t" {
			t.Errorf("%s %s: container %s has a path of the host and not type spc_t", object.GetKind(), object.GetName(), container.Name)
		}
	}
	return seen
}

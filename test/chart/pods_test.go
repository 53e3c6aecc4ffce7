// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/pkg/confine"
)

// TestPrivileged renders the kubelet plugin both ways: privileged only where a feature that is on needs it, or where asked.
func TestPrivileged(t *testing.T) {
	const (
		nvidia = "--set=nvidia.enabled=true"
		ssd    = "--set=hostDevices[0].name=ssd,hostDevices[0].directories[0]=/mnt/disks/ssd*"
	)
	needs, err := confine.NeedsOf(confine.HostDirectories)
	if err != nil {
		t.Fatal(err)
	}
	var emptying []corev1.Capability
	for _, name := range needs.Capabilities.Names() {
		emptying = append(emptying, corev1.Capability(name))
	}
	tests := []struct {
		name       string
		args       []string
		privileged bool
		add        []corev1.Capability
		because    string
	}{
		{name: "default"},
		{name: "character devices", args: []string{"--set=hostDevices[0].name=x,hostDevices[0].charDevices[0]=/dev/x*"}},
		{name: "directories", args: []string{ssd}, add: emptying},
		{name: "NVIDIA's library", args: []string{nvidia}, privileged: true, because: "nvidia: "},
		{name: "NVIDIA's library and directories", args: []string{nvidia, ssd}, privileged: true, because: "nvidia: "},
		{name: "DFL's FPGAs", args: []string{"--set=fpga.programming=true"}, privileged: true, because: "fpga: "},
		{name: "XRT's FPGAs", args: []string{"--set=fpga.programming=true,fpga.backends={xrt}"}, privileged: true, because: "fpga-xrt: "},
		{name: "fpga_manager's FPGAs", args: []string{"--set=fpga.programming=true,fpga.backends={fpga_manager}"}},
		{name: "FPGAs as they are", args: []string{"--set=fpga.backends={dfl,xrt,fpga_manager}"}},
		{name: "never", args: []string{"--set=nvidia.enabled=true,kubeletPlugin.privileged=false"}},
		{
			name: "always", args: []string{"--set=kubeletPlugin.privileged=true"},
			privileged: true, because: "kubeletPlugin.privileged is true",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			daemonSet := find(t, renderObjects(t, test.args...), "DaemonSet", "fettle-kubeletplugin")
			got := podOf(t, daemonSet).Spec.Containers[0].SecurityContext
			because := daemonSet.GetAnnotations()["fettle.dev/privileged-because"]
			if !strings.HasPrefix(because, test.because) || (because == "") == test.privileged {
				t.Errorf("fettle.dev/privileged-because is %q, want it to start with %q", because, test.because)
			}
			if diff := cmp.Diff(pluginContext(test.privileged, test.add), got); diff != "" {
				t.Errorf("security context (-want +got):\n%s", diff)
			}
		})
	}
}

// pluginContext is the security context that the plugin's container must have.
func pluginContext(privileged bool, add []corev1.Capability) *corev1.SecurityContext {
	want := &corev1.SecurityContext{
		RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), ReadOnlyRootFilesystem: new(true), Privileged: new(privileged),
	}
	if privileged {
		return want
	}
	want.AllowPrivilegeEscalation = new(false)
	want.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: add}
	want.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	return want
}

// TestPodRules checks what every pod of the chart must keep.
func TestPodRules(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			for _, object := range renderObjects(t, v.args...) {
				if slices.Contains([]string{"DaemonSet", "Deployment", "Job", "Pod"}, object.GetKind()) {
					checkPod(t, object.GetKind()+" "+object.GetName(), podOf(t, object))
				}
			}
		})
	}
}

func checkPod(t *testing.T, name string, pod corev1.PodTemplateSpec) {
	t.Helper()
	spec := pod.Spec
	supervisor := name == "DaemonSet fettle-mps" // NVIDIA's daemons know clients by their process ids
	if spec.HostNetwork || spec.HostPID && !supervisor || spec.HostIPC {
		t.Errorf("%s shares a namespace with the host", name)
	}
	plugin := supervisor || name == "DaemonSet fettle-kubeletplugin" || name == "Pod fettle-selftest"
	if !plugin && (spec.SecurityContext == nil || spec.SecurityContext.RunAsNonRoot == nil || !*spec.SecurityContext.RunAsNonRoot) {
		t.Errorf("%s may run as root", name)
	}
	for _, container := range spec.Containers {
		tag := container.Image[strings.LastIndex(container.Image, "/")+1:]
		if !strings.ContainsAny(tag, ":@") || strings.HasSuffix(tag, ":latest") {
			t.Errorf("%s: image %s has no fixed tag or digest", name, container.Image)
		}
		security := container.SecurityContext
		if security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
			t.Errorf("%s: container %s has a writable root file system", name, container.Name)
		}
		if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s: container %s has no memory limit or no CPU request", name, container.Name)
		}
	}
}

// TestHostMounts checks which host paths the plugin gets, where, and how.
func TestHostMounts(t *testing.T) {
	base := map[string]string{
		"/var/lib/kubelet/plugins/fettle.dev": "/var/lib/kubelet/plugins/fettle.dev rw",
		"/var/lib/kubelet/plugins_registry":   "/var/lib/kubelet/plugins_registry rw",
		"/var/lib/kubelet/pod-resources":      "/var/lib/kubelet/pod-resources ro",
		"/var/run/cdi":                        "/var/run/cdi rw",
		"/var/lib/fettle":                     "/var/lib/fettle rw",
	}
	type mountTest struct {
		name string
		args []string
		want map[string]string
	}
	tests := []mountTest{
		{"default", nil, map[string]string{
			"/host/sys": "/sys ro", "/host/dev": "/dev ro",
			"/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
		}},
		{"machine", []string{"--values=testdata/machine.yaml"}, map[string]string{
			"/host/sys": "/opt/machine/sys ro", "/host/dev": "/opt/machine/dev ro",
			"/host/proc/driver": "/opt/machine/proc/driver ro", "/host/proc/devices": "/opt/machine/proc/devices ro",
			"/host/mnt/disks": "/mnt/disks rw",
		}},
		{"all-on", variants()[1].args, map[string]string{
			"/host/sys": "/sys rw", "/host/dev": "/dev ro", "/host/srv/fpga": "/srv/fpga ro HostToContainer",
			"/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
			"/host/mnt/disks": "/mnt/disks rw HostToContainer", "/host/srv": "/srv rw HostToContainer",
			"/driver-root": "/run/nvidia/driver ro HostToContainer", "/var/lib/fettle": "/var/lib/fettle rw Bidirectional",
			"/host/mnt/models": "/mnt/models ro HostToContainer", "/host/mnt/team": "/mnt/team rw HostToContainer",
			"/run/fettle-mps":                          "/run/fettle-mps rw",
			"/run/nvidia/driver/run/fettle/mps-memory": "/run/nvidia/driver/run/fettle/mps-memory rw Bidirectional",
		}},
		{"directory that is shared twice", []string{"--set=presets.allowedHostPaths[0].path=/opt"}, map[string]string{
			"/host/sys": "/sys ro", "/host/dev": "/dev ro", "/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
			"/var/lib/fettle": "/var/lib/fettle rw Bidirectional",
		}},
		{"below what a container may link elsewhere", []string{
			"--set=presets.allowedHostPaths[0].path=/data,presets.allowedHostPaths[0].writable=true,presets.allowedHostPaths[1].path=/data/b",
			"--set=presets.hostDirectories={/usr,/opt,/data/c,/database}",
		}, map[string]string{
			"/host/sys": "/sys ro", "/host/dev": "/dev ro", "/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
			"/host/data": "/data rw HostToContainer", "/host/database": "/database ro HostToContainer",
			"/var/lib/fettle": "/var/lib/fettle rw Bidirectional",
		}},
		{"unprivileged on demand", []string{"--set=presets.scratch=true,kubeletPlugin.privileged=false"}, map[string]string{
			"/host/sys": "/sys ro", "/host/dev": "/dev ro", "/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
		}},
	}
	proc := map[string]string{
		"/host/dev": "/dev ro", "/host/proc/driver": "/proc/driver ro", "/host/proc/devices": "/proc/devices ro",
	}
	for kind, more := range map[string]map[string]string{
		"dfl":          {"/host/sys": "/sys rw"},
		"fpga_manager": {"/host/sys": "/sys rw", "/host/srv/firmware": "/srv/firmware rw HostToContainer"},
		"xrt":          {"/host/sys": "/sys ro", "/xrt-root": "/ ro HostToContainer"},
	} {
		maps.Copy(more, proc)
		asIs := maps.Clone(proc)
		asIs["/host/sys"] = "/sys ro"
		set := "fpga.firmwareDir=/srv/firmware,fpga.backends={" + kind + "}"
		tests = append(tests, mountTest{kind, []string{"--set=fpga.programming=true," + set}, more})
		tests = append(tests, mountTest{kind + " as it is", []string{"--set=" + set}, asIs})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := maps.Clone(base)
			maps.Copy(want, test.want)
			for _, dir := range []string{"/usr", "/opt"} { // presets.hostDirectories
				want["/host"+dir] = dir + " ro HostToContainer"
				if test.name == "machine" {
					want["/host"+dir] = dir + " ro"
				}
			}
			got := hostMounts(podOf(t, find(t, renderObjects(t, test.args...), "DaemonSet", "fettle-kubeletplugin")))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("host mounts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKubeletIsCovered: no container has the volumes of other pods or kubelet's key, and only one has kubelet's directory.
func TestKubeletIsCovered(t *testing.T) {
	const roots = "--set=nvidia.enabled=true,fpga.programming=true,fpga.backends={xrt}"
	for _, tc := range []struct {
		name, set string
		covered   []string
	}{
		{"default", "", []string{"claims /kubelet/pods"}},
		{"host roots", roots, []string{"claims /kubelet/pods", "plugin /driver-root/var/lib/kubelet", "plugin /xrt-root/var/lib/kubelet"}},
		{"kubelet elsewhere", roots + ",kubeletDir=/var/lib/k0s/kubelet", []string{
			"claims /kubelet/pods", "plugin /driver-root/var/lib/k0s/kubelet", "plugin /xrt-root/var/lib/k0s/kubelet",
		}},
		{"other roots", roots + ",nvidia.driverRoot=/run/nvidia,fpga.xrt.driverRoot=/opt/x", []string{"claims /kubelet/pods"}},
		{"no collection", "--set=kubeletPlugin.collectClaims=false", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var args []string
			if tc.set != "" {
				args = append(args, tc.set)
			}
			spec := podOf(t, find(t, renderObjects(t, args...), "DaemonSet", "fettle-kubeletplugin")).Spec
			var covered []string
			for _, container := range spec.Containers {
				for _, mount := range container.VolumeMounts {
					switch {
					case mount.Name == "nothing" && mount.ReadOnly:
						covered = append(covered, container.Name+" "+mount.MountPath)
					case mount.Name == "kubelet" && container.Name != "claims":
						t.Errorf("container %s has kubelet's directory", container.Name)
					}
				}
				if container.Name == "claims" {
					want := pluginContext(false, nil)
					if diff := cmp.Diff(want, container.SecurityContext); diff != "" {
						t.Errorf("security context of claims (-want +got):\n%s", diff)
					}
				}
			}
			slices.Sort(covered)
			if !slices.Equal(covered, tc.covered) {
				t.Errorf("covered are %q, want %q", covered, tc.covered)
			}
		})
	}
}

// hostMounts maps a path in the first container to "host path, ro or rw, propagation".
func hostMounts(pod corev1.PodTemplateSpec) map[string]string {
	paths := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			paths[volume.Name] = volume.HostPath.Path
		}
	}
	result := map[string]string{}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		path, ok := paths[mount.Name]
		if !ok {
			continue
		}
		path += map[bool]string{true: " ro", false: " rw"}[mount.ReadOnly]
		if mount.MountPropagation != nil && *mount.MountPropagation != corev1.MountPropagationNone {
			path += " " + string(*mount.MountPropagation)
		}
		result[mount.MountPath] = path
	}
	return result
}

// podOf returns the pod of a workload.
func podOf(t *testing.T, object unstructured.Unstructured) corev1.PodTemplateSpec {
	t.Helper()
	fields := []string{"spec", "template"}
	if object.GetKind() == "Pod" {
		fields = nil
	}
	content, found, err := unstructured.NestedMap(object.Object, fields...)
	if err != nil || !found {
		t.Fatalf("%s %s has no pod: %v", object.GetKind(), object.GetName(), err)
	}
	var pod corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestProbesHaveNoPort: what kubelet's probes ask is at no port, so no pod can keep them from an answer.
func TestProbesHaveNoPort(t *testing.T) {
	for _, v := range variants() {
		for _, object := range renderObjects(t, v.args...) {
			if !slices.Contains([]string{"DaemonSet", "Deployment"}, object.GetKind()) {
				continue
			}
			for _, container := range podOf(t, object).Spec.Containers {
				for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
					if probe != nil && (probe.Exec == nil || probe.TimeoutSeconds < 5) {
						t.Errorf("%s: a probe of %s of %s: %+v, want a command and a timeout of at least 5 seconds",
							v.name, container.Name, object.GetName(), probe)
					}
				}
			}
		}
	}
}

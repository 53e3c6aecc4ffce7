// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/mps"
)

// TestMPS: the supervisor of NVIDIA's MPS is there only where it is asked for. It has no token, ends no daemon in an update, has the host's
// files for reading only, but for the claims' directories where pkg/mps has them, and nothing of kubelet.
func TestMPS(t *testing.T) {
	const on = "--set=mps.enabled=true,nvidia.enabled=true"
	for _, object := range renderObjects(t, "--set=nvidia.enabled=true") {
		if strings.HasPrefix(object.GetName(), "fettle-mps") {
			t.Errorf("%s %s is there by default", object.GetKind(), object.GetName())
		}
	}
	for root, set := range map[string]string{"/": on, "/run/nvidia/driver": on + ",nvidia.driverRoot=/run/nvidia/driver"} {
		daemonSet := find(t, renderObjects(t, set), "DaemonSet", "fettle-mps")
		strategy, _ := daemonSet.Object["spec"].(map[string]any)["updateStrategy"].(map[string]any)
		if diff := cmp.Diff(map[string]any{"type": "OnDelete"}, strategy); diff != "" {
			t.Errorf("update strategy (-want +got):\n%s", diff)
		}
		spec := podOf(t, daemonSet).Spec
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
			t.Error("the supervisor has a token")
		}
		if diff := cmp.Diff(pluginContext(true, nil), spec.Containers[0].SecurityContext); diff != "" {
			t.Errorf("security context (-want +got):\n%s", diff)
		}
		known := help(t, "fettle-mps", nil)
		for _, arg := range spec.Containers[0].Args {
			if name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "="); !strings.Contains(known, "-"+name) {
				t.Errorf("fettle-mps does not know %s; it says\n%s", arg, known)
			}
		}
		want := map[string]string{
			"/run/fettle-mps": "/run/fettle-mps rw", "/driver-root": root + " ro",
			path.Join("/driver-root", mps.ClaimsDir): mps.HostDir(root) + " rw",
			// The plugin's mounts there can be written to, and nothing else.
			path.Join("/driver-root", mps.MemoryDir): mps.HostMemoryDir(root) + " ro HostToContainer",
		}
		if root != "/" { // the driver may not have the directory
			want["/driver-root/dev/shm"] = root + "/dev/shm rw"
		}
		got := hostMounts(podOf(t, daemonSet))
		for at, what := range got {
			got[at] = strings.TrimSuffix(what, " None")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("host mounts (-want +got):\n%s", diff)
		}
		checkMPSMounts(t, root, spec.Containers[0].VolumeMounts)
		memory := mps.HostMemoryDir(root)
		plugin := hostMounts(podOf(t, find(t, renderObjects(t, set), "DaemonSet", "fettle-kubeletplugin")))
		if want := memory + " rw Bidirectional"; plugin[memory] != want {
			t.Errorf("the plugin has at %s %q, want %q", memory, plugin[memory], want)
		}
	}
	_, stderr, err := helmTemplate(t, "--set=mps.enabled=true")
	if err == nil || !strings.Contains(stderr, "nvidia.enabled is not") {
		t.Errorf("without nvidia.enabled: %v: %s", err, stderr)
	}
}

func checkMPSMounts(t *testing.T, root string, mounts []corev1.VolumeMount) {
	t.Helper()
	var covered []string
	for _, m := range mounts {
		switch {
		case m.Name == "nothing" && m.ReadOnly:
			covered = append(covered, m.MountPath)
		case m.Name == "driver-root" && (m.RecursiveReadOnly == nil || *m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible):
			t.Error("what is mounted below the driver root can be written")
		}
	}
	var want []string
	if root == "/" {
		want = []string{"/driver-root/tmp", "/driver-root/var"}
	}
	slices.Sort(covered)
	if !slices.Equal(covered, want) {
		t.Errorf("covered are %q, want %q", covered, want)
	}
}

// TestTakenOverMPSDaemonSeesNoSocketOfTheHost: a daemon is root in a root directory that is the host's. It connects to no socket there, and
// reads no volume of a pod.
func TestTakenOverMPSDaemonSeesNoSocketOfTheHost(t *testing.T) {
	for _, kubelet := range []string{"/var/lib/kubelet", "/opt/kubelet"} {
		spec := podOf(t, find(t, renderObjects(t, "--set=nvidia.enabled=true,mps.enabled=true,nvidia.driverRoot=/,kubeletDir="+kubelet),
			"DaemonSet", "fettle-mps")).Spec
		host := map[string]string{}
		for _, v := range spec.Volumes {
			if v.HostPath != nil {
				host[v.Name] = v.HostPath.Path
			}
		}
		for _, wanted := range []string{
			"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/fettle-mps/socket",
			"/var/run/docker.sock",
			"/var/lib/containerd", "/var/lib/rancher", "/tmp/x.sock", "/dev/shm/x", kubelet + "/device-plugins/kubelet.sock", kubelet + "/pods",
		} {
			// The mount of the longest path decides.
			var at corev1.VolumeMount
			for _, m := range spec.Containers[0].VolumeMounts {
				if strings.HasPrefix("/driver-root"+wanted+"/", m.MountPath+"/") && len(m.MountPath) > len(at.MountPath) {
					at = m
				}
			}
			if dir := host[at.Name]; dir != "" {
				t.Errorf("%s is the host's, by the mount of %s at %s", wanted, dir, at.MountPath)
			}
		}
	}
}

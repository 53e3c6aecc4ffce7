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
			path.Join("/driver-root", mps.ClaimsDir): mps.HostDir(root) + " rw", "/driver-root/dev/shm": path.Join(root, "dev/shm") + " rw",
		}
		got := hostMounts(podOf(t, daemonSet))
		for at, what := range got {
			got[at] = strings.TrimSuffix(what, " None")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("host mounts (-want +got):\n%s", diff)
		}
		checkMPSMounts(t, root, spec.Containers[0].VolumeMounts)
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
		want = []string{"/driver-root/run/fettle-mps", "/driver-root/var/lib/kubelet"}
	}
	slices.Sort(covered)
	if !slices.Equal(covered, want) {
		t.Errorf("covered are %q, want %q", covered, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/fettle-dev/fettle/test/check"
)

// TestContainerOpensItsOwn: of two devices behind VFIO, a container opens that which its CDI edits give it. The other's node, made in the
// container by its numbers, does not open: on cgroup v2 a program of the kernel refuses.
func TestContainerOpensItsOwn(t *testing.T) {
	m := onMachine(t)
	if !exists("/sys/fs/cgroup/cgroup.controllers") {
		t.Fatal("the machine has no pure cgroup v2")
	}
	own := m.device(edu)
	other := m.functions(m.device(nvme), 1)[0]
	for _, address := range []string{own, other} {
		m.toVFIO(address)
		m.await("the node of "+address, func() bool { return exists(node(m.group(address))) })
	}
	ownNode, otherNode := node(m.group(own)), node(m.group(other))
	major, minor, err := m.tree.Rdev(ownNode[1:])
	check.Must(t, err)
	otherMajor, otherMinor, err := m.tree.Rdev(otherNode[1:])
	check.Must(t, err)
	out := runContainer(t, specs.LinuxDevice{Path: ownNode, Type: "c", Major: major, Minor: minor}, fmt.Sprintf(
		`(exec 3<>%s) && echo own opens
		[ ! -e %s ] && echo other is absent
		mknod /other c %d %d && (exec 3<>/other) 2>&1`, ownNode, otherNode, otherMajor, otherMinor))
	want := []string{"own opens", "other is absent", "Operation not permitted"}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, line := range want {
		if len(lines) != len(want) || !strings.HasSuffix(lines[i], line) {
			t.Fatalf("the container printed\n%s\nwant %q", out, want)
		}
	}
}

// runContainer runs a shell script in a container that has one device, and returns what it printed.
func runContainer(t *testing.T, device specs.LinuxDevice, script string) string {
	t.Helper()
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"bin", "dev", "proc"} {
		check.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	shell, err := os.ReadFile("/bin/busybox")
	check.Must(t, err)
	check.Must(t, os.WriteFile(filepath.Join(root, "bin/busybox"), shell, 0o755))
	check.Must(t, os.Symlink("busybox", filepath.Join(root, "bin/sh")))
	capabilities := []string{"CAP_MKNOD"}
	config, err := json.Marshal(specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: []string{"/bin/sh", "-c", "export PATH=/bin; mknod() { busybox mknod \"$@\"; }\n" + script}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Root: &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
			CgroupsPath: "/fettle-kerneltest",
			Devices:     []specs.LinuxDevice{device},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"},
				{Allow: true, Type: device.Type, Major: &device.Major, Minor: &device.Minor, Access: "rw"},
				{Allow: true, Type: device.Type, Access: "m"},
			}},
		},
	})
	check.Must(t, err)
	check.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644))
	runc := filepath.Join(os.Getenv("FETTLE_CACHE"), "bin", "runc")
	command := exec.Command(runc, "--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, "fettle-kerneltest")
	out, err := command.CombinedOutput()
	t.Logf("runc: %v: %s", err, out)
	return string(out)
}

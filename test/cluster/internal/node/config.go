// SPDX-License-Identifier: Apache-2.0

// Package node renders a node's configuration and builds its mount namespace.
package node

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/test/cluster/internal/image"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// Names of the components, which are also those of their binaries.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
)

// Socket is containerd's, inside the node.
const Socket = "/run/containerd/containerd.sock"

// Command returns the command line of a component, or false for one this package does not know.
func Command(c plan.Cluster, n plan.Node, component string) ([]string, bool) {
	switch component {
	case Containerd:
		return []string{
			filepath.Join(c.Bin, Containerd), "--config", filepath.Join(n.Dirs.Config, "containerd.toml"),
			"--log-level", "info",
		}, true
	case Kubelet:
		return []string{
			filepath.Join(c.Bin, Kubelet),
			"--config=" + filepath.Join(n.Dirs.Config, "kubelet.yaml"),
			"--kubeconfig=" + c.File("pki", n.Name+".kubeconfig"),
			"--hostname-override=" + n.Name,
			"--node-ip=" + n.Address.String(),
			"--v=2",
		}, true
	}
	return nil, false
}

// WriteFiles makes a node's directories and configuration.
func WriteFiles(c plan.Cluster, n plan.Node) error {
	dirs := []string{n.Dirs.Config, filepath.Join(n.Dirs.Config, "certs.d", c.Registry)}
	for _, b := range n.Dirs.Binds() {
		dirs = append(dirs, b.From)
	}
	for _, d := range append(dirs, n.Dirs.RunSubdirs()...) {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make node directory: %w", err)
		}
	}
	files := map[string]string{
		filepath.Join(n.Dirs.Config, "containerd.toml"):                   ContainerdConfig(c, n),
		filepath.Join(n.Dirs.Config, "kubelet.yaml"):                      KubeletConfig(c, n),
		filepath.Join(n.Dirs.Config, "resolv.conf"):                       "# there is no DNS in this cluster\n",
		filepath.Join(n.Dirs.Config, "certs.d", c.Registry, "hosts.toml"): RegistryHost(c),
		filepath.Join(n.Dirs.CNIConfig, "10-bridge.conflist"):             CNIConfig(n),
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write node configuration: %w", err)
		}
	}
	if err := os.WriteFile(crunPath(n), []byte(crunScript), 0o755); err != nil {
		return fmt.Errorf("write node configuration: %w", err)
	}
	return nil
}

// crunScript runs Debian's crun. The one of Debian 12 refuses an OCI configuration of a version after 1.0, although it reads what is in it:
// the configuration says 1.0 then. And it refuses a machine that has cgroups of both versions: it does not see the second version's.
const crunScript = `#!/bin/sh
before=; for word; do
	[ "$before" != --bundle ] || sed -i 's/"ociVersion":"[^"]*"/"ociVersion":"1.0.2"/' "$word/config.json"
	before=$word
done
exec unshare --mount --propagation slave sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun "$@"' crun "$@"
`

func crunPath(n plan.Node) string { return filepath.Join(n.Dirs.Config, "crun") }

// ContainerdConfig is containerd's configuration, version 3. CDI and NRI are on by default in containerd 2.
func ContainerdConfig(c plan.Cluster, n plan.Node) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  # It would make directories in the host's /opt.
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.blockfile",
]

[grpc]
address = %q

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %q

[plugins.'io.containerd.cri.v1.images'.registry]
config_path = %q

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE nothing may get a lower score than its parent.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = %q
SystemdCgroup = false

# Another reader of the OCI configuration, where Debian's is installed. Pods name it by a RuntimeClass.
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
BinaryName = %q
SystemdCgroup = false
`, Socket, image.Pause, filepath.Join(n.Dirs.Config, "certs.d"), filepath.Join(c.Bin, "runc"), crunPath(n))
}

// KubeletConfig is the kubelet's configuration.
func KubeletConfig(c plan.Cluster, n plan.Node) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %s}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://%s
# A test kills a container more often than kubelet has patience for.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
cgroupDriver: cgroupfs
cgroupRoot: %s
cgroupsPerQOS: true
failCgroupV1: false
failSwapOn: false
# A test machine may be nearly full.
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%}
imageGCHighThresholdPercent: 100
# Else an image that was loaded counts as pulled, and is pulled again, once the same image came from a registry too.
imagePullCredentialsVerificationPolicy: NeverVerify
oomScoreAdj: 0
readOnlyPort: 0
resolvConf: %s
serializeImagePulls: false
# A pod whose devices could not be prepared is tried again this often: kubelet returns no error for it, so it waits for the next
# regular look. The API server may refuse the first attempt, since it lets a node read a claim a moment after it bound the pod.
syncFrequency: 2s
# The default would make a directory in the host's /usr.
volumePluginDir: /var/lib/kubelet/volume-plugins
`, c.File("pki", "ca.crt"), Socket, c.Cgroup(n.Name), filepath.Join(n.Dirs.Config, "resolv.conf"))
}

// CNIConfig connects pods to a bridge of their node, which is their gateway to everything.
func CNIConfig(n plan.Node) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipMasq": false,
    "hairpinMode": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": %q}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`, n.Pods)
}

// RegistryHost lets containerd speak plain HTTP to the test registry.
func RegistryHost(c plan.Cluster) string {
	return fmt.Sprintf("server = \"http://%s\"\n\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
		c.Registry, c.Registry)
}

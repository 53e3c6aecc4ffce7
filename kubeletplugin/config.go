// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/podresources"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// maxSocketPath is the longest path that Go can bind a unix socket to: one byte less than sun_path holds.
const maxSocketPath = 107

// Config combines flags, environment and the admin's file.
type Config struct {
	// Node is the name of this node's Node object.
	Node string
	// Namespace is the namespace of the plugin's own pod.
	Namespace string
	// PodUID lets two versions of the plugin serve one node during a rolling update. It is empty outside a pod.
	PodUID string
	// BootTime is when the kernel started, by its own clock; zero: not known.
	BootTime time.Time
	// HostRoot is the directory that holds the host's sys, dev and proc.
	HostRoot string
	// PluginsDir and RegistryDir are kubelet's directories, with the same path inside and outside the plugin's container.
	PluginsDir, RegistryDir string
	// CDIRoot is the directory of specs that the container runtime reads.
	CDIRoot string
	// StateDir holds the records of claims. It must survive the pod and a reboot.
	StateDir string
	// ProbeAddress serves /livez, /readyz and /healthz, at a unix socket that no other pod reaches. Empty: not.
	ProbeAddress string
	// HTTPAddress serves /readyz and /healthz. HealthPort serves the gRPC health protocol, service "liveness"; 0 is any free port. If one is
	// empty or -1, it is not served.
	HTTPAddress string
	// HTTPListener is served instead of HTTPAddress, if it is not nil. Run closes it.
	HTTPListener net.Listener
	// Metrics says where and to whom metrics are served. Without an address, HTTPAddress serves /metrics to all.
	Metrics    httpserver.Metrics
	HealthPort int
	// KubeletState is the path of kubelet's dra_manager_state, or of the socket of fettle-claims, which is read before a claim is collected.
	// If empty, no claim is collected.
	KubeletState string
	// PodResources is the path of kubelet's socket of pod resources. If empty, the metrics of devices name no pods.
	PodResources string
	// NVMLCommand is the path of the fettle-nvml binary. If empty, NVML is not used.
	NVMLCommand string
	// HookCommand is the path of the fettle-hook binary, which is installed on the host. If empty, presets that need it are refused.
	HookCommand string
	// Registries has the settings for access to registries.
	Registries registry.Config
	// PublicTrustRoot is the Sigstore trusted root, in JSON, for TrustPolicies without one of their own. If empty, these are refused.
	PublicTrustRoot []byte
	// Version is the build's own version, shown in AcceleratorNode.
	Version string

	File nodeconfig.File
}

// Validate checks the merged flags and environment.
func (c *Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("the node's name is missing: set --node-name or NODE_NAME"))
	}
	if c.KubeletState != "" && !filepath.IsAbs(c.KubeletState) {
		errs = append(errs, fmt.Errorf("--kubelet-state must be an absolute path, is %q", c.KubeletState))
	}
	if c.PodResources != "" && !filepath.IsAbs(c.PodResources) {
		errs = append(errs, fmt.Errorf("--pod-resources must be an absolute path, is %q", c.PodResources))
	}
	for name, path := range map[string]string{
		"--host-root": c.HostRoot, "--kubelet-plugins-dir": c.PluginsDir, "--kubelet-registry-dir": c.RegistryDir,
		"--cdi-root": c.CDIRoot, "--state-dir": c.StateDir,
	} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s must be an absolute path, is %q", name, path))
		}
	}
	errs = append(errs, c.checkKubeletApart()...)
	if c.HealthPort < -1 || c.HealthPort > 65535 {
		errs = append(errs, fmt.Errorf("--health-port must be between 0 and 65535, or -1 for none, is %d", c.HealthPort))
	}
	registrar, plugin := c.sockets()
	for name, socket := range map[string]string{"--kubelet-registry-dir": registrar, "--kubelet-plugins-dir": plugin} {
		if len(socket) > maxSocketPath {
			errs = append(errs, fmt.Errorf("socket path %s has %d bytes, at most %d: use a shorter %s", socket, len(socket), maxSocketPath, name))
		}
	}
	return sortedJoin(errs)
}

// sockets returns the paths of this instance's sockets, named as Kubernetes' helper names them.
func (c *Config) sockets() (registrar, plugin string) {
	registrar, plugin = v1alpha1.DriverName+"-reg.sock", "dra.sock"
	if c.PodUID != "" {
		registrar = kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, v1alpha1.DriverName, types.UID(c.PodUID))
		plugin = "dra-" + c.PodUID + ".sock"
	}
	return filepath.Join(c.RegistryDir, registrar), filepath.Join(c.pluginDir(), plugin)
}

// checkKubeletApart refuses to let namespaces have kubelet's directory, wherever it is: it has its key and the volumes of all pods.
func (c *Config) checkKubeletApart() (errs []error) {
	kubelet := filepath.Dir(c.PluginsDir)
	for i, allowed := range c.File.Presets.AllowedHostPaths {
		if kubelet != "/" && mountpath.Within(allowed.Path, kubelet) || mountpath.Within(kubelet, allowed.Path) {
			errs = append(errs, fmt.Errorf("presets.allowedHostPaths[%d]: %s: whoever has %s, kubelet's directory, has the node: "+
				"name a directory of data", i, allowed.Path, kubelet))
		}
	}
	return errs
}

// writable lists trees of the host that containers may write to, as patterns: the volumes of all pods, and directories that claims get.
func (c *Config) writable() []string {
	trees := []string{filepath.Dir(c.PluginsDir)}
	for _, h := range c.File.HostDevices {
		trees = append(trees, h.Directories...)
	}
	return trees
}

// pluginDir returns the directory of the plugin's sockets, its own among kubelet's plugins.
func (c *Config) pluginDir() string { return filepath.Join(c.PluginsDir, v1alpha1.DriverName) }

// hostPath returns the path at which the plugin sees a path of the host.
func (c *Config) hostPath(path string) string { return filepath.Join(c.HostRoot, path) }

// sortedJoin joins errors in an order that does not depend on the order of checks.
func sortedJoin(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// nvmlQuery returns a function that queries NVML in a child process, or nil if NVML is disabled.
func (c *Config) nvmlQuery() func(context.Context) (nvml.Report, error) {
	if c.File.NVML.Disabled || c.NVMLCommand == "" {
		return nil
	}
	return c.nvmlProber().Query
}

// nvmlProber asks NVIDIA's library in a child process.
func (c *Config) nvmlProber() *nvml.Prober {
	file := c.File.NVML
	return nvml.NewProber(nvml.Command{Path: c.NVMLCommand, DriverRoot: file.DriverRoot, Timeout: file.Timeout.Duration})
}

// containerContext returns the SELinux context of files that any container may read and write, or "" on a host without SELinux.
func (c *Config) containerContext() string {
	if _, err := os.Stat(c.hostPath(sysfs.SELinuxEnforce)); err != nil {
		return ""
	}
	return "system_u:object_r:container_file_t:s0"
}

// containers returns a function that asks kubelet which containers have devices, or nil if it is not asked.
func (c *Config) containers() func(context.Context) (map[podresources.Device][]podresources.Container, error) {
	if c.PodResources == "" {
		return nil
	}
	return func(ctx context.Context) (map[podresources.Device][]podresources.Container, error) {
		return podresources.Read(ctx, c.PodResources)
	}
}

// Names that Kubernetes' helper gives to the files with a claim's device metadata (KEP-5304): a directory among the plugin's, with one for
// each claim, and CDI files.
const (
	metadataDir    = "dra-device-metadata"
	metadataPrefix = v1alpha1.DriverName + "_metadata_"
)

// bindTime is how long an instance that starts may have a socket at which it does not listen yet.
const bindTime = time.Minute

// removeDeadSockets removes the sockets of instances that ended without doing so, as after SIGKILL. Nobody listens at them. kubelet would
// try to register each of them whenever it starts.
func (c *Config) removeDeadSockets(now time.Time) error {
	registrar, plugin := c.sockets()
	var errs []error
	for _, pattern := range []string{
		filepath.Join(c.RegistryDir, v1alpha1.DriverName+"*-reg.sock"), filepath.Join(c.pluginDir(), "dra*.sock"),
	} {
		paths, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range paths {
			if path != registrar && path != plugin && dead(path, now) {
				errs = append(errs, disk.RemoveIfThere(disk.OS{}, path))
			}
		}
	}
	return errors.Join(errs...)
}

// dead says whether a path is a socket at which nobody listens, nor is about to.
func dead(path string, now time.Time) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket || now.Sub(info.ModTime()) < bindTime {
		return false
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// removeMetadata removes the device metadata of all claims. The helper removes that of a claim when kubelet unprepares it, which kubelet
// never does for a claim that it forgot, and keeps the directory.
func (c *Config) removeMetadata() error {
	specs, err := filepath.Glob(filepath.Join(c.CDIRoot, metadataPrefix+"*.json"))
	errs := []error{err, os.RemoveAll(filepath.Join(c.pluginDir(), metadataDir))}
	for _, path := range specs {
		errs = append(errs, disk.RemoveIfThere(disk.OS{}, path))
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// ConfigAPIVersion and ConfigKind are what the plugin's configuration file must say it is.
const (
	ConfigAPIVersion = "config.fettle.dev/v1alpha1"
	ConfigKind       = "KubeletPluginConfiguration"
)

// maxSocketPath is the longest path that Go can bind a unix socket to: one byte less than sun_path holds.
const maxSocketPath = 107

// Config is everything the plugin is told from outside: where it runs, and what the admin wrote into its file.
type Config struct {
	// Node is the name of this node's Node object.
	Node string
	// Namespace is where the plugin's own pod runs.
	Namespace string
	// PodUID lets two versions of the plugin serve one node during a rolling update. Empty outside a pod.
	PodUID string
	// HostRoot is the directory that holds the host's sys, dev and proc.
	HostRoot string
	// PluginsDir and RegistryDir are kubelet's, at the same path inside and outside the plugin's container.
	PluginsDir, RegistryDir string
	// CDIRoot is the directory of specs that the container runtime reads.
	CDIRoot string
	// StateDir keeps the records of claims; it must outlive the pod and a reboot.
	StateDir string
	// HTTPAddress serves /metrics, /readyz and /healthz. HealthPort serves the gRPC health protocol, service "liveness".
	HTTPAddress string
	HealthPort  int
	// KubeletState is the path of kubelet's dra_manager_state, read before a claim is collected. Empty: none ever is.
	KubeletState string
	// NVMLCommand is the path of the fettle-nvml binary. Empty: never asked.
	NVMLCommand string
	// HookCommand is the path of the fettle-hook binary, which is installed on the host. Empty: presets that need it are refused.
	HookCommand string
	// Registries is how registries are reached.
	Registries artifact.ClientConfig
	// PublicTrustRoot is the Sigstore trusted root, in JSON, of TrustPolicies that have none of their own. Empty: they are refused.
	PublicTrustRoot []byte
	// Version is the build's own version, shown in AcceleratorNode.
	Version string

	File FileConfig
}

// FileConfig is the plugin's configuration file. Unknown keys are refused.
type FileConfig struct {
	metav1.TypeMeta `json:",inline"`
	// HostDevices are directories and character devices of the host to publish as devices of class host.fettle.dev.
	HostDevices []discover.HostDevice `json:"hostDevices,omitempty"`
	// FPGARegions are what the machine does not tell of its FPGAs: which bitstreams fit, and by which nodes pods use them.
	FPGARegions []discover.FPGARegion `json:"fpgaRegions,omitempty"`
	// NVML is how NVIDIA's management library is asked.
	NVML NVMLConfig `json:"nvml,omitempty"`
	// DiscoveryInterval is how often hardware is looked at where no kernel event said that it changed. Default 30s.
	DiscoveryInterval metav1.Duration `json:"discoveryInterval,omitempty"`
	// ReconcileInterval is how often prepared claims are looked after where nothing was seen to be wrong. Default 1m.
	ReconcileInterval metav1.Duration `json:"reconcileInterval,omitempty"`
	// DeviceMetadata writes KEP-5304 metadata files into containers, at the price of one CDI file a claim and request.
	DeviceMetadata bool `json:"deviceMetadata,omitempty"`
	// Health is how devices are watched, and what counts against them.
	Health HealthConfig `json:"health,omitempty"`
	// Artifacts bounds the node's store of bitstreams and caches.
	Artifacts ArtifactsConfig `json:"artifacts,omitempty"`
	// FPGA is how FPGAs are programmed.
	FPGA FPGAConfig `json:"fpga,omitempty"`
	// Presets is what presets may give of this node.
	Presets PresetsConfig `json:"presets,omitempty"`
	// KernelCaches is whether claims get caches of compiled kernels.
	KernelCaches KernelCachesConfig `json:"kernelCaches,omitempty"`
}

// KernelCachesConfig is whether claims get caches of compiled kernels.
type KernelCachesConfig struct {
	// Enabled gives claims the caches that they name. StateDir must be mounted with Bidirectional propagation.
	Enabled bool `json:"enabled,omitempty"`
	// FetchAhead brings caches that are for the node's GPUs before a claim asks.
	FetchAhead bool `json:"fetchAhead,omitempty"`
	// BindingConditions has the scheduler wait, before it binds a pod with a GPU to this node, until the caches are here that its claim wants
	// to wait for.
	BindingConditions bool `json:"bindingConditions,omitempty"`
	// WatchPods follows the node's pods, so that none has to be read for a claim that does not say how it has its caches.
	WatchPods bool `json:"watchPods,omitempty"`
}

func (c KernelCachesConfig) validate() []error {
	if c.BindingConditions && !c.Enabled {
		return []error{errors.New("kernelCaches.bindingConditions: needs kernelCaches.enabled: true")}
	}
	return nil
}

// bindLate are the kinds of devices whose pods are bound only once the plugin has said that they can be.
func (c *FileConfig) bindLate() []device.Kind {
	var kinds []device.Kind
	if c.FPGA.BindingConditions {
		kinds = append(kinds, device.KindFPGA)
	}
	if c.KernelCaches.BindingConditions {
		kinds = append(kinds, device.KindGPU)
	}
	return kinds
}

// PresetsConfig is what presets may give of a node.
type PresetsConfig struct {
	// HostDirectories are the directories of the host that the plugin's container has below HostRoot, so that files of presets can be
	// looked for there. They count where HostRoot is not /.
	HostDirectories []string `json:"hostDirectories,omitempty"`
	// AllowedHostPaths are the directories of the host below which DevicePresets, those of namespaces, may name files. The plugin's container
	// has them, and StateDir with Bidirectional propagation.
	AllowedHostPaths []preset.AllowedHostPath `json:"allowedHostPaths,omitempty"`
	// Scratch lets presets give claims directories in memory. StateDir must be mounted with Bidirectional propagation.
	Scratch bool `json:"scratch,omitempty"`
}

func (c PresetsConfig) validate() (errs []error) {
	for i, dir := range c.HostDirectories {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			errs = append(errs, fmt.Errorf("presets.hostDirectories[%d]: must be absolute and clean, and not /, is %q", i, dir))
		}
	}
	for i, allowed := range c.AllowedHostPaths {
		if err := allowed.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("presets.allowedHostPaths[%d]: %w", i, err))
		}
	}
	return errs
}

// ArtifactsConfig bounds the node's store of files from registries.
type ArtifactsConfig struct {
	// MaxSize is how much files that nothing needs any more may take together with those that are needed. Default 20Gi.
	MaxSize resource.Quantity `json:"maxSize,omitempty"`
	// KeepFree is how much of the disk is left to others. Default 1Gi.
	KeepFree resource.Quantity `json:"keepFree,omitempty"`
}

func (c ArtifactsConfig) validate() (errs []error) {
	for name, size := range map[string]resource.Quantity{"maxSize": c.MaxSize, "keepFree": c.KeepFree} {
		if size.Sign() < 0 {
			errs = append(errs, fmt.Errorf("artifacts.%s: must not be negative, is %s", name, size.String()))
		}
	}
	return errs
}

func (c ArtifactsConfig) store() artifact.StoreConfig {
	return artifact.StoreConfig{MaxBytes: c.MaxSize.Value(), Margin: c.KeepFree.Value()}
}

// FPGAConfig is how FPGAs are programmed.
type FPGAConfig struct {
	// Programming lets claims program regions. Without it regions are given out as they are, and nothing is ever written to one.
	Programming bool `json:"programming,omitempty"`
	// Backends are the kinds of region that are programmed then: dfl, fpga_manager, xrt. Regions of other kinds are given out as they
	// are. Default dfl.
	Backends []string `json:"backends,omitempty"`
	// XRT is where XRT's own program is found.
	XRT XRTConfig `json:"xrt,omitempty"`
	// SimulatedNodes is a directory of plain files that stand for FPGAs' device nodes, relative to the host's tree, as a simulator
	// serves them. It is refused where that tree is /.
	SimulatedNodes string `json:"simulatedNodes,omitempty"`
	// BindingConditions has the scheduler wait, before it binds a pod to this node, until the plugin has done what the policies of the
	// pod's classes ask in bindAfter.
	BindingConditions bool `json:"bindingConditions,omitempty"`
	// FetchAhead brings the bitstreams that fit the node's regions into its store before a claim asks for them.
	FetchAhead bool `json:"fetchAhead,omitempty"`
}

func (c *FPGAConfig) validate() []error {
	var errs []error
	if c.BindingConditions && !c.Programming {
		errs = append(errs, errors.New("fpga.bindingConditions: needs fpga.programming: true"))
	}
	if c.FetchAhead && !c.Programming {
		errs = append(errs, errors.New("fpga.fetchAhead: needs fpga.programming: true"))
	}
	for i, name := range c.Backends {
		if known := backendNames(); !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("fpga.backends[%d]: %q, want one of %s", i, name, strings.Join(known, ", ")))
		}
		if slices.Contains(c.Backends[:i], name) {
			errs = append(errs, fmt.Errorf("fpga.backends[%d]: %q appears twice", i, name))
		}
	}
	if root := c.XRT.DriverRoot; !filepath.IsAbs(root) || filepath.Clean(root) != root {
		errs = append(errs, fmt.Errorf("fpga.xrt.driverRoot: must be a clean absolute path, is %q", root))
	}
	return errs
}

// XRTConfig is where XRT is installed.
type XRTConfig struct {
	// DriverRoot is the directory of the host's tree with opt/xilinx/xrt in it. XRT's program is run with it as its root directory, so it
	// must hold the state directory, dev and sys by the same paths as the plugin sees them. Default /.
	DriverRoot string `json:"driverRoot,omitempty"`
}

// NVMLConfig bounds the child process that loads NVIDIA's library.
type NVMLConfig struct {
	Disabled bool `json:"disabled,omitempty"`
	// Timeout is how long the child may take before it is killed. Default 20s: a cold driver initialises every GPU.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// DriverRoot is the directory under which the driver's libraries are found. Default /.
	DriverRoot string `json:"driverRoot,omitempty"`
	// HostDriverRoot is the directory of the host that DriverRoot is in the plugin's container. Container runtimes know it by this name, and
	// presets take the driver from there. Default DriverRoot.
	HostDriverRoot string `json:"hostDriverRoot,omitempty"`
}

// hostDriverRoot is where the host has the driver.
func (c *NVMLConfig) hostDriverRoot() string { return cmp.Or(c.HostDriverRoot, c.DriverRoot, "/") }

const (
	defaultDiscoveryInterval = 30 * time.Second
	defaultReconcileInterval = time.Minute
	defaultNVMLTimeout       = 20 * time.Second
	minInterval              = time.Second
)

// LoadFile reads the configuration file. An empty path gives the defaults.
func LoadFile(path string) (FileConfig, error) {
	if path == "" {
		return FileConfig{}.withDefaults(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return FileConfig{}, fmt.Errorf("read the configuration file: %w", err)
	}
	c, err := ParseFile(data)
	if err != nil {
		return FileConfig{}, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return c, nil
}

// ParseFile decodes and checks the content of a configuration file.
func ParseFile(data []byte) (FileConfig, error) {
	var c FileConfig
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return FileConfig{}, err
	}
	if err := singleDocument(data); err != nil {
		return FileConfig{}, err
	}
	if c.APIVersion != ConfigAPIVersion || c.Kind != ConfigKind {
		return FileConfig{}, fmt.Errorf("is apiVersion %q, kind %q: expected %s, %s", c.APIVersion, c.Kind, ConfigAPIVersion, ConfigKind)
	}
	c = c.withDefaults()
	var errs []error
	if c.DiscoveryInterval.Duration < minInterval {
		errs = append(errs, fmt.Errorf("discoveryInterval: %s is too short, at least %s", c.DiscoveryInterval.Duration, minInterval))
	}
	if c.ReconcileInterval.Duration < minInterval {
		errs = append(errs, fmt.Errorf("reconcileInterval: %s is too short, at least %s", c.ReconcileInterval.Duration, minInterval))
	}
	if c.NVML.Timeout.Duration <= 0 {
		errs = append(errs, fmt.Errorf("nvml.timeout: must be positive, is %s", c.NVML.Timeout.Duration))
	}
	if !filepath.IsAbs(c.NVML.DriverRoot) {
		errs = append(errs, fmt.Errorf("nvml.driverRoot: must be an absolute path, is %q", c.NVML.DriverRoot))
	}
	if root := c.NVML.hostDriverRoot(); !filepath.IsAbs(root) || filepath.Clean(root) != root {
		errs = append(errs, fmt.Errorf("nvml.hostDriverRoot: must be a clean absolute path, is %q", root))
	}
	errs = append(errs, c.Health.validate()...)
	errs = append(errs, c.Artifacts.validate()...)
	errs = append(errs, c.FPGA.validate()...)
	errs = append(errs, c.Presets.validate()...)
	errs = append(errs, c.KernelCaches.validate()...)
	if err := discover.ValidateFPGARegions(c.FPGARegions); err != nil {
		errs = append(errs, err)
	}
	for i, h := range c.HostDevices {
		if err := h.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("hostDevices[%d]: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return FileConfig{}, err
	}
	return c, nil
}

// singleDocument refuses what the YAML library would leave unread.
func singleDocument(data []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 0; ; n++ {
		_, err := documents.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n > 0:
			return errors.New("holds more than one document, expected one: remove the line --- and what follows it")
		}
	}
}

func (c FileConfig) withDefaults() FileConfig {
	if c.DiscoveryInterval.Duration == 0 {
		c.DiscoveryInterval.Duration = defaultDiscoveryInterval
	}
	if c.ReconcileInterval.Duration == 0 {
		c.ReconcileInterval.Duration = defaultReconcileInterval
	}
	if c.NVML.Timeout.Duration == 0 {
		c.NVML.Timeout.Duration = defaultNVMLTimeout
	}
	if c.NVML.DriverRoot == "" {
		c.NVML.DriverRoot = "/"
	}
	if c.FPGA.XRT.DriverRoot == "" {
		c.FPGA.XRT.DriverRoot = "/"
	}
	if c.Artifacts.MaxSize.IsZero() {
		c.Artifacts.MaxSize = resource.MustParse("20Gi")
	}
	if c.Artifacts.KeepFree.IsZero() {
		c.Artifacts.KeepFree = resource.MustParse("1Gi")
	}
	c.Health = c.Health.withDefaults()
	return c
}

// Validate checks what only becomes known when flags and environment are merged.
func (c *Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("the node's name is missing: set --node-name or NODE_NAME"))
	}
	if c.KubeletState != "" && !filepath.IsAbs(c.KubeletState) {
		errs = append(errs, fmt.Errorf("--kubelet-state must be an absolute path, is %q", c.KubeletState))
	}
	for name, path := range map[string]string{
		"--host-root": c.HostRoot, "--kubelet-plugins-dir": c.PluginsDir, "--kubelet-registry-dir": c.RegistryDir,
		"--cdi-root": c.CDIRoot, "--state-dir": c.StateDir,
	} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s must be an absolute path, is %q", name, path))
		}
	}
	if c.HealthPort < 1 || c.HealthPort > 65535 {
		errs = append(errs, fmt.Errorf("--health-port must be between 1 and 65535, is %d", c.HealthPort))
	}
	registrar, plugin := c.sockets()
	for name, socket := range map[string]string{"--kubelet-registry-dir": registrar, "--kubelet-plugins-dir": plugin} {
		if len(socket) > maxSocketPath {
			errs = append(errs, fmt.Errorf("socket path %s has %d bytes, at most %d: use a shorter %s", socket, len(socket), maxSocketPath, name))
		}
	}
	return sortedJoin(errs)
}

// sockets are the paths of this instance's sockets, as the helper of Kubernetes names them.
func (c *Config) sockets() (registrar, plugin string) {
	registrar, plugin = v1alpha1.DriverName+"-reg.sock", "dra.sock"
	if c.PodUID != "" {
		registrar = kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, v1alpha1.DriverName, types.UID(c.PodUID))
		plugin = "dra-" + c.PodUID + ".sock"
	}
	return filepath.Join(c.RegistryDir, registrar), filepath.Join(c.pluginDir(), plugin)
}

// pluginDir is the directory of the plugin's sockets, its own among kubelet's plugins.
func (c *Config) pluginDir() string { return filepath.Join(c.PluginsDir, v1alpha1.DriverName) }

// hostPath is where a path of the host is seen from the plugin.
func (c *Config) hostPath(path string) string { return filepath.Join(c.HostRoot, path) }

// sortedJoin makes the text independent of the order of checks.
func sortedJoin(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

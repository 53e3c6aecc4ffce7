// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig is the kubelet plugin's configuration file: its types, defaults and validation. The command line checks such a file
// without the plugin.
package nodeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// APIVersion and Kind are what the plugin's configuration file must say it is.
const (
	APIVersion = "config.fettle.dev/v1alpha1"
	Kind       = "KubeletPluginConfiguration"
)

// File is the plugin's configuration file. Unknown keys are refused.
type File struct {
	metav1.TypeMeta `json:",inline"`
	// HostDevices are directories and character devices of the host to publish as devices of class host.fettle.dev.
	HostDevices []discover.HostDevice `json:"hostDevices,omitempty"`
	// FPGARegions are what the machine does not tell of its FPGAs: which bitstreams fit, and by which nodes pods use them.
	FPGARegions []discover.FPGARegion `json:"fpgaRegions,omitempty"`
	// ForeignDevices are the devices that Fettle leaves to other drivers and device plugins.
	ForeignDevices []foreign.Entry `json:"foreignDevices,omitempty"`
	// NVML is how NVIDIA's management library is asked.
	NVML NVML `json:"nvml,omitempty"`
	// DiscoveryInterval is how often hardware is looked at where no kernel event said that it changed. Default 30s.
	DiscoveryInterval metav1.Duration `json:"discoveryInterval,omitempty"`
	// ReconcileInterval is how often prepared claims are looked after where nothing was seen to be wrong. Default 1m.
	ReconcileInterval metav1.Duration `json:"reconcileInterval,omitempty"`
	// DeviceMetadata writes KEP-5304 metadata files into containers, at the price of one CDI file a claim and request.
	DeviceMetadata bool `json:"deviceMetadata,omitempty"`
	// Health is how devices are watched, and what counts against them.
	Health Health `json:"health,omitempty"`
	// Artifacts bounds the node's store of bitstreams and caches.
	Artifacts Artifacts `json:"artifacts,omitempty"`
	// FPGA is how FPGAs are programmed.
	FPGA FPGA `json:"fpga,omitempty"`
	// Partitions is how GPUs may be divided.
	Partitions Partitions `json:"partitions,omitempty"`
	// Presets is what presets may give of this node.
	Presets Presets `json:"presets,omitempty"`
	// KernelCaches is whether claims get caches of compiled kernels.
	KernelCaches KernelCaches `json:"kernelCaches,omitempty"`
	// Budget bounds what objects of tenants may make the node hold.
	Budget Budget `json:"budget,omitempty"`
}

// BindLate are the kinds of devices whose pods are bound only once the plugin has said that they can be.
func (c *File) BindLate() []device.Kind {
	var kinds []device.Kind
	if c.FPGA.BindingConditions {
		kinds = append(kinds, device.KindFPGA)
	}
	if c.KernelCaches.BindingConditions {
		kinds = append(kinds, device.KindGPU)
	}
	return kinds
}

// Load reads the configuration file. An empty path gives the defaults.
func Load(path string) (File, error) {
	if path == "" {
		return File{}.WithDefaults(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read the configuration file: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return File{}, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return c, nil
}

// Parse decodes and checks the content of a configuration file.
func Parse(data []byte) (File, error) {
	var c File
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return File{}, manifest.WithoutTypes(err)
	}
	if err := singleDocument(data); err != nil {
		return File{}, err
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return File{}, fmt.Errorf("is apiVersion %q, kind %q: expected %s, %s", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	c = c.WithDefaults()
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
	if root := c.NVML.HostRoot(); !filepath.IsAbs(root) || filepath.Clean(root) != root {
		errs = append(errs, fmt.Errorf("nvml.hostDriverRoot: must be a clean absolute path, is %q", root))
	}
	errs = append(errs, c.Health.validate()...)
	errs = append(errs, c.Artifacts.validate()...)
	errs = append(errs, c.FPGA.validate()...)
	errs = append(errs, c.Presets.validate()...)
	errs = append(errs, c.KernelCaches.validate()...)
	errs = append(errs, c.Budget.validate()...)
	if err := discover.ValidateFPGARegions(c.FPGARegions); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.validateHostDevices()...)
	errs = append(errs, foreign.Validate(c.ForeignDevices)...)
	if err := errors.Join(errs...); err != nil {
		return File{}, err
	}
	return c, nil
}

func (c *File) validateHostDevices() (errs []error) {
	for i, h := range c.HostDevices {
		if err := h.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("hostDevices[%d]: %w", i, err))
		}
		for _, dir := range h.Directories {
			if err := c.Presets.checkApart(dir); err != nil {
				errs = append(errs, fmt.Errorf("hostDevices[%d]: %w", i, err))
			}
		}
	}
	return errs
}

// singleDocument refuses what the YAML library would leave unread.
func singleDocument(data []byte) error {
	if len(manifest.Split(data)) > 1 {
		return errors.New("holds more than one document, expected one: remove the line --- and what follows it")
	}
	return nil
}

// WithDefaults returns the configuration with what it leaves out.
func (c File) WithDefaults() File {
	c.DiscoveryInterval.Duration = cmp.Or(c.DiscoveryInterval.Duration, defaultDiscoveryInterval)
	c.ReconcileInterval.Duration = cmp.Or(c.ReconcileInterval.Duration, defaultReconcileInterval)
	c.NVML.Timeout.Duration = cmp.Or(c.NVML.Timeout.Duration, defaultNVMLTimeout)
	c.NVML.DriverRoot = cmp.Or(c.NVML.DriverRoot, "/")
	c.FPGA.XRT.DriverRoot = cmp.Or(c.FPGA.XRT.DriverRoot, "/")
	c.FPGA.MaxFailedProgrammings = cmp.Or(c.FPGA.MaxFailedProgrammings, defaultFailedProgrammings)
	if c.Artifacts.MaxSize.IsZero() {
		c.Artifacts.MaxSize = resource.MustParse("20Gi")
	}
	if c.Artifacts.KeepFree.IsZero() {
		c.Artifacts.KeepFree = resource.MustParse("1Gi")
	}
	c.Health = c.Health.withDefaults()
	c.Budget = c.Budget.withDefaults()
	return c
}

const (
	defaultDiscoveryInterval = 30 * time.Second
	defaultReconcileInterval = time.Minute
	defaultHealthInterval    = 10 * time.Second
	defaultNVMLTimeout       = 20 * time.Second
	minInterval              = time.Second
)

// NVML bounds the child process that loads NVIDIA's library.
type NVML struct {
	Disabled bool `json:"disabled,omitempty"`
	// Timeout is how long the child may take before it is killed. Default 20s: a cold driver initialises every GPU.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// DriverRoot is the directory under which the driver's libraries are found. Default /.
	DriverRoot string `json:"driverRoot,omitempty"`
	// HostDriverRoot is the directory of the host that DriverRoot is in the plugin's container. Container runtimes know it by this name, and
	// presets take the driver from there. Default DriverRoot.
	HostDriverRoot string `json:"hostDriverRoot,omitempty"`
	// PublishUnlinked publishes the GPUs that the library tells of although no link below /sys says that NVIDIA's driver holds them, as where
	// the library was brought in from another system (WSL, a sandbox).
	PublishUnlinked bool `json:"publishUnlinked,omitempty"`
	// RenderNodes gives containers with a whole NVIDIA GPU its render node too, /dev/dri/renderDN, where nvidia-drm is loaded. Programs that
	// render need it, those that compute do not. Switch it off only while no claim holds such a GPU: the restarted containers of one that got
	// the node fail.
	RenderNodes bool `json:"renderNodes,omitempty"`
}

// hostDriverRoot is where the host has the driver.
func (c *NVML) HostRoot() string { return cmp.Or(c.HostDriverRoot, c.DriverRoot, "/") }

// Presets is what presets may give of a node.
type Presets struct {
	// HostDirectories are the directories of the host that the plugin's container has below HostRoot, so that files of presets can be
	// looked for there. They count where HostRoot is not /.
	HostDirectories []string `json:"hostDirectories,omitempty"`
	// AllowedHostPaths are the directories of the host below which DevicePresets, those of namespaces, may name files. The plugin's container
	// has them, and StateDir with Bidirectional propagation.
	AllowedHostPaths []preset.AllowedHostPath `json:"allowedHostPaths,omitempty"`
	// Scratch lets presets give claims directories in memory. StateDir must be mounted with Bidirectional propagation.
	Scratch bool `json:"scratch,omitempty"`
	// ReportMissing says that pods get an Event if they have a device without the preset that it needs.
	ReportMissing bool `json:"reportMissing,omitempty"`
}

// Mounts reports whether the plugin may mount: the chart gives it the right for what needs it.
func (c *File) Mounts() bool {
	return len(c.Presets.AllowedHostPaths) > 0 || c.Presets.Scratch || c.KernelCaches.Enabled
}

// checkApart refuses to lend a directory of which a DevicePreset may name a part, or the whole of, or which is below one that a
// DevicePreset may name: its namespace would have the files of whoever has the directory, and could put a link in its place where it may
// write.
func (c Presets) checkApart(pattern string) error {
	parts := strings.Split(pattern, "/")
	for _, allowed := range c.AllowedHostPaths {
		others := strings.Split(allowed.Path, "/")
		depth := min(len(parts), len(others))
		if meet, err := path.Match(strings.Join(parts[:depth], "/"), strings.Join(others[:depth], "/")); err == nil && meet {
			return fmt.Errorf("directories: %s may be %s of presets.allowedHostPaths, or below it, or above: what a claim has there, other "+
				"namespaces would have too: keep the two apart", pattern, allowed.Path)
		}
	}
	return nil
}

func (c Presets) validate() (errs []error) {
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

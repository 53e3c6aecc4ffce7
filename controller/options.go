// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/controller/stacks"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// minBitstreamInterval limits the load on registries.
const minBitstreamInterval = time.Second

// Options configure the controller.
type Options struct {
	// Namespace is the controller's own: its Leases, Secret and Service.
	Namespace string
	// Metrics says where and to whom metrics are served.
	Metrics httpserver.Metrics
	// ProbeAddress is where /healthz and /readyz are served, ":8081".
	ProbeAddress string
	// ManageCRDs applies and upgrades the CRDs.
	ManageCRDs bool
	// BitstreamInterval is how often tags are resolved: those of bitstreams, and of kernel caches that do not set an interval.
	BitstreamInterval time.Duration
	// ScratchDir is the directory through which bitstreams are read. No other process may use it. Empty is a temporary directory.
	ScratchDir string
	// Registries says how registries are reached.
	Registries registry.Config
	// PublicTrustRoot is the Sigstore trusted root, in JSON, of TrustPolicies that have none of their own. Empty: they are refused.
	PublicTrustRoot []byte
	// AllowedHostPaths are the paths of the nodes that DevicePresets may name.
	AllowedHostPaths []preset.AllowedHostPath
	// Classes are the choices about the DeviceClasses.
	Classes deviceclasses.Options
	// PresetVendors are the vendors whose ClusterDevicePresets are shipped.
	PresetVendors []string
	// ExplainWaitingPods has Events posted to pods that wait for devices, which say why.
	ExplainWaitingPods bool
	// NodePartitions has nodes tainted as PartitionPolicies say.
	NodePartitions bool
	// SharedTaintKeys are the keys of taints that pods with devices tolerate also if somebody else put them on nodes.
	SharedTaintKeys []string
	// NoExecuteTaintKeys are the keys of taints that nodes get with the effect NoExecute.
	NoExecuteTaintKeys []string
	// ReclaimGrace is the longest time that pods have to end which are evicted for pods with a higher priority, in whole seconds.
	ReclaimGrace time.Duration
	// Checks says how AcceleratorStacks check claims.
	Checks stacks.Checks
	// DriverNamespace is where AcceleratorStacks run drivers. Empty: they run none.
	DriverNamespace string
	// KernelCacheVolumes says whether and how caches are put into volumes.
	KernelCacheVolumes volumes.Options
}

// Validate returns every fault of the options, named by the flag that sets it.
func (o Options) Validate() error {
	var faults []error
	if len(validation.IsDNS1123Label(o.Namespace)) > 0 {
		faults = append(faults, fmt.Errorf("--namespace is %q: expected the name of the controller's namespace;"+
			" in a pod, set POD_NAMESPACE from metadata.namespace", o.Namespace))
	}
	if o.BitstreamInterval < minBitstreamInterval {
		faults = append(faults, fmt.Errorf("--bitstream-interval is %s: expected %s or more", o.BitstreamInterval, minBitstreamInterval))
	}
	if o.NodePartitions && (o.ReclaimGrace < time.Second || o.ReclaimGrace%time.Second != 0) {
		faults = append(faults, fmt.Errorf("--reclaim-grace-period is %s: expected whole seconds, and at least one", o.ReclaimGrace))
	}
	if (o.Checks.Namespace == "") != (o.Checks.Image == "") {
		faults = append(faults, errors.New("--check-namespace and --check-image: expected both or neither"))
	}
	if o.DriverNamespace != "" && (o.DriverNamespace == o.Namespace || o.DriverNamespace == o.Checks.Namespace) {
		faults = append(faults, fmt.Errorf("--driver-namespace is %q: expected a namespace that has nothing else", o.DriverNamespace))
	}
	if err := o.KernelCacheVolumes.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--registries with --kernel-cache-volumes-image: %w", err))
	}
	for _, allowed := range o.AllowedHostPaths {
		if err := allowed.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("--allowed-host-path: %w", err))
		}
	}
	faults = append(faults, unknown("--gpu-part-classes", o.Classes.Parts, deviceclasses.PartTypes())...)
	return errors.Join(append(faults, unknown("--preset-vendors", o.PresetVendors, shippedpresets.Vendors())...)...)
}

// unknown returns a fault for each name of a flag that is not a known one.
func unknown(flag string, names, known []string) (faults []error) {
	for _, name := range names {
		if !slices.Contains(known, name) {
			faults = append(faults, fmt.Errorf("%s names %q: expected any of %s", flag, name, strings.Join(known, ", ")))
		}
	}
	return faults
}

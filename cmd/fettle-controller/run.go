// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/reclaims"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// serveFlags are the flags of the sub-command run.
type serveFlags struct {
	common

	options controller.Options
	metrics metricsFlags
	// parts, vendors, registries and trustedRoot are read after the flags are parsed.
	parts, vendors, registries, trustedRoot, checkSecrets string
}

// serve is the sub-command run.
func serve(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	var f serveFlags
	fs := flag.NewFlagSet("fettle-controller run", flag.ContinueOnError)
	f.add(fs, env)
	f.addServers(fs)
	f.addObjects(fs)
	f.addArtifacts(fs)
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	if err := f.read(); err != nil {
		return &usageError{err}
	}
	config, err := f.start()
	if err != nil {
		return err
	}
	if f.options.Metrics, err = f.metrics.server(config); err != nil {
		return err
	}
	return controller.Controller{
		Config: config, Options: f.options, CRDs: crds.Files, Table: controller.Table,
		Registry: metrics.Registry, Gatherer: metrics.Registry, Clock: clock.RealClock{},
	}.Run(ctx)
}

// addServers defines the flags about what is served.
func (f *serveFlags) addServers(fs *flag.FlagSet) {
	o := &f.options
	f.metrics.add(fs)
	addProbes(fs, &o.ProbeAddress)
}

// addObjects defines the flags about the objects that the controller keeps in the cluster.
func (f *serveFlags) addObjects(fs *flag.FlagSet) {
	o := &f.options
	fs.BoolVar(&o.ExplainWaitingPods, "explain-waiting-pods", true, "post an Event to pods that wait for devices, which says why")
	fs.BoolVar(&o.NodePartitions, "node-partitions", true, "taint nodes as PartitionPolicies say")
	fs.Func("shared-taint-key", "`key` of a taint of PartitionPolicies that pods with devices tolerate also where somebody else put it on "+
		"nodes; may be repeated", func(value string) error {
		o.SharedTaintKeys = append(o.SharedTaintKeys, value)
		return nil
	})
	fs.Func("no-execute-taint-key", "`key` of a taint of PartitionPolicies that nodes get with the effect NoExecute; may be repeated",
		func(value string) error {
			o.NoExecuteTaintKeys = append(o.NoExecuteTaintKeys, value)
			return nil
		})
	fs.DurationVar(&o.ReclaimGrace, "reclaim-grace-period", reclaims.DefaultGrace,
		"longest time to end of pods that are evicted for pods with a higher priority")
	fs.BoolVar(&o.ManageCRDs, "manage-crds", true, "apply and upgrade the CRDs")
	fs.BoolVar(&o.Classes.ExtendedResources, "extended-resources", false,
		"let pods ask for fettle.dev/gpu, fettle.dev/fpga and fettle.dev/host without a claim")
	fs.StringVar(&f.parts, "gpu-part-classes", "", "types of parts of GPUs that have a DeviceClass TYPE.gpu.fettle.dev, between commas: "+
		strings.Join(deviceclasses.PartTypes(), ",")+"; those of other types are deleted")
	fs.Func("allowed-host-path",
		"`directory` of the nodes below which DevicePresets may name files, with :rw after it also to write, and with :NAMESPACE,NAMESPACE "+
			"after that only for these; may be repeated",
		func(value string) error {
			o.AllowedHostPaths = append(o.AllowedHostPaths, preset.ParseAllowedHostPath(value))
			return nil
		})
	fs.StringVar(&f.vendors, "preset-vendors", "", "vendors whose ClusterDevicePresets are kept in the cluster, between commas: "+
		strings.Join(shippedpresets.Vendors(), ","))
	fs.StringVar(&o.Checks.Namespace, "check-namespace", "",
		"namespace, labelled for admin access, where AcceleratorStacks check claims; empty checks none")
	fs.StringVar(&o.Checks.Image, "check-image", "",
		"container `image` with /fettle-kubeletplugin in it, which looks at the devices of these claims")
	fs.StringVar(&f.checkSecrets, "check-pull-secrets", "", "pull secrets of that image in that namespace, between commas")
	fs.Func("check-pull-policy", "when that image is pulled: Always, IfNotPresent or Never", func(value string) error {
		o.Checks.PullPolicy = corev1.PullPolicy(value)
		return nil
	})
	fs.StringVar(&o.DriverNamespace, "driver-namespace", "",
		"namespace of its own where AcceleratorStacks with the engine DaemonSet run drivers; empty runs none")
	fs.StringVar(&o.KernelCacheVolumes.Image, "kernel-cache-volumes-image", "",
		"container `image` with /fettle in it, which fills the volumes of GPUKernelCaches; empty makes no volumes")
	fs.Func("kernel-cache-volumes-pull-policy", "when that image is pulled: Always, IfNotPresent or Never", func(value string) error {
		o.KernelCacheVolumes.PullPolicy = corev1.PullPolicy(value)
		return nil
	})
}

// addArtifacts defines the flags about bitstreams and kernel caches in registries.
func (f *serveFlags) addArtifacts(fs *flag.FlagSet) {
	o := &f.options
	fs.DurationVar(&o.BitstreamInterval, "bitstream-interval", 10*time.Minute,
		"how often the tags of FPGABitstreams and kernel caches are resolved")
	fs.StringVar(&o.ScratchDir, "scratch-dir", "",
		"directory through which bitstreams are read, up to 1 GiB, for this process alone; empty makes a temporary one")
	fs.StringVar(&f.registries, "registries", "", "`file` that says how registries are reached: plainHTTP, mirrors, caFile")
	fs.StringVar(&f.trustedRoot, "trust-public-root", "",
		"`file` with the Sigstore trusted root of TrustPolicies that have none of their own")
}

// read completes the options with the files that flags name, and judges them.
func (f *serveFlags) read() (err error) {
	o := &f.options
	o.Namespace = f.namespace
	if f.parts != "" {
		o.Classes.Parts = strings.Split(f.parts, ",")
	}
	if f.vendors != "" {
		o.PresetVendors = strings.Split(f.vendors, ",")
	}
	if f.checkSecrets != "" {
		o.Checks.PullSecrets = strings.Split(f.checkSecrets, ",")
	}
	o.KernelCacheVolumes.Enabled = o.KernelCacheVolumes.Image != ""
	if o.Registries, err = registry.LoadConfig(f.registries); err != nil {
		return fmt.Errorf("--registries: %w", err)
	}
	if o.KernelCacheVolumes.Registries, err = registry.ReadFiles(f.registries); err != nil {
		return fmt.Errorf("--registries: %w", err)
	}
	if o.PublicTrustRoot, err = trust.ReadPublicRoot(f.trustedRoot); err != nil {
		return fmt.Errorf("--trust-public-root: %w", err)
	}
	return o.Validate()
}

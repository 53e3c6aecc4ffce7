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
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// serve is the sub-command run.
func serve(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	var c common
	var o controller.Options
	fs := flag.NewFlagSet("fettle-controller run", flag.ContinueOnError)
	c.add(fs, env)
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8080", "where metrics are served by HTTP; 0 serves none")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served by HTTP")
	fs.BoolVar(&o.Webhook, "webhook", true, "serve the admission webhook and keep its certificate and configuration")
	fs.IntVar(&o.WebhookPort, "webhook-port", 9443, "where the admission webhook is served by HTTPS")
	fs.BoolVar(&o.Classes.ExtendedResources, "extended-resources", false,
		"let pods ask for fettle.dev/gpu, fettle.dev/fpga and fettle.dev/host without a claim")
	fs.BoolVar(&o.ManageCRDs, "manage-crds", true, "apply and upgrade the CRDs")
	fs.DurationVar(&o.BitstreamInterval, "bitstream-interval", 10*time.Minute,
		"how often the tags of FPGABitstreams and kernel caches are looked at")
	fs.Func("allowed-host-path",
		"`directory` of the nodes below which DevicePresets may name files, with :rw at its end also to write; may be repeated",
		func(value string) error {
			dir, writable := strings.CutSuffix(value, ":rw")
			o.AllowedHostPaths = append(o.AllowedHostPaths, preset.AllowedHostPath{Path: dir, Writable: writable})
			return nil
		})
	fs.StringVar(&o.ScratchDir, "scratch-dir", "",
		"directory through which bitstreams are read, up to 1 GiB, for this process alone; empty makes a temporary one")
	vendors := fs.String("preset-vendors", "", "vendors whose ClusterDevicePresets are kept in the cluster, between commas: "+
		strings.Join(controller.PresetVendors(), ","))
	fs.StringVar(&o.KernelCacheVolumes.Image, "kernel-cache-volumes-image", "",
		"container `image` with /fettle in it, which fills the volumes of GPUKernelCaches; empty makes no volumes")
	fs.Func("kernel-cache-volumes-pull-policy", "when that image is pulled: Always, IfNotPresent or Never", func(value string) error {
		o.KernelCacheVolumes.PullPolicy = corev1.PullPolicy(value)
		return nil
	})
	registriesFile := fs.String("registries", "", "file that says how registries are reached: plainHTTP, mirrors, caFile")
	trustedRoot := fs.String("trust-public-root", "", "`file` with the Sigstore trusted root of TrustPolicies that have none of their own")
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	o.Namespace = c.namespace
	if *vendors != "" {
		o.PresetVendors = strings.Split(*vendors, ",")
	}
	var err error
	if o.Registries, err = registry.LoadConfig(*registriesFile); err != nil {
		return &usageError{fmt.Errorf("--registries: %w", err)}
	}
	o.KernelCacheVolumes.Enabled = o.KernelCacheVolumes.Image != ""
	if o.KernelCacheVolumes.Registries, err = registry.ReadFiles(*registriesFile); err != nil {
		return &usageError{fmt.Errorf("--registries: %w", err)}
	}
	if o.PublicTrustRoot, err = trust.ReadPublicRoot(*trustedRoot); err != nil {
		return &usageError{fmt.Errorf("--trust-public-root: %w", err)}
	}
	if err := o.Validate(); err != nil {
		return &usageError{err}
	}
	config, err := c.start()
	if err != nil {
		return err
	}
	return controller.Controller{
		Config: config, Options: o, CRDs: crds.Files, Validate: admission.Validate,
		Registry: metrics.Registry, Clock: clock.RealClock{},
	}.Run(ctx)
}

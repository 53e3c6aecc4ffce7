// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/pkg/admission"
)

// reviewAll is the sub-command webhook: a process of its own, with few rights.
func reviewAll(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	var (
		c              common
		m              metricsFlags
		address, probe string
		pods           bool
	)
	fs := flag.NewFlagSet("fettle-controller webhook", flag.ContinueOnError)
	c.add(fs, env)
	m.add(fs)
	addProbes(fs, &probe)
	fs.StringVar(&address, "bind-address", ":9443", "where the admission webhook is served by HTTPS")
	fs.BoolVar(&pods, "node-partitions", true, "let pods that get devices tolerate the taints of PartitionPolicies")
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	if len(validation.IsDNS1123Label(c.namespace)) > 0 {
		return &usageError{fmt.Errorf("--namespace is %q: expected the name of the webhook's namespace; in a pod, set POD_NAMESPACE from "+
			"metadata.namespace", c.namespace)}
	}
	config, err := c.start()
	if err != nil {
		return err
	}
	scheme, err := reconciler.Scheme()
	if err != nil {
		return err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	server := webhook.NewServer(reader, clock.RealClock{}, c.namespace)
	server.Address, server.ProbeAddress, server.Validate = address, probe, admission.Validate
	if pods {
		if server.Kept, err = webhook.NewKept(config, scheme); err != nil {
			return err
		}
	}
	if err := ctrlmetrics.Registry.Register(server.Metrics()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	metrics, err := m.server(config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return metrics.Run(ctx, ctrlmetrics.Registry) })
	return group.Wait()
}

// addProbes defines the flag about probes.
func addProbes(fs *flag.FlagSet, address *string) {
	fs.StringVar(address, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served by HTTP")
}

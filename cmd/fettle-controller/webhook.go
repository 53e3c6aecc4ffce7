// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
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
		certificate    string
		pods           bool
	)
	fs := flag.NewFlagSet("fettle-controller webhook", flag.ContinueOnError)
	c.add(fs, env)
	m.add(fs)
	addProbes(fs, &probe)
	fs.StringVar(&address, "bind-address", ":9443", "where the admission webhook is served by HTTPS")
	fs.StringVar(&certificate, "certificate-dir", "",
		"`directory` with tls.crt, tls.key and token, the secret at the end of the path; they are read again when they change")
	fs.BoolVar(&pods, "node-partitions", true, "let pods that get devices tolerate the taints of PartitionPolicies")
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	if certificate == "" {
		return &usageError{errors.New("--certificate-dir is empty: expected the directory where the webhook's Secret is mounted")}
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
	server := webhook.NewServer(reader, clock.RealClock{}, os.DirFS(certificate))
	server.Address, server.ProbeAddress, server.Validate = address, probe, admission.Validate
	if pods {
		if server.Kept, err = webhook.NewKept(config, scheme); err != nil {
			return err
		}
	}
	for _, collector := range server.Metrics() {
		if err := ctrlmetrics.Registry.Register(collector); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
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
	fs.StringVar(address, "health-probe-bind-address", ":8081",
		"where /healthz and /readyz are served by HTTP: an address, or unix:@NAME for a socket")
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/uninstall"
	"github.com/fettle-dev/fettle/deployments/crds"
)

// uninstallAll is the sub-command uninstall.
func uninstallAll(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	var c common
	var deleteCRDs bool
	u := uninstall.Uninstall{Clock: clock.RealClock{}}
	fs := flag.NewFlagSet("fettle-controller uninstall", flag.ContinueOnError)
	c.add(fs, env)
	fs.BoolVar(&u.Force, "force", false, "evict the pods that hold devices instead of refusing")
	fs.DurationVar(&u.Timeout, "timeout", 5*time.Minute, "give up after this time")
	fs.BoolVar(&deleteCRDs, "delete-crds", false, "also delete the CRDs")
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	u.Namespace = c.namespace
	if u.Namespace == "" || u.Timeout <= 0 {
		return &usageError{errors.New("expected --namespace (or POD_NAMESPACE) and a --timeout above zero")}
	}
	if deleteCRDs {
		definitions, err := crd.Load(crds.Files)
		if err != nil {
			return err
		}
		u.CRDs = definitions
	}
	config, err := c.start()
	if err != nil {
		return err
	}
	scheme, err := reconciler.Scheme()
	if err != nil {
		return err
	}
	if u.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	recorder, stop, err := uninstall.NewRecorder(ctx, config, scheme)
	if err != nil {
		return err
	}
	defer stop()
	u.Recorder = recorder
	return u.Run(ctx)
}

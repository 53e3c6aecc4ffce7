// SPDX-License-Identifier: Apache-2.0

// Package registry serves a container registry for one cluster, on the host's address in the cluster's network.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// Serve answers on address until the context ends. Blobs are kept in dir; manifests only in memory, so that a restart
// empties the registry.
func Serve(ctx context.Context, address, dir string, logs io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory for blobs: %w", err)
	}
	server := &http.Server{
		Addr: address,
		Handler: registry.New(
			registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)),
			registry.WithReferrersSupport(true),
			registry.Logger(log.New(logs, "", log.LstdFlags)),
		),
		ReadHeaderTimeout: 10 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve registry on %s: %w", address, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// probeTimeout ends a [Probe] that kubelet does not end.
const probeTimeout = 10 * time.Second

// maxProbe is how much of an answer is shown.
const maxProbe = 4 << 10

// split returns the network and the address of what a flag calls an address.
func split(address string) (network, at string) {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		return "unix", path
	}
	return "tcp", address
}

// Probe asks a [Server] at a unix socket for a path. An answer other than 200 is an error.
func Probe(ctx context.Context, address, path string) error {
	network, at := split(address)
	if network != "unix" {
		return fmt.Errorf("probe %s: expected unix:PATH, or unix:@NAME", address)
	}
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://probe"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxProbe))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(path + ": " + strings.TrimSpace(string(answer)))
	}
	return nil
}

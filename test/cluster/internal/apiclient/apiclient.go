// SPDX-License-Identifier: Apache-2.0

// Package apiclient asks a cluster's API server the few questions a start needs answered. It is not a client for
// tests; they have client-go.
package apiclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// A Client is the cluster's administrator.
type Client struct {
	server string
	http   *http.Client
}

// New reads the administrator's certificate of a cluster.
func New(c plan.Cluster) (*Client, error) {
	pair, err := tls.LoadX509KeyPair(c.File("pki", "admin.crt"), c.File("pki", "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("read administrator's certificate: %w", err)
	}
	ca, err := os.ReadFile(c.File("pki", "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read certificate authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("certificate authority is not PEM")
	}
	// No proxy: the address exists on this machine only.
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}
	return &Client{server: c.Server, http: &http.Client{Transport: transport, Timeout: c.Patient(10 * time.Second)}}, nil
}

// Ready tells whether the API server serves.
func (c *Client) Ready(ctx context.Context) error {
	return c.get(ctx, "/readyz", nil)
}

// DefaultServiceAccount tells whether pods can be created in the default namespace.
func (c *Client) DefaultServiceAccount(ctx context.Context) error {
	return c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}

// KubeletServes tells whether the node's kubelet answers requests, and not only did so lately.
func (c *Client) KubeletServes(ctx context.Context, name string) error {
	return c.get(ctx, "/api/v1/nodes/"+name+"/proxy/healthz", nil)
}

// NodeReady tells whether a node is registered and Ready, and since when.
func (c *Client) NodeReady(ctx context.Context, name string) (ready bool, heartbeat time.Time, err error) {
	var node struct {
		Status struct {
			Conditions []struct {
				Type, Status, Message string
				LastHeartbeatTime     time.Time
			}
		}
	}
	if err := c.get(ctx, "/api/v1/nodes/"+name, &node); err != nil {
		return false, time.Time{}, err
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == "Ready" {
			return cond.Status == "True", cond.LastHeartbeatTime, nil
		}
	}
	return false, time.Time{}, nil
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, nil)
	if err != nil {
		return fmt.Errorf("ask API server: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask API server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read answer to %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("API server answers %s to %s", resp.Status, path)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode answer to %s: %w", path, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// addressesTTL is how long the cluster's addresses are believed. They hardly ever change.
const addressesTTL = 10 * time.Minute

// Addresses knows the addresses of the cluster that a node may ask for: the ranges of services, and those of the node and its pods. The
// pods of other nodes are in no object that a node may list; the administrator lists their ranges.
type Addresses struct {
	Kube  kubernetes.Interface
	Node  string
	Clock clock.PassiveClock

	mu    sync.Mutex
	known []netip.Prefix
	until time.Time
}

// Ranges implements [registry.Ranges]. If the API server does not answer, what it said before counts.
func (a *Addresses) Ranges(ctx context.Context) ([]netip.Prefix, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Clock.Now().Before(a.until) {
		return a.known, nil
	}
	found, err := a.ask(ctx)
	switch {
	case err == nil:
		a.known, a.until = found, a.Clock.Now().Add(addressesTTL)
	case a.known == nil:
		return nil, err
	}
	return a.known, nil
}

func (a *Addresses) ask(ctx context.Context) ([]netip.Prefix, error) {
	services, err := a.Kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the ranges of services: %w", err)
	}
	node, err := a.Kube.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", a.Node, err)
	}
	out := registry.ParseRanges(node.Spec.PodCIDRs...)
	for i := range services.Items {
		out = append(out, registry.ParseRanges(services.Items[i].Spec.CIDRs...)...)
	}
	for _, address := range node.Status.Addresses {
		out = append(out, registry.ParseRanges(address.Address)...)
	}
	return out, nil
}

// LogReason writes to the log what a tenant is not told of a registry.
func LogReason(ctx context.Context, ref artifact.Reference, reason error) {
	klog.FromContext(ctx).Info("Cannot read from a registry", "reference", ref.String(), "reason", reason)
}

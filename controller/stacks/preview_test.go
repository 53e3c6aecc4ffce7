// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

// preview returns what the command line says of the stack s, from the same objects.
func (f *fixture) preview(t *testing.T) stack.Preview {
	t.Helper()
	var stacks v1alpha1.AcceleratorStackList
	var accelerators v1alpha1.AcceleratorNodeList
	var nodes corev1.NodeList
	var pods corev1.PodList
	var claims resourceapi.ResourceClaimList
	for _, list := range []client.ObjectList{&stacks, &accelerators, &nodes, &pods, &claims} {
		check.Must(t, f.api.List(t.Context(), list))
	}
	o := stack.Objects{
		Stacks: pointers(stacks.Items), Accelerators: pointers(accelerators.Items), Nodes: pointers(nodes.Items), Pods: pointers(pods.Items),
		Claims: pointers(claims.Items), Namespace: namespace, Drivers: drivers, Now: time.Now(),
	}
	return o.Previews("s")[0]
}

func pointers[T any](items []T) []*T {
	var out []*T
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}

// TestPreviewAgrees: in each round of an upgrade the preview says what the controller then does, and names the pods that it evicts.
func TestPreviewAgrees(t *testing.T) {
	f := newFixture(t).upgrading(t)
	f.restart()
	phases, evicted := map[stack.Phase]bool{}, map[string]bool{}
	const rounds = 40
	for round := range rounds {
		p := f.preview(t)
		s := f.reconcile(t, "s")
		waits, over := map[string]string{}, map[string]bool{}
		for _, w := range s.Status.Waiting {
			waits[w.Node], over[w.Node] = w.Reason, strings.Contains(w.Message, "the change is over")
		}
		// A check that has ended is written down and counts in one round, and the next node may begin. Before, there is no result to be read.
		// The node itself is released in the next round, since the result has changed its object.
		ended := slices.ContainsFunc(p.Nodes, func(n stack.NodePreview) bool {
			return n.Phase == stack.PhaseChecking && (waits[n.Node] == "" || over[n.Node])
		})
		for _, n := range p.Nodes {
			phases[n.Phase] = true
			for _, pod := range n.Pods {
				evicted[n.Node+" "+pod.Name] = true
			}
			got, want := waits[n.Node], n.Reason
			switch {
			case ended && n.Phase == stack.PhaseChecking && !over[n.Node]:
				want = ""
			case ended && n.Phase == stack.PhaseWaiting:
				want = stack.ReasonUpgradeDraining
			}
			if got != want {
				t.Errorf("round %d, node %s: the preview says %s %s, the controller %s", round, n.Node, n.Phase, n.Reason, got)
			}
		}
		f.others(t)
		if f.state(t) == "a [] 2-6.1.0-1 user false; b [] 2-6.1.0-1 user false" {
			break
		}
	}
	if len(phases) != 6 {
		t.Errorf("the phases were %v", phases)
	}
	if got := slices.Sorted(maps.Keys(evicted)); !slices.Equal(got, []string{"a user-a", "b user-b"}) {
		t.Errorf("pods that go: %v", got)
	}
}

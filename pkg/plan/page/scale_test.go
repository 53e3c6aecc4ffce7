// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan/page"
)

// many is a cluster of nodes with eight H100 that are divided, on which random instances are held.
func many(t testing.TB, count int) page.Input {
	t.Helper()
	const seed = 20
	random := rand.New(rand.NewPCG(seed, seed))
	gpus := machine(t, "8xh100-sxm")
	template := publish(t, "node", gpus)
	in := page.Input{Title: fmt.Sprintf("%d nodes", count)}
	for i := range count {
		node := fmt.Sprintf("node-%03d", i)
		in.Nodes = append(in.Nodes, nodes(node)...)
		for _, s := range template {
			s := *s // the devices are the same for all
			s.Spec.NodeName, s.Spec.Pool.Name, s.Name = new(node), node+"/gpu", fmt.Sprintf("%s-%s", node, s.Name)
			in.Slices = append(in.Slices, &s)
		}
		for _, gpu := range gpus {
			for at := 0; at < 7; at += 1 + random.IntN(4) {
				name, part := fmt.Sprintf("claim-%d-%s-%d", i, gpu.Name, at), fmt.Sprintf("%s-mig-1g-10gb-s%d", gpu.Name, at)
				in.Claims = append(in.Claims, claim(node, name, []string{fmt.Sprintf("pod-%d-%d", i, at)}, part))
			}
		}
	}
	return in
}

// TestManyNodes: a page of 500 nodes with 104,000 devices, with claims on every card, is a few megabytes. Here are 100 nodes; each adds
// as much.
func TestManyNodes(t *testing.T) {
	const count, mostPerNode = 100, 10 << 10
	in := many(t, count)
	p := page.Of(in)
	if len(p.Nodes) != count || p.Nodes[0].Open || !p.Brief {
		t.Errorf("%d nodes, unfolded %v, in brief %v, want %d that are folded and in brief", len(p.Nodes), p.Nodes[0].Open, p.Brief, count)
	}
	text := written(t, p)
	t.Logf("%d claims, %d bytes", len(in.Claims), len(text))
	if len(text) > count*mostPerNode {
		t.Errorf("%d bytes, want at most %d", len(text), count*mostPerNode)
	}
}

// TestUnfolded: of many nodes those are unfolded on which a plan gives something, unless these are many.
func TestUnfolded(t *testing.T) {
	for given, want := range map[int]int{0: 0, 3: 3, 9: 0} {
		in := many(t, 10)
		in.New = map[string]bool{}
		for _, c := range in.Claims {
			if node := c.Status.Allocation.Devices.Results[0].Pool; node < fmt.Sprintf("node-%03d/", given) {
				in.New[c.Namespace+"/"+c.Name] = true
			}
		}
		open := 0
		for _, n := range page.Of(in).Nodes {
			if n.Open {
				open++
			}
		}
		if open != want {
			t.Errorf("a plan gives something on %d of 10 nodes, and %d are unfolded, want %d", given, open, want)
		}
	}
}

// TestNodesAlike: nodes that look the same are drawn once.
func TestNodesAlike(t *testing.T) {
	in := many(t, 100)
	in.Claims = []*resourceapi.ResourceClaim{claim("node-042", "only", []string{"pod"}, machine(t, "8xh100-sxm")[3].Name)}
	p := page.Of(in)
	if len(p.Nodes) != 2 || len(p.Nodes[0].Names) != 99 || p.Nodes[1].Names[0] != "node-042" {
		t.Fatalf("%d nodes are drawn, want 2: node-042, and 99 that are alike", len(p.Nodes))
	}
	if text := written(t, p); len(text) > 32<<10 {
		t.Errorf("%d bytes, want at most 32 KiB", len(text))
	}
}

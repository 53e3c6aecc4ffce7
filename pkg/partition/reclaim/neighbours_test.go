// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/reclaim"
	"github.com/fettle-dev/fettle/test/seed"
)

// neighbour is a pod of a random cluster: it holds the device of its node, or none.
type neighbour struct {
	name, node, zone string
	priority         int
	holds, daemon    bool
	port             int
	// app is its label. avoids is that of the pods that may not be in its domain, of which key is the label.
	app, avoids, key string
}

func (n *neighbour) fields() (metadata, spec string) {
	if n.daemon {
		metadata = ", ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d, controller: true}]"
	}
	metadata += fmt.Sprintf(", labels: {app: '%s'}", n.app)
	if n.avoids != "" {
		spec = fmt.Sprintf(`affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {namespaceSelector: {}, labelSelector: {matchLabels: {app: '%s'}}, topologyKey: %s}]}}, `, n.avoids, n.key)
	}
	return metadata, spec + fmt.Sprintf("containers: [{name: c, ports: [{containerPort: 1, hostPort: %d}]}]", n.port)
}

// apart says whether two pods cannot be there at once, as the scheduler has it, written down once more.
func apart(a, b *neighbour) bool {
	near := func(key string) bool { return a.node == b.node || key == "zone" && a.zone == b.zone }
	return a.port != 0 && a.port == b.port && a.node == b.node ||
		a.avoids != "" && a.avoids == b.app && near(a.key) || b.avoids != "" && b.avoids == a.app && near(b.key)
}

func randomNeighbour(r *rand.Rand, name, node, zone string) *neighbour {
	n := &neighbour{
		name: name, node: node, zone: zone, priority: []int{1, 1, 1, 200}[r.IntN(4)], daemon: r.IntN(5) == 0,
		port: []int{0, 0, 80, 81}[r.IntN(4)], app: []string{"a", "b"}[r.IntN(2)],
	}
	if r.IntN(4) == 0 {
		n.avoids, n.key = []string{"a", "b", "w"}[r.IntN(3)], []string{"kubernetes.io/hostname", "zone"}[r.IntN(2)]
	}
	return n
}

// TestNeighbours: pods are evicted if and only if the waiting pod can then run on their node: beside the pods that stay there, those that
// Kubernetes itself preempts aside, and in one zone with those of other nodes.
func TestNeighbours(t *testing.T) {
	r := seed.New(t)
	seen := map[reclaim.Outcome]int{}
	for range 300 {
		w, all := &world{}, []*neighbour{}
		for i := range 3 {
			node, zone := fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", r.IntN(2))
			w.node(node, "gpus", 1).labelled(node, "zone", zone)
			all = append(all, randomNeighbour(r, "h"+node, node, zone))
			all[len(all)-1].holds = true
			for k := range r.IntN(3) {
				all = append(all, randomNeighbour(r, fmt.Sprintf("p%d%s", k, node), node, zone))
			}
		}
		for _, n := range all {
			w.neighbour(n)
		}
		waits := randomNeighbour(r, "waits", "", "")
		waits.app, waits.priority = "w", 100
		if waits.key == "zone" {
			waits.avoids = "" // that is unjudged
		}
		q := w.waits(1, "").question(t)
		metadata, spec := waits.fields()
		q.Pod.Labels, q.Pod.Spec.Containers, q.Pod.Spec.Affinity = podOf(t, metadata, spec)
		q.Policies = []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
		got := answer(t, t.Context(), q)
		best := "no-set"
		for _, node := range q.Snapshot.Nodes {
			if victims := expected(all, waits, node.Name); victims != "" && (best == "no-set" || node.Name < best) {
				best = "possible"
			}
		}
		outcome, victims, _ := strings.Cut(got, " ")
		seen[reclaim.Outcome(outcome)]++
		switch {
		case outcome == "evict":
			node := all[slices.IndexFunc(all, func(n *neighbour) bool { return n.name == strings.Fields(victims)[0] })].node
			if want := expected(all, waits, node); want != victims {
				t.Fatalf("evicts %q on %s, want %q, in\n%s", victims, node, want, w.text.String())
			}
		case best != "no-set":
			t.Fatalf("%s, and evictions would help, in\n%s\nwaits: %s {%s}", got, w.text.String(), metadata, spec)
		}
	}
	t.Log(seen)
	if seen[reclaim.Evict] == 0 || seen[reclaim.NoSet] == 0 {
		t.Errorf("outcomes %v: the clusters are all alike", seen)
	}
}

// expected is what has to be evicted on a node, nothing if that does not help.
func expected(all []*neighbour, waits *neighbour, node string) string {
	here := *waits
	victims := []string{}
	for _, n := range all {
		if n.node == node {
			here.node, here.zone = node, n.zone
		}
	}
	for _, n := range all {
		evictable := n.node == node && n.priority < waits.priority && !n.daemon
		if n.holds && n.node == node {
			if !evictable {
				return ""
			}
			victims = append(victims, n.name)
			continue
		}
		if apart(&here, n) && !evictable { // Kubernetes preempts those that are evictable and hold nothing
			return ""
		}
	}
	return strings.Join(victims, " ")
}

// neighbour adds a pod to the cluster.
func (w *world) neighbour(n *neighbour) {
	metadata, spec := n.fields()
	claims := ""
	if n.holds {
		claims = fmt.Sprintf("resourceClaims: [{name: gpu, resourceClaimName: %s}], ", n.name)
		w.claim(n.name, n.node, "a", n.name)
	}
	fmt.Fprintf(&w.text, `- apiVersion: v1
  kind: Pod
  metadata: {namespace: other, name: %s, uid: %[1]s%s}
  spec: {nodeName: %s, priority: %d, %s%s}
  status: {phase: Running}
`, n.name, metadata, n.node, n.priority, claims, spec)
}

// labelled adds a label to a node.
func (w *world) labelled(node, key, value string) {
	text := strings.Replace(w.text.String(), "name: "+node+", labels: {", "name: "+node+", labels: {"+key+": "+value+", ", 1)
	w.text.Reset()
	w.text.WriteString(text)
}

// podOf reads the fields of a pod.
func podOf(t *testing.T, metadata, spec string) (map[string]string, []corev1.Container, *corev1.Affinity) {
	t.Helper()
	w := &world{}
	fmt.Fprintf(&w.text, "- {apiVersion: v1, kind: Pod, metadata: {name: waits%s}, spec: {%s}}\n", metadata, spec)
	pod := w.question(t).Pod
	return pod.Labels, pod.Spec.Containers, pod.Spec.Affinity
}

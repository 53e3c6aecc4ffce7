// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fleet"
)

// fleetCluster is an API server of MIG nodes, each with a claim that has a device, and of a pod that waits for
// eight instances of a profile.
func fleetCluster(t *testing.T, nodes int, profile string) (*fleet.Server, string) {
	t.Helper()
	f, err := fleet.New("../..", t.TempDir())
	check.Must(t, err)
	pod, claim := fleet.Waiting(profile)
	claims := []resourceapi.ResourceClaim{*claim}
	for i := range nodes {
		claims = append(claims, *fleet.Holder(i))
	}
	s := &fleet.Server{Fleet: f, Nodes: nodes, Objects: map[string]runtime.Object{
		"pods": &corev1.PodList{Items: []corev1.Pod{*pod}}, "resourceclaims": &resourceapi.ResourceClaimList{Items: claims},
		"deviceclasses":          &resourceapi.DeviceClassList{Items: []resourceapi.DeviceClass{*fleet.Class()}},
		"resourceclaimtemplates": &resourceapi.ResourceClaimTemplateList{}, "devicetaintrules": &resourceapi.DeviceTaintRuleList{},
		"resourcequotas": &corev1.ResourceQuotaList{}, "events": &corev1.EventList{},
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, kubeconfig(t, server.URL, "{name: c, context: {cluster: c, namespace: ml}}")
}

// TestListsOfVerbs: every list is asked for page by page, of Kubernetes' own kinds in protobuf, and slices by driver and node where the
// question allows it.
func TestListsOfVerbs(t *testing.T) {
	const nodes = 12 // more slices than are on a page
	driver, node := "spec.driver=fettle.dev", "spec.driver=fettle.dev,spec.nodeName=node-00004"
	for name, test := range map[string]struct {
		args   []string
		fields string
		slices int
		want   string
	}{
		"devices": {[]string{"devices", "--cluster"}, driver, nodes * fleet.SlicesPerNode, "node node-00011\n"},
		"devices of node": {
			[]string{"devices", "--cluster", "--node", "node-00004"}, node, fleet.SlicesPerNode, "held by ml/holder-node-00004\n",
		},
		"explain": {[]string{"explain", "pod", "train"}, "", nodes * fleet.SlicesPerNode, "84 of 96 devices"},
		"plan":    {[]string{"plan", "--from-cluster"}, "", nodes * fleet.SlicesPerNode, "ml/train: 0/12 nodes are available"},
		"partition": {
			[]string{"partition"}, driver, nodes * fleet.SlicesPerNode, "with profiles: [1g.10gb] in its PartitionPolicies, all that claims have",
		},
		"quota": {[]string{"quota"}, "", nodes * fleet.SlicesPerNode, "117Gi"},
		"names of nodes": {
			[]string{"__complete", "devices", "--cluster", "--node", ""}, driver, nodes * fleet.SlicesPerNode, "node-00000\nnode-00001\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, config := fleetCluster(t, nodes, "7g.80gb")
			args := slices.Insert(slices.Clone(test.args), min(2, len(test.args)-1), "--kubeconfig", config)
			var out bytes.Buffer
			run(t.Context(), args, &out, &out)
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("want %q in:\n%s", test.want, out.String())
			}
			read := 0
			for _, asked := range server.Asked() {
				ours := strings.HasPrefix(asked.Path, "/apis/"+v1alpha1.GroupVersion.Group+"/") // has no other form than JSON
				if asked.Protobuf == ours || asked.Limit != pageSize {
					t.Errorf("%s is asked for with a limit of %d, in protobuf: %t", asked.Path, asked.Limit, asked.Protobuf)
				}
				if path.Base(asked.Path) != "resourceslices" {
					continue
				}
				read += asked.Items
				if asked.Fields != test.fields {
					t.Errorf("slices are selected by %q, want %q", asked.Fields, test.fields)
				}
			}
			if read != test.slices {
				t.Errorf("%d slices were read, want %d", read, test.slices)
			}
		})
	}
}

// TestExplainSaysWhatIsLeftOut: of a large cluster some nodes are looked at, and the reader is told how to see all.
func TestExplainSaysWhatIsLeftOut(t *testing.T) {
	server, config := fleetCluster(t, 0, "7g.80gb")
	server.Nodes = lookedAtNodes + 3
	server.Fleet = server.Fleet.Empty()
	const note = "200 of 203 nodes were looked at, those first that only lack devices: see --all-nodes"
	for _, args := range [][]string{nil, {"--all-nodes"}} {
		var out bytes.Buffer
		if code := run(t.Context(), append([]string{"explain", "pod", "train", "--kubeconfig", config}, args...), &out, &out); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if strings.Contains(out.String(), note) != (args == nil) {
			t.Errorf("%q: %s", args, out.String())
		}
	}
}

// TestNodesOfClaims: slices are read of the nodes that claims name, or of all.
func TestNodesOfClaims(t *testing.T) {
	on := func(fields ...corev1.NodeSelectorRequirement) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: fields}}},
		}}}
	}
	anywhere := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	named := func(name string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}
	}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		want   []string
	}{
		"none":           {},
		"not allocated":  {[]*resourceapi.ResourceClaim{{}}, nil},
		"two on one":     {[]*resourceapi.ResourceClaim{on(named("a")), on(named("a"))}, []string{"a"}},
		"two":            {[]*resourceapi.ResourceClaim{on(named("a")), on(named("b"))}, []string{"a", "b"}},
		"one anywhere":   {[]*resourceapi.ResourceClaim{on(named("a")), anywhere}, []string{""}},
		"another choice": {[]*resourceapi.ResourceClaim{on(named("a"), named("b"))}, []string{""}},
	} {
		if got := nodesOfClaims(test.claims); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

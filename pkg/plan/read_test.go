// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/check"
)

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		// want are the objects, KIND NAMESPACE/NAME.
		want, problems []string
		err            string
	}{
		{name: "nothing", in: "# nothing\n---\n"},
		{
			name: "lists of both forms, in JSON and YAML",
			in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}]}
---
apiVersion: v1
kind: PodList
items: [{metadata: {name: p, namespace: a}}, {metadata: {name: q}}]
`,
			want: []string{"Node n", "Pod a/p", "Pod ns/q"},
		},
		{
			name: "kinds that are not needed",
			in: "{apiVersion: v1, kind: Secret, metadata: {name: s}}\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}\n---\n" +
				"{apiVersion: resource.k8s.io/v1alpha3, kind: ResourcePoolStatusRequest, metadata: {name: r}}\n---\n" +
				"{apiVersion: example.com/v1, kind: Node, metadata: {name: foreign}}\n",
			problems: []string{
				"Deployment d: only Pods are planned: add the pods that this Deployment makes",
				"ResourcePoolStatusRequest r: kind ResourcePoolStatusRequest is not needed for a plan: left out",
			},
		},
		{
			name: "versions that are the same and one that is not",
			in: "{apiVersion: resource.k8s.io/v1beta2, kind: DeviceClass, metadata: {name: a}}\n---\n" +
				"{apiVersion: resource.k8s.io/v1alpha3, kind: DeviceTaintRule, metadata: {name: b}}\n---\n" +
				"{apiVersion: resource.k8s.io/v1beta1, kind: ResourceClaim, metadata: {name: c}}\n",
			want: []string{"DeviceClass a", "DeviceTaintRule b"},
			problems: []string{"ResourceClaim ns/c: apiVersion resource.k8s.io/v1beta1 is not read: want resource.k8s.io/v1; convert the object " +
				"or take it from an API server that serves it"},
		},
		{
			name:     "unknown field",
			in:       "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: a}, spec: {selector: []}}",
			want:     []string{"DeviceClass a"},
			problems: []string{`DeviceClass a: unknown field "spec.selector": the field is left out`},
		},
		{
			name: "header",
			in: "{apiVersion: plan.fettle.dev/v1, kind: Snapshot, kubernetesVersion: '1.36', featureGates: {A: true}, " +
				"missing: [{object: Snapshot pods, message: forbidden}]}",
			want: []string{"version 1.36", "gate A=true"}, problems: []string{"Snapshot pods: forbidden"},
		},
		{
			name: "two headers", err: "f:3: two documents of kind Snapshot: want at most one",
			in: strings.Repeat("---\n{apiVersion: plan.fettle.dev/v1, kind: Snapshot, kubernetesVersion: '1.36'}\n", 2)[4:],
		},
		{name: "no object", in: "a: 1", err: "f:1: want a Kubernetes object with apiVersion and kind"},
		{name: "no YAML", in: "\na: [", err: "f:2: "},
		{name: "no name", in: "{apiVersion: v1, kind: Pod, metadata: {generateName: p-}}", err: "f:1: Pod without metadata.name"},
		{
			name: "wrong type", in: "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: {}}}",
			err: "f:1: Pod ns/p: spec.containers: got an object, want a list",
		},
		{
			name: "a word of YAML", in: "{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {gpu: y}}}",
			err: "f:1: Pod ns/p: metadata.labels: got true or false, want text: YAML takes y, n,",
		},
		{
			name: "a request without a name",
			in: "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, " +
				"spec: {devices: {requests: [{exactly: {deviceClassName: gpu}}]}}}",
			err: "f:1: ResourceClaim ns/c: spec.devices.requests[0].name: Required value",
		},
		{
			name: "a request of nothing", err: "f:1: ResourceClaimTemplate ns/c: spec.spec.devices.requests[0]: Required value: exactly one of",
			in: "{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: c}, " +
				"spec: {spec: {devices: {requests: [{name: r}]}}}}",
		},
		{
			name: "twice", err: "f:3: Node n1 is at f:1 already: give it once",
			in: "{apiVersion: v1, kind: Node, metadata: {name: n1}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: n1}}",
		},
		{
			name: "broken item", err: "f:1: items[0]: want a Kubernetes object",
			in: "{apiVersion: v1, kind: List, items: [{}]}",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, problems, err := plan.Read([]plan.File{{Name: "f", Data: []byte(tc.in)}}, "ns")
			if tc.err != "" {
				check.WantErr(t, err, nil, tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, objectsOf(s)); diff != "" {
				t.Errorf("wrong objects (-want +got):\n%s", diff)
			}
			var got []string
			for _, p := range problems {
				got = append(got, p.Object+": "+p.Message)
			}
			if diff := cmp.Diff(tc.problems, got); diff != "" {
				t.Errorf("wrong problems (-want +got):\n%s", diff)
			}
		})
	}
}

// objectsOf names what a snapshot has.
func objectsOf(s plan.Snapshot) (out []string) {
	if s.Version != "" {
		out = append(out, "version "+s.Version)
	}
	for name, on := range s.Gates {
		out = append(out, map[bool]string{true: "gate " + name + "=true", false: "gate " + name + "=false"}[on])
	}
	for _, o := range s.Nodes {
		out = append(out, "Node "+o.Name)
	}
	for _, o := range s.Pods {
		out = append(out, "Pod "+o.Namespace+"/"+o.Name)
	}
	for _, o := range s.Classes {
		out = append(out, "DeviceClass "+o.Name)
	}
	for _, o := range s.Claims {
		out = append(out, "ResourceClaim "+o.Namespace+"/"+o.Name)
	}
	for _, o := range s.TaintRules {
		out = append(out, "DeviceTaintRule "+o.Name)
	}
	return out
}

// FuzzRead: no input makes reading, defaulting and planning panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {resourceClaims: [{name: c, resourceClaimTemplateName: t}]}}"))
	f.Add([]byte("{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: t}, " +
		"spec: {spec: {devices: {requests: [{}]}}}}"))
	f.Add([]byte("{apiVersion: v1, kind: List, items: [null, {}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _, err := plan.Read([]plan.File{{Name: "f", Data: data}}, "")
		if err != nil {
			return
		}
		c, _, err := plan.NewCluster(s)
		if err != nil {
			return
		}
		if _, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{}); err != nil {
			t.Fatal(err)
		}
	})
}

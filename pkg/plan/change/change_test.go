// SPDX-License-Identifier: Apache-2.0

package change_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/change"
	"github.com/fettle-dev/fettle/test/check"
)

// before has two pods with devices on n1, one of a DaemonSet, and one that waits.
const before = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 4}}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: s1}
  spec: {driver: d.io, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: a}, {name: b}]}
- {apiVersion: v1, kind: Pod, metadata: {name: waits}, spec: {containers: [{name: c}]}}
- apiVersion: v1
  kind: Pod
  metadata: {name: runs, uid: u1, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: r, controller: true}]}
  spec:
    nodeName: n1
    resourceClaims: [{name: own, resourceClaimTemplateName: t}, {name: shared, resourceClaimName: shared}]
    containers: [{name: c}]
  status: {phase: Running, resourceClaimStatuses: [{name: own, resourceClaimName: runs-own}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: bare, uid: u2}
  spec: {nodeName: n1, resourceClaims: [{name: c, resourceClaimName: shared}], containers: [{name: c}]}
  status: {phase: Running}
- apiVersion: v1
  kind: Pod
  metadata: {name: agent, uid: u3, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d, controller: true}]}
  spec: {nodeName: n1, containers: [{name: c}]}
- {apiVersion: v1, kind: Pod, metadata: {name: ended, uid: u4}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Failed}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: runs-own, ownerReferences: [{apiVersion: v1, kind: Pod, name: runs, uid: u1, controller: true}]}
  status:
    allocation: {devices: {results: [{request: r, driver: d.io, pool: n1, device: a}]}}
    reservedFor: [{resource: pods, name: runs, uid: u1}]
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: shared}
  status:
    allocation: {devices: {results: [{request: r, driver: d.io, pool: n1, device: b}]}}
    reservedFor: [{resource: pods, name: runs, uid: u1}, {resource: pods, name: bare, uid: u2}]
`

// state says of each pod where it is and of each claim who has it.
func state(s plan.Snapshot) string {
	var out []string
	for _, n := range s.Nodes {
		if n.Spec.Unschedulable {
			out = append(out, "node "+n.Name+" takes no pods")
		}
	}
	for _, p := range s.Pods {
		out = append(out, strings.TrimSpace("pod "+p.Name+" on "+p.Spec.NodeName+" "+string(p.Status.Phase)))
	}
	for _, c := range s.Claims {
		var users []string
		for _, r := range c.Status.ReservedFor {
			users = append(users, r.Name)
		}
		text := "claim " + c.Name + " of " + strings.Join(users, ",")
		if c.Status.Allocation == nil {
			text += " has nothing"
		}
		out = append(out, text)
	}
	for _, slice := range s.Slices {
		out = append(out, "slice "+slice.Name)
	}
	return strings.Join(out, "\n")
}

func read(t *testing.T, text string) plan.Snapshot {
	t.Helper()
	s, problems, err := plan.Read([]plan.File{{Name: "f", Data: []byte(text)}}, "")
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	return s
}

func TestChanges(t *testing.T) {
	const drained = `pod waits on
pod agent on n1
pod ended on n1 Failed
pod runs on
pod bare on
claim shared of  has nothing`
	const noController = "Pod default/bare: has no controller: a drain deletes it for good; the plan goes on as if it was made again"
	for _, tc := range []struct {
		name               string
		change             func(s plan.Snapshot) (plan.Snapshot, []plan.Problem, error)
		want, problem, err string
	}{
		{
			name:   "drain",
			change: func(s plan.Snapshot) (plan.Snapshot, []plan.Problem, error) { return change.Drain(s, "n1") },
			want:   "node n1 takes no pods\n" + drained + "\nslice s1", problem: noController,
		},
		{
			name:   "drain a node that does not exist",
			change: func(s plan.Snapshot) (plan.Snapshot, []plan.Problem, error) { return change.Drain(s, "n9") },
			err:    "drain node n9: there is no such node in the snapshot",
		},
		{name: "remove a node", change: removed("node/n1"), want: drained, problem: noController},
		{
			name: "remove a pod with its claims", change: removed("default/runs"),
			want: "pod waits on\npod bare on n1 Running\npod agent on n1\npod ended on n1 Failed\nclaim shared of bare\nslice s1",
		},
		{
			name: "remove a pod that shares a claim", change: removed("Pod/bare"),
			want: "pod waits on\npod runs on n1 Running\npod agent on n1\npod ended on n1 Failed\nclaim runs-own of runs\n" +
				"claim shared of runs\nslice s1",
		},
		{
			name: "remove a claim and a slice", change: removed("resourceclaims/default/shared", "slice/s1"),
			want: "pod waits on\npod runs on n1 Running\npod bare on n1 Running\npod agent on n1\npod ended on n1 Failed\nclaim runs-own of runs",
		},
		{name: "remove a class that does not exist", change: removed("class/x"), err: "remove DeviceClass x: there is no such object"},
		{name: "remove from another namespace", change: removed("claim/other/shared"), err: "remove ResourceClaim other/shared: there is no"},
		{name: "remove nothing", change: removed("waits"), err: `remove "waits": want KIND/NAME`},
		{name: "remove of an unknown kind", change: removed("secret/default/x"), err: `remove "secret/default/x": want KIND/NAME`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := read(t, before)
			got, problems, err := tc.change(s)
			if tc.err != "" {
				check.WantErr(t, err, nil, tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, state(got)); diff != "" {
				t.Errorf("wrong (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(read(t, before), s); diff != "" {
				t.Errorf("the snapshot itself was changed:\n%s", diff)
			}
			var said string
			for _, p := range problems {
				said += p.Object + ": " + p.Message
			}
			if said != tc.problem {
				t.Errorf("problems %q, want %q", said, tc.problem)
			}
		})
	}
}

func removed(targets ...string) func(s plan.Snapshot) (plan.Snapshot, []plan.Problem, error) {
	return func(s plan.Snapshot) (plan.Snapshot, []plan.Problem, error) {
		var problems []plan.Problem
		for _, target := range targets {
			next, more, err := change.Remove(s, target, "default")
			if err != nil {
				return s, nil, err
			}
			s, problems = next, append(problems, more...)
		}
		return s, problems, nil
	}
}

// TestAdd: an applied object keeps what the cluster has written into it.
func TestAdd(t *testing.T) {
	s := read(t, before)
	more := read(t, `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {a: b}}}
- {apiVersion: v1, kind: Pod, metadata: {name: runs}, spec: {containers: [{name: c, image: new}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: new}, spec: {containers: [{name: c}]}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: shared}
  spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}
- {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: new}}
- {apiVersion: plan.fettle.dev/v1, kind: Snapshot, kubernetesVersion: "1.36"}
`)
	got := change.Add(s, more)
	if diff := cmp.Diff(state(s)+"\npod new", strings.Replace(state(got), "\npod new on\n", "\n", 1)+"\npod new"); diff != "" {
		t.Errorf("wrong (-want +got):\n%s", diff)
	}
	if got.Nodes[0].Labels["a"] != "b" || got.Nodes[0].Status.Allocatable.Cpu().Value() != 4 {
		t.Errorf("node %+v: want the new label and the old status", got.Nodes[0])
	}
	if p := got.Pods[1]; p.UID != "u1" || p.Spec.Containers[0].Image != "new" || len(p.Status.ResourceClaimStatuses) != 1 {
		t.Errorf("pod %+v: want the new spec with the old UID and status", p)
	}
	if len(got.Classes) != 1 || got.Version != "1.36" {
		t.Errorf("%d classes, version %q: want the added ones", len(got.Classes), got.Version)
	}
	if diff := cmp.Diff(read(t, before), s); diff != "" {
		t.Errorf("the snapshot itself was changed:\n%s", diff)
	}
}

// TestGatesOfBoth: what the first snapshot says of gates holds, also if only the other one has a version.
func TestGatesOfBoth(t *testing.T) {
	given := map[string]bool{"A": false, "B": true}
	for name, tc := range map[string]struct {
		first, more, want plan.Snapshot
	}{
		"no version": {
			first: plan.Snapshot{Gates: given}, want: plan.Snapshot{Gates: given},
		},
		"the version of the other": {
			first: plan.Snapshot{Gates: given}, more: plan.Snapshot{Version: "1.36", Gates: map[string]bool{"A": true, "C": true}},
			want: plan.Snapshot{Version: "1.36", Gates: map[string]bool{"A": false, "B": true, "C": true}},
		},
		"a version of its own": {
			first: plan.Snapshot{Version: "1.35", Gates: given}, more: plan.Snapshot{Version: "1.36", Gates: map[string]bool{"C": true}},
			want: plan.Snapshot{Version: "1.35", Gates: given},
		},
		"nothing given": {
			more: plan.Snapshot{Version: "1.36", Gates: map[string]bool{"C": true}},
			want: plan.Snapshot{Version: "1.36", Gates: map[string]bool{"C": true}},
		},
	} {
		if diff := cmp.Diff(tc.want, change.Add(tc.first, tc.more)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(given) != 2 || given["A"] {
		t.Errorf("the gates that were given are %v now", given)
	}
}

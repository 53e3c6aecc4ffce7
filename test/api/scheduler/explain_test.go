// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
)

// explained are the reasons that an explanation may give where the scheduler says something of a class.
func explained(class string) []explain.Reason {
	devices := []explain.Reason{
		explain.NoDevices, explain.Held, explain.Tainted, explain.Constraint, explain.Selector, explain.TooFew, explain.PoolBroken,
		explain.NodeRefuses, // where the devices are free on a node that does not take the pod
		explain.Other,       // where no single change helps
	}
	switch class {
	case "node":
		return []explain.Reason{explain.NodeRefuses}
	case "no-resource":
		return []explain.Reason{explain.NodeRefuses, explain.NoDevicesAsked}
	case "class-missing":
		return []explain.Reason{explain.ClassMissing}
	case "claim-missing", "claim-deleted", "claim-in-use", "claim-twice", "claim-undated", "claim-elsewhere":
		return []explain.Reason{explain.ClaimMissing}
	case "claim-in-flight":
		return []explain.Reason{explain.Fits} // nothing that is stored speaks against it
	case "claim-elsewhere+no-devices":
		return append(devices, explain.ClaimMissing)
	case "timeout":
		return append(devices, explain.Slow)
	case "cel-runtime", "too-many":
		return []explain.Reason{explain.Invalid}
	case "invalid-pool", "incomplete-pool":
		return []explain.Reason{explain.PoolBroken}
	case "invalid-pool+no-devices":
		return append(devices, explain.PoolBroken)
	case "all-constraint":
		return []explain.Reason{explain.Constraint, explain.Invalid}
	case "gated":
		return []explain.Reason{explain.Other}
	}
	return devices
}

// checkExplanation explains a pod that waits, by what is in the cluster, and wants what the scheduler says of it to be understood.
func (c *cluster) checkExplanation(t *testing.T, p *corev1.Pod, class string) {
	t.Helper()
	got := &corev1.Pod{}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(p), got); err != nil {
		t.Fatal(err)
	}
	known, _, err := plan.NewCluster(c.read(t, p.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(known.Pods, func(q *corev1.Pod) bool { return q.Name == p.Name && q.Namespace == p.Namespace })
	e := explain.Pod(t.Context(), known, known.Pods[at], explain.Options{Now: time.Now()})
	var text bytes.Buffer
	if err := e.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if e.First == "" || !slices.Contains(explained(class), e.Reason) {
		t.Errorf("pod %s waits for the reason %s, and its explanation is %s, want one of %q:\n%s",
			p.Name, class, e.Reason, explained(class), &text)
	}
	for _, said := range e.Said {
		if len(said.Meanings) == 0 {
			t.Errorf("the explanation of pod %s does not know what this means: %s", p.Name, said.Words)
		}
	}
}

// read is a snapshot of the cluster without what sync keeps, and of one namespace.
func (c *cluster) read(t *testing.T, namespace string) plan.Snapshot {
	t.Helper()
	var (
		nodes     corev1.NodeList
		slices    resourceapi.ResourceSliceList
		classes   resourceapi.DeviceClassList
		rules     resourceapi.DeviceTaintRuleList
		claims    resourceapi.ResourceClaimList
		templates resourceapi.ResourceClaimTemplateList
		pods      corev1.PodList
		quotas    corev1.ResourceQuotaList
		space     corev1.Namespace
	)
	lists := []client.ObjectList{&nodes, &slices, &classes}
	if c.version == "" {
		lists = append(lists, &rules)
	}
	for _, list := range lists {
		if err := c.client.List(t.Context(), list, client.HasLabels{scenarioLabel}); err != nil {
			t.Fatal(err)
		}
	}
	for _, list := range []client.ObjectList{&claims, &templates, &pods, &quotas} {
		if err := c.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: namespace}, &space); err != nil {
		t.Fatal(err)
	}
	return plan.Snapshot{
		Version: c.version, Nodes: pointers(nodes.Items), Slices: pointers(slices.Items), Classes: pointers(classes.Items),
		TaintRules: pointers(rules.Items), Claims: pointers(claims.Items), Templates: pointers(templates.Items), Pods: pointers(pods.Items),
		Quotas: pointers(quotas.Items), Namespaces: []*corev1.Namespace{&space},
	}
}

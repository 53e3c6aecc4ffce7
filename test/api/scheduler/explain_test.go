// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
)

// nodeTimeout is far longer than the search on a node takes that ends, however busy the machine is.
const nodeTimeout = 5 * time.Second

// because is how a pod that waits has to be explained: the reason, and words of the first line.
type because struct {
	reason explain.Reason
	words  string
}

// because returns how the explanation of a pod that waits begins.
func (s scenario) because(version, pod string) because {
	for _, line := range s.written(version) {
		if text, ok := strings.CutPrefix(line, pod+" waits "); ok {
			_, explanation, _ := strings.Cut(text, ": ")
			reason, words, _ := strings.Cut(explanation, ", ")
			return because{explain.Reason(reason), words}
		}
	}
	return because{}
}

// check compares an explanation with what it has to be. Other is no reason: all that the scheduler says of a scenario has one.
func (b because) check(t *testing.T, p *corev1.Pod, e explain.Explanation) {
	t.Helper()
	if b.reason == "" || b.reason == explain.Other || b.words == "" {
		t.Errorf("pod %s waits, and the scenario does not say for which reason and with which words: it is %s, %s", p.Name, e.Reason, e.First)
		return
	}
	if e.Reason != b.reason || !strings.Contains(e.First, b.words) {
		t.Errorf("pod %s is explained by %s: %s\nwant %s: ... %s ...", p.Name, e.Reason, e.First, b.reason, b.words)
	}
}

// TestExplanations explains every pod that waits in a scenario, which needs no cluster.
func TestExplanations(t *testing.T) {
	for _, version := range []string{"", "1.34"} {
		for _, s := range scenarios() {
			t.Run(s.name+"/"+version, func(t *testing.T) {
				t.Parallel()
				s := s.placed()
				for _, p := range s.pods() {
					if slices.ContainsFunc(s.lines(version), func(line string) bool { return strings.HasPrefix(line, p.Name+" waits ") }) {
						s.because(version, p.Name).check(t, p, s.explain(t, version, p.Name))
					}
				}
			})
		}
	}
}

// explain makes the plan of the pods before one, and then explains that one.
func (s scenario) explain(t *testing.T, version, pod string) explain.Explanation {
	t.Helper()
	c := s.cluster(t, version, nil)
	at := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.Name == pod })
	explained := c.Pods[at]
	before := slices.Clone(c.Pods[:at])
	c.Pods = c.Pods[:at+1] // the others have not come yet
	if _, err := plan.Run(t.Context(), c, before, plan.Options{Timeout: s.timeout()}); err != nil {
		t.Fatal(err)
	}
	return explain.Pod(t.Context(), c, explained, explain.Options{Now: time.Now(), NodeTimeout: nodeTimeout})
}

// checkExplanation explains a pod that waits, by what is in the cluster, and wants what the scheduler says of it to be understood.
func (c *cluster) checkExplanation(t *testing.T, p *corev1.Pod, want because) {
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
	e := explain.Pod(t.Context(), known, known.Pods[at], explain.Options{Now: time.Now(), NodeTimeout: nodeTimeout})
	want.check(t, p, e)
	for _, said := range e.Said {
		meanings := strings.Join(said.Meanings, "\n")
		if meanings == "" {
			t.Errorf("the explanation of pod %s does not know what this means: %s", p.Name, said.Words)
		}
		for _, want := range meaningsOf(said.Words) {
			if !strings.Contains(meanings, want) {
				t.Errorf("the explanation of pod %s takes %q to mean %q, want %q", p.Name, said.Words, said.Meanings, want)
			}
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

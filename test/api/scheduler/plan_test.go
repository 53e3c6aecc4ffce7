// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// TestPlans makes the plan of every scenario, which needs no cluster.
func TestPlans(t *testing.T) {
	for _, version := range []string{"", "1.34"} {
		for _, s := range scenarios() {
			t.Run(s.name+"/"+version, func(t *testing.T) {
				t.Parallel()
				s := s.placed()
				planned := s.plan(t, version, nil)
				for _, p := range s.pods() {
					o := planned[p.Name]
					if line := o.line(p.Name, s.isLoose(version)); !slices.Contains(s.lines(version), line) {
						t.Errorf("the plan: %s\nwant:\n%s\n%s", line, strings.Join(s.lines(version), "\n"), o.text)
					}
				}
			})
		}
	}
}

// plan says what becomes of the pods of a scenario, by their names, if those that nodes names are on these nodes.
func (s scenario) plan(t *testing.T, version string, nodes map[string]string) map[string]outcome {
	t.Helper()
	out := map[string]outcome{}
	for name, result := range s.report(t, version, nodes).Pods {
		out[strings.TrimPrefix(name, s.namespace()+"/")] = outcomeOf(result)
	}
	return out
}

func outcomeOf(result plan.PodResult) outcome {
	o := outcome{devices: result.Devices, fits: result.Fits, text: result.Reason}
	if result.Node != nil {
		o.node = *result.Node
	} else {
		o.reason = classOf(result.Reason)
	}
	return o
}

// report is the plan of what the API server accepts of a scenario.
func (s scenario) report(t *testing.T, version string, nodes map[string]string) plan.Report {
	t.Helper()
	c := s.cluster(t, version, nodes)
	report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{Timeout: s.timeout()})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// timeout is how long the scheduler searches on a node for the pods of the scenario.
func (s scenario) timeout() time.Duration {
	if slices.ContainsFunc(s.pods(), func(p *corev1.Pod) bool { return p.Spec.SchedulerName == impatient }) {
		return time.Second
	}
	return plan.DefaultTimeout
}

// cluster has what the API server accepts of a scenario.
func (s scenario) cluster(t *testing.T, version string, nodes map[string]string) *plan.Cluster {
	t.Helper()
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace(), Labels: s.labels}}}
	for _, o := range s.objects {
		if p, ok := o.(*corev1.Pod); ok {
			o = onNode(p, nodes[p.Name])
		}
		if s.refused(version, kindAndName(o)) == "" {
			objects = append(objects, o)
		}
	}
	snapshot, problems, err := plan.Read([]plan.File{{Name: "scenario.yaml", Data: manifests(t, objects)}}, "")
	if err != nil || len(problems) > 0 {
		t.Fatalf("read the scenario: %v, %v", err, problems)
	}
	snapshot.Version = version
	c, _, err := plan.NewCluster(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onNode is the pod, allowed only a node; an empty name allows all.
func onNode(p *corev1.Pod, node string) *corev1.Pod {
	if node == "" {
		return p
	}
	p = p.DeepCopy()
	p.Spec.NodeSelector = maps.Clone(p.Spec.NodeSelector)
	if p.Spec.NodeSelector == nil {
		p.Spec.NodeSelector = map[string]string{}
	}
	p.Spec.NodeSelector[corev1.LabelHostname] = node
	return p
}

// manifests writes objects as a user would: without what the API server adds.
func manifests(t *testing.T, objects []client.Object) []byte {
	t.Helper()
	var out []string
	for _, o := range objects {
		o, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			t.Fatalf("%s is no object after it was copied", reflect.TypeOf(o))
		}
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	return []byte(strings.Join(out, "---\n"))
}

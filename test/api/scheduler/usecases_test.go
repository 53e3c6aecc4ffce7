// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/demo/usecases"
	"github.com/fettle-dev/fettle/pkg/plan"
)

// useCases are those of demo/usecases, as the API server takes them: without fields that it does not know, and without pods that run
// already, since no kubelet runs them.
func useCases(t *testing.T) []scenario {
	t.Helper()
	all, err := usecases.Load(repository + "/demo/usecases")
	if err != nil {
		t.Fatal(err)
	}
	var out []scenario
	for _, c := range all {
		files, err := c.Files()
		if err != nil {
			t.Fatal(err)
		}
		snapshot, _, err := plan.Read(files, "")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, useCase(c.Name, snapshot))
	}
	return out
}

func useCase(name string, snapshot plan.Snapshot) scenario {
	claims := slices.DeleteFunc(snapshot.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation != nil })
	pods := slices.DeleteFunc(snapshot.Pods, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	s := scenario{name: "use case " + name, labels: map[string]string{}, objects: slices.Concat(
		objectsOf(snapshot.Nodes), objectsOf(snapshot.Classes), objectsOf(snapshot.Slices), objectsOf(snapshot.TaintRules),
		objectsOf(snapshot.Templates), objectsOf(claims), objectsOf(pods),
	)}
	for _, namespace := range snapshot.Namespaces {
		maps.Copy(s.labels, namespace.Labels)
	}
	return s
}

func objectsOf[T client.Object](objects []T) []client.Object {
	var out []client.Object
	for _, o := range objects {
		out = append(out, o)
	}
	return out
}

// playUseCases has the scheduler place the pods of every use case, each as the plan says if the pods before it are where the scheduler put
// them.
func (c *cluster) playUseCases(t *testing.T) {
	for _, s := range useCases(t) {
		t.Run(s.name, func(t *testing.T) {
			s := s.placed()
			planned := s.plan(t, c.version, nil)
			defer c.clear(t, s)
			c.arrange(t, s)
			chosen := map[string]string{}
			for _, p := range s.pods() {
				c.write(t, p)
				got := c.settle(t, p, planned[p.Name])
				chosen[p.Name] = got.node
				if got.node != planned[p.Name].node && slices.Contains(planned[p.Name].fits, got.node) {
					planned = s.plan(t, c.version, chosen)
				}
				compare(t, p.Name, planned[p.Name], got)
			}
		})
	}
}

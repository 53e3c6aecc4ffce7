// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/component": "kubeletplugin"}}
}

func running(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}}
}

// well is a cluster of some nodes on which nothing is wrong.
func well(nodes int) Cluster {
	c := Cluster{Now: noon}
	plugin := &appsv1.DaemonSet{ObjectMeta: named("fettle-system", "fettle-kubeletplugin")}
	plugin.Spec.Template = running("ghcr.io/fettle-dev/fettle-kubeletplugin:v0.9.0@sha256:abc")
	plugin.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(nodes), NumberReady: int32(nodes)}
	controller := &appsv1.Deployment{ObjectMeta: named("fettle-system", "fettle-controller")}
	controller.Spec.Template, controller.Status.ReadyReplicas = running("localhost:5000/fettle-controller:v0.9.0"), 1
	c.DaemonSets, c.Deployments = []*appsv1.DaemonSet{plugin}, []*appsv1.Deployment{controller}
	for i := range nodes {
		n := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%02d", i)}}
		n.Status.Pools = []v1alpha1.PoolStatus{{Kind: "gpu", Devices: 8, Used: 3, Free: 5}}
		n.Status.PreparedClaims = 3
		for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished, v1alpha1.ConditionHealthy} {
			n.Status.Conditions = append(n.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue})
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

func pending(name, node string, ago time.Duration) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-ago))}}
	p.Spec.NodeName = node
	return p
}

// ill is a cluster with one fault of each kind.
func ill() Cluster {
	c := well(3)
	c.DaemonSets[0].Status.NumberReady = 2
	c.Deployments[0].Spec.Template = running("localhost:5000/fettle-controller:v0.8.0")
	c.Nodes[1].Status.Conditions[2] = metav1.Condition{
		Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionFalse, Reason: "DevicesUnhealthy", Message: "1 device is degraded",
	}
	c.Nodes[1].Status.Pools[0].Unhealthy = 1
	c.Nodes[2].Status.ProblemCount = 2
	c.Nodes[2].Status.Problems = []v1alpha1.NodeProblem{{Subject: "0000:18:00.0", Reason: "DriverNotLoaded", Message: "no driver has it"}}
	c.Nodes[0].Status.Conditions = append(c.Nodes[0].Status.Conditions,
		metav1.Condition{Type: v1alpha1.ConditionRetired, Status: metav1.ConditionTrue})
	applied := []metav1.Condition{{Type: v1alpha1.ConditionApplied, Status: metav1.ConditionTrue}}
	c.Objects = []Object{
		{"GPUKernelCache", metav1.ObjectMeta{Namespace: "ml", Name: "llm"}, []metav1.Condition{
			{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue},
			{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionFalse, Reason: "NotSigned", Message: "nobody signed\nit"},
		}},
		{"GPUKernelCache", metav1.ObjectMeta{Namespace: "ml", Name: "other"}, nil},
		{"PartitionPolicy", metav1.ObjectMeta{Name: "halves"}, applied},
	}
	c.Pods = []*corev1.Pod{
		pending("young", "", 10*time.Second), pending("train", "", time.Hour), pending("starts", "node-00", 2*time.Minute),
	}
	c.Unread = []string{"deployments are not known: forbidden"}
	return c
}

// TestText: the text for people, of a cluster that is well, of one that is not, of a large one, and of one without Fettle.
func TestText(t *testing.T) {
	large := well(40)
	large.Nodes[33].Status.ProblemCount = 1
	large.Nodes[33].Status.Problems = []v1alpha1.NodeProblem{{Subject: "s", Reason: "R", Message: strings.Repeat("long ", 100)}}
	for i := range 12 {
		large.Pods = append(large.Pods, pending(fmt.Sprint("p", i), "", time.Hour-time.Duration(i)*time.Minute))
	}
	var out bytes.Buffer
	for _, test := range []struct {
		name string
		Cluster
		all bool
	}{{"well", well(2), false}, {"ill", ill(), false}, {"large", large, false}, {"nothing", Cluster{Now: noon}, false}} {
		report := Of(test.Cluster)
		fmt.Fprintf(&out, "== %s\n", test.name)
		check.Must(t, report.WriteText(&out, test.all))
	}
	check.Golden(t, "testdata/overview.txt", out.String())
}

// TestAll: with --all nothing is left out or cut.
func TestAll(t *testing.T) {
	c := well(40)
	c.Nodes[33].Status.ProblemCount = 1
	c.Nodes[33].Status.Problems = []v1alpha1.NodeProblem{{Subject: "s", Reason: "R", Message: strings.Repeat("long ", 100) + "end"}}
	for i := range 30 {
		c.Pods = append(c.Pods, pending(fmt.Sprint("p", i), "", time.Hour))
	}
	var out bytes.Buffer
	report := Of(c)
	check.Must(t, report.WriteText(&out, true))
	for _, want := range []string{"node-39", "long end\n", "Pod ml/p29: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}

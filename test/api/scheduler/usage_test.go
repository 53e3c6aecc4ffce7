// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/plan"
	planquota "github.com/fettle-dev/fettle/pkg/plan/quota"
)

// usage is a namespace with claims of every form, a pod with an extended resource, and a quota of all that concerns devices.
func usage() scenario {
	whole, parts := class("gpu"), class("part")
	whole.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	admin := exactly("look", 3)
	admin.Exactly.AdminAccess = ptr.To(true)
	hard := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]string{
		"gpu.deviceclass.resource.k8s.io/devices": "50", "part.deviceclass.resource.k8s.io/devices": "3",
		"requests.example.com/gpu": "50", "requests.deviceclass.resource.kubernetes.io/gpu": "50",
		"count/resourceclaims.resource.k8s.io": "9",
	} {
		hard[name] = resource.MustParse(n)
	}
	return scenario{
		name: "usage of a quota", labels: map[string]string{"resource.kubernetes.io/admin-access": "true"},
		objects: cat(
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}},
			whole, parts, on("a", gpus(4)...),
			claim("two", exactly("r", 2)), claim("all", all("r")), claim("look", admin),
			claim("choice", first("r", sub("four", 4), sub("one", 1)), of("part", exactly("part", 2))),
			starting(extendedPod("extended", 1), 2),
		),
	}.placed()
}

// extendedPod asks for an extended resource.
func extendedPod(name string, n int64) *corev1.Pod {
	p := pod(name)
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	return p
}

// starting adds an init container that asks for more of the extended resource.
func starting(p *corev1.Pod, n int64) *corev1.Pod {
	first := *p.Spec.Containers[0].DeepCopy()
	first.Name = "first"
	first.Resources.Limits = corev1.ResourceList{"example.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	p.Spec.InitContainers = append(p.Spec.InitContainers, first)
	return p
}

// playUsage compares what fettle quota counts with the status of the quota, and what it says that claims would be charged with what the API
// server does with them.
func (c *cluster) playUsage(t *testing.T) {
	s := usage()
	defer c.clear(t, s)
	c.arrange(t, s)
	for _, p := range s.pods() {
		c.write(t, p)
		c.settle(t, p, outcome{node: "a"})
	}
	c.eventually(t, func() string {
		var wrong []string
		for _, l := range c.usage(t, s, nil).Namespaces[0].Limits {
			if l.Used == nil || l.Used.Cmp(l.Counted) != 0 {
				wrong = append(wrong, fmt.Sprintf("%s: the status says %v, the claims have %s", l.Resource, l.Used, l.Counted.String()))
			}
		}
		return strings.Join(wrong, "\n")
	})
	for _, o := range cat(
		claim("more", exactly("r", 3)), claim("too-many", exactly("r", 8), of("part", exactly("part", 2))),
		claim("last-part", of("part", exactly("part", 1))), claim("part-too-many", of("part", exactly("part", 1))),
		extendedPod("pod-more", 2), starting(extendedPod("pod-too-many", 1), 9), claim("last", exactly("r", 1)),
	) {
		o.SetNamespace(s.namespace())
		c.charge(t, s, o)
	}
}

// charge creates an object, which has to be refused as it was said, and in the same words.
func (c *cluster) charge(t *testing.T, s scenario, o client.Object) {
	t.Helper()
	asked := &plan.Snapshot{}
	switch o := o.(type) {
	case *corev1.Pod:
		asked.Pods = []*corev1.Pod{o}
	case *resourceapi.ResourceClaim:
		asked.Claims = []*resourceapi.ResourceClaim{o}
	}
	said := c.usage(t, s, asked).Asked[0].Refused
	err := c.put(t.Context(), o)
	switch {
	case (err != nil) != (len(said) > 0):
		t.Errorf("%s: fettle says %q, the API server %v", kindAndName(o), said, err)
	case err != nil:
		_, words, _ := strings.Cut(said[0], ": ")
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%s: fettle says %q, the API server %v", kindAndName(o), said[0], err)
		}
	}
}

// usage is what fettle quota reports.
func (c *cluster) usage(t *testing.T, s scenario, asked *plan.Snapshot) planquota.Report {
	t.Helper()
	report, err := planquota.Of(c.snapshot(t, s), asked, s.namespace())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// snapshot reads what fettle quota reads of one namespace.
func (c *cluster) snapshot(t *testing.T, s scenario) *plan.Snapshot {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	var pods corev1.PodList
	var quotas corev1.ResourceQuotaList
	var classes resourceapi.DeviceClassList
	for _, list := range []client.ObjectList{&claims, &pods, &quotas} {
		if err := c.client.List(t.Context(), list, client.InNamespace(s.namespace())); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.client.List(t.Context(), &classes); err != nil {
		t.Fatal(err)
	}
	return &plan.Snapshot{
		Claims: pointers(claims.Items), Pods: pointers(pods.Items), Quotas: pointers(quotas.Items), Classes: pointers(classes.Items),
	}
}

func pointers[T any](items []T) []*T {
	var out []*T
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}

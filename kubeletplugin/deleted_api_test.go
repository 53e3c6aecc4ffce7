// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// testDeletedClaim: the controller tells the node that a claim was deleted while it was allocated, and the device that it holds is tainted,
// and named in AcceleratorNode, until kubelet unprepares the claim.
func (c *cluster) testDeletedClaim(t *testing.T) {
	t.Parallel()
	n := c.newNode(t, "deleted", "8xh100-sxm")
	n.start("pod-1")
	name := n.gpus()[2]
	hold := n.claim("hold", nil, nodefixture.Result("gpu", device.KindGPU, name))
	if answer := n.prepare(hold); answer.Error != "" {
		t.Fatal(answer.Error)
	}
	check.Must(t, c.clients.Kube.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), hold.Name, metav1.DeleteOptions{}))
	annotation := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"now"}}}`, v1alpha1.ClaimDeletedAnnotation)
	nodes := c.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	_, err := nodes.Patch(t.Context(), n.name, types.MergePatchType, annotation, metav1.PatchOptions{})
	check.Must(t, err)
	want := resourceapi.DeviceTaint{Key: "fettle.dev/held", Value: "ClaimDeleted", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	got := n.tainted(name)
	got.TimeAdded = nil
	if got != want {
		t.Errorf("taint %+v, want %+v", got, want)
	}
	n.eventually(func() string {
		problems := n.status().Problems
		if !slices.ContainsFunc(problems, func(p v1alpha1.NodeProblem) bool {
			return p.Reason == "ClaimDeleted" && strings.Contains(p.Message, namespace+"/hold (UID "+string(hold.UID)+")")
		}) {
			return fmt.Sprintf("problems %+v", problems)
		}
		return ""
	})
	next := n.claim("next", nil, nodefixture.Result("gpu", device.KindGPU, name))
	if answer := n.prepare(next); !strings.Contains(answer.Error, "was deleted while its pod runs") {
		t.Errorf("answer %+v", answer)
	}
	n.unprepare(hold)
	n.eventually(func() string {
		if taints := n.taints()[name]; len(taints) > 0 || len(n.status().Problems) > 0 {
			return fmt.Sprintf("taints %+v, problems %+v", taints, n.status().Problems)
		}
		return ""
	})
	if answer := n.prepare(next); answer.Error != "" {
		t.Error(answer.Error)
	}
}

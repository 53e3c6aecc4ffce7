// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// Hold is a claim that has devices of this driver and is reserved for a consumer.
type Hold struct {
	Claim types.NamespacedName
	// Pods are the pods that it is reserved for, sorted by name. They are in the claim's namespace.
	Pods []Consumer
	// Others are consumers of another kind, as resource/name, which an uninstall cannot end.
	Others []string
}

// Consumer is a pod by name and UID, so that a later pod of the same name is not mistaken for it.
type Consumer struct {
	Name string
	UID  types.UID
}

// holds returns the claims in use, sorted by namespace and name. Results with admin access count too: their pods hold files of
// the plugin open.
func holds(claims []resourceapi.ResourceClaim) []Hold {
	var in []Hold
	for i := range claims {
		claim := &claims[i]
		if len(claim.Status.ReservedFor) == 0 || !ours(claim) {
			continue
		}
		h := Hold{Claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
		for _, r := range claim.Status.ReservedFor {
			if r.APIGroup == "" && r.Resource == "pods" {
				h.Pods = append(h.Pods, Consumer{Name: r.Name, UID: r.UID})
			} else {
				h.Others = append(h.Others, r.Resource+"/"+r.Name)
			}
		}
		slices.SortFunc(h.Pods, func(a, b Consumer) int { return cmp.Compare(a.Name, b.Name) })
		slices.Sort(h.Others)
		in = append(in, h)
	}
	slices.SortFunc(in, func(a, b Hold) int { return compareNames(a.Claim, b.Claim) })
	return in
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// is says whether a hold is the same as another: the same consumers have the claim.
func (h Hold) is(other Hold) bool {
	return h.Claim == other.Claim && slices.Equal(h.Pods, other.Pods) && slices.Equal(h.Others, other.Others)
}

// text names the claim and its consumers.
func (h Hold) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "claim %s", h.Claim)
	for _, p := range h.Pods {
		fmt.Fprintf(&b, " pod %s/%s", h.Claim.Namespace, p.Name)
	}
	for _, o := range h.Others {
		fmt.Fprintf(&b, " %s", o)
	}
	return b.String()
}

// ours says whether any device of the claim is this driver's.
func ours(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName })
}

// preparing returns the names of the nodes that report prepared claims, sorted, without those in skip.
func preparing(nodes []v1alpha1.AcceleratorNode, skip map[string]string) []string {
	var names []string
	for _, n := range nodes {
		if n.Status.PreparedClaims > 0 && skip[n.Name] == "" {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Error lists each claim with its consumers, the nodes, and the next step.
func (e *InUseError) Error() string {
	var b strings.Builder
	b.WriteString("Fettle is not uninstalled, because devices are in use:")
	for _, h := range e.Holds {
		b.WriteString("\n  " + h.text())
	}
	for _, n := range e.Nodes {
		fmt.Fprintf(&b, "\n  node %s still has prepared claims", n)
	}
	b.WriteString("\nDelete these pods and try again. To have them evicted instead, set the chart's value uninstall.force=true " +
		"(helm upgrade with --reuse-values) and uninstall again; the flag of fettle-controller uninstall is --force.")
	return b.String()
}

// refuse returns an [*InUseError] if a device is in use, but for what is left.
func (u Uninstall) refuse(ctx context.Context, left map[types.NamespacedName]Hold) error {
	in, err := u.inUse(ctx, left)
	if err != nil {
		return err
	}
	if in != nil {
		return in
	}
	return nil
}

// inUse returns the claims and nodes that hold devices now, nil if none does. Claims that are left as they are do not count. Nodes that
// cannot answer count only without force: a forced uninstall must not wait for them.
func (u Uninstall) inUse(ctx context.Context, left map[types.NamespacedName]Hold) (*InUseError, error) {
	var claims []resourceapi.ResourceClaim
	begin := func() { claims = nil }
	listing := reconciler.Listing{Reader: u.Client, List: &resourceapi.ResourceClaimList{}}
	err := listing.Read(ctx, begin, func(o runtime.Object) error {
		claim, ok := o.(*resourceapi.ResourceClaim)
		if ok && len(claim.Status.ReservedFor) > 0 && ours(claim) {
			kept := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}}
			kept.Status.Allocation, kept.Status.ReservedFor = &resourceapi.AllocationResult{}, claim.Status.ReservedFor
			kept.Status.Allocation.Devices.Results = claim.Status.Allocation.Devices.Results
			claims = append(claims, kept)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	nodes, err := u.nodes(ctx)
	if err != nil {
		return nil, err
	}
	skip := nodes.silent
	if !u.Force {
		skip = nodes.gone()
	}
	waiting := slices.DeleteFunc(holds(claims), func(h Hold) bool { return h.is(left[h.Claim]) })
	e := &InUseError{Holds: waiting, Nodes: preparing(nodes.all, skip)}
	if len(e.Holds) == 0 && len(e.Nodes) == 0 {
		return nil, nil //nolint:nilnil // documented above
	}
	return e, nil
}

// nodeReady says whether a Node is Ready. The uninstall treats any other state as a node that cannot answer.
func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

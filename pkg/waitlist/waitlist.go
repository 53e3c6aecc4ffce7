// SPDX-License-Identifier: Apache-2.0

// Package waitlist tells nodes which claims wait for them before their pods are bound (KEP-5007).
package waitlist

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/claim"
)

// MaxBytes bounds Names, and so what waiting claims add to an AcceleratorNode.
const MaxBytes = 2048

// Waits reports whether the scheduler waits before it binds the claim's pod, for conditions of a device that it allocated (KEP-5007): not
// all of the device's binding conditions are true, and no failure condition is.
func Waits(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) bool {
	if len(r.BindingConditions) == 0 || c.DeletionTimestamp != nil {
		return false
	}
	i := slices.IndexFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
		return claim.KeyOf(d.Driver, d.Pool, d.Device, d.ShareID) == claim.KeyOf(r.Driver, r.Pool, r.Device, (*string)(r.ShareID))
	})
	if i < 0 {
		return true
	}
	said := func(condition string) bool {
		return meta.IsStatusConditionTrue(c.Status.Devices[i].Conditions, condition)
	}
	unsaid := func(condition string) bool { return !said(condition) }
	return slices.ContainsFunc(r.BindingConditions, unsaid) && !slices.ContainsFunc(r.BindingFailureConditions, said)
}

// Names writes the names of claims that wait on a node, for v1alpha1.WaitingClaimsAnnotation: "namespace/name", separated by commas.
// Namespaces come in turns, so that many claims of one hold up another's by one; of a namespace, the claims that are named first. It ends
// before it would have more than MaxBytes: the next claims are named once these do not wait any more.
func Names(claims []types.NamespacedName) string {
	turn, turns := make([]int, len(claims)), map[string]int{}
	order := make([]int, len(claims))
	for i, c := range claims {
		turn[i], order[i] = turns[c.Namespace], i
		turns[c.Namespace]++
	}
	slices.SortStableFunc(order, func(i, j int) int { return turn[i] - turn[j] })
	var text strings.Builder
	for _, i := range order {
		name := claims[i].String()
		if text.Len()+len(",")+len(name) > MaxBytes {
			break
		}
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		text.WriteString(name)
	}
	return text.String()
}

// Parse reads what Names wrote. It leaves out what names no claim.
func Parse(text string) (claims []types.NamespacedName) {
	for name := range strings.SplitSeq(text, ",") {
		namespace, name, ok := strings.Cut(name, "/")
		if ok && namespace != "" && name != "" && !strings.Contains(name, "/") {
			claims = append(claims, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return claims
}

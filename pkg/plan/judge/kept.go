// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"iter"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
)

const (
	// maxKept is about how much memory compiled expressions take before they are forgotten, maxOfPod how much those of one pod may take.
	// Tenants write expressions of any length, and a claim may have a thousand of them.
	maxKept  = 24 << 20
	maxOfPod = 8 << 20
)

// TooLong says why claims are not judged that have more CEL than is compiled for one pod.
const TooLong = "the claims have more or longer selectors than are looked at: shorten them"

// weight is about how much memory an expression takes when it is compiled twice, for the scheduler's answer and for every part of it.
func weight(expression string) int { return 40<<10 + 200*len(expression) }

// IsTooLong says whether claims have more CEL than is compiled for one pod.
func IsTooLong(claims []*resourceapi.ResourceClaim) bool {
	_, sum := unseen(nil, claims, nil)
	return sum > maxOfPod
}

// Kept counts about how much memory the compiled expressions of claims take, for those who keep them. The zero value has none.
type Kept struct {
	seen map[string]bool
	sum  int
}

// Add counts the expressions of claims and of their classes. It is false if all that was kept before is to be forgotten.
func (k *Kept) Add(claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) bool {
	more, sum := unseen(k.seen, claims, classes)
	if k.sum > 0 && k.sum+sum > maxKept {
		k.seen, k.sum = unseen(nil, claims, classes)
		return false
	}
	if k.seen == nil {
		k.seen = map[string]bool{}
	}
	maps.Copy(k.seen, more)
	k.sum += sum
	return true
}

// unseen returns the expressions that are not in seen, and about how much memory they take.
func unseen(
	seen map[string]bool, claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass,
) (more map[string]bool, sum int) {
	more = map[string]bool{}
	for expression := range ExpressionsOf(claims, classes) {
		if !seen[expression] && !more[expression] {
			more[expression] = true
			sum += weight(expression)
		}
	}
	return more, sum
}

// ExpressionsOf yields the CEL of the requests of claims and of the classes that they name.
func ExpressionsOf(claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, claim := range claims {
			for _, r := range allAlternatives(claim) {
				if !r.expressions(classes[r.DeviceClassName], yield) {
					return
				}
			}
		}
	}
}

func allAlternatives(claim *resourceapi.ResourceClaim) (out []*request) {
	for i := range claim.Spec.Devices.Requests {
		out = append(out, alternativesOf(claim, &claim.Spec.Devices.Requests[i])...)
	}
	return out
}

// expressions yields the CEL of a request and of its class, which may be nil.
func (r *request) expressions(class *resourceapi.DeviceClass, yield func(string) bool) bool {
	all := r.Selectors
	if class != nil {
		all = append(all[:len(all):len(all)], class.Spec.Selectors...)
	}
	for _, s := range all {
		if s.CEL != nil && !yield(s.CEL.Expression) {
			return false
		}
	}
	for _, derived := range r.DerivedAttributes {
		if !yield(derived.Expression) {
			return false
		}
	}
	return true
}

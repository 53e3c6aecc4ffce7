// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// unreadPrefix begins the object of a problem about a kind that could not be read from a cluster, or not in all namespaces.
const unreadPrefix = "Snapshot "

// Unread returns the resources of which not all objects could be read, and the other problems.
func Unread(problems []plan.Problem) (unread []string, rest []plan.Problem) {
	for _, p := range problems {
		resource, found := strings.CutPrefix(p.Object, unreadPrefix)
		if found && resource != "kubernetes" { // its version and gates
			unread = append(unread, resource)
			continue
		}
		rest = append(rest, p)
	}
	return unread, rest
}

// AddNodes makes nodes of the names in ResourceSlices, for a reader who may not list nodes.
func AddNodes(s *plan.Snapshot) {
	known := map[string]bool{}
	for _, node := range s.Nodes {
		known[node.Name] = true
	}
	for _, slice := range s.Slices {
		if name := ptr.Deref(slice.Spec.NodeName, ""); name != "" && !known[name] {
			known[name] = true
			s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "unread"}})
		}
	}
}

// lacking says what the reader has to be allowed to read before devices can be explained.
func lacking(unread []string) string {
	for _, resource := range []string{"resourceslices", "deviceclasses"} {
		if slices.Contains(unread, resource) {
			return resource
		}
	}
	return ""
}

// unexplained is all that can be said without devices: what the scheduler said.
func (e *Explanation) unexplained(resource string) {
	e.Reason = Other
	e.First = fmt.Sprintf("devices cannot be explained, since you may not list %s; ", resource)
	for _, s := range e.Said {
		if s.From == fromCondition {
			e.First += "the scheduler says: " + s.Words
			return
		}
	}
	e.First += "the scheduler has said nothing of the pod yet"
}

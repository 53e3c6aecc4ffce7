// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/pkg/message"
)

// NodeEvents makes Events on the node.
type NodeEvents struct {
	// Node is the name of the Node object.
	Node   string
	Events events.EventRecorder
}

// Reference is the Node object.
func (e *NodeEvents) Reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Node, UID: types.UID(e.Node)}
}

// Event says something of the node. The action is what the plugin did.
func (e *NodeEvents) Event(action, eventType, reason, note string) {
	e.Events.Eventf(e.Reference(), nil, eventType, reason, action, "%s", message.EventNote(note))
}

// About says something of an object, related to another one or to none.
func (e *NodeEvents) About(regarding, related *corev1.ObjectReference, action, eventType, reason, note string) {
	var other runtime.Object
	if related != nil {
		other = related
	}
	e.Events.Eventf(regarding, other, eventType, reason, action, "%s", message.EventNote(note))
}

// OnClaim says something on a claim that is prepared all the same.
func (e *NodeEvents) OnClaim(c *resourceapi.ResourceClaim, eventType, reason, note string) {
	e.Events.Eventf(c, nil, eventType, reason, "Prepare", "%s", message.EventNote(note))
}

// OfClaim says on the node what happened to a claim outside of kubelet's calls.
func (e *NodeEvents) OfClaim(namespace, name, uid, eventType, reason, message string) {
	// Events that differ in their text alone become one that keeps the first text.
	related := &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: namespace, Name: name, UID: types.UID(uid),
	}
	e.About(e.Reference(), related, "Recover", eventType, reason, fmt.Sprintf("claim %s/%s (UID %s): %s", namespace, name, uid, message))
}

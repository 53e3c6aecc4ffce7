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
	"github.com/fettle-dev/fettle/pkg/record"
)

// NodeEvents writes Events about the node and about claims on it.
type NodeEvents struct {
	// Node is the name of the Node object.
	Node   string
	Events events.EventRecorder
}

// Reference returns a reference to the Node object.
func (e *NodeEvents) Reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Node, UID: types.UID(e.Node)}
}

// Event writes an Event on the node, about one of its devices or about none. The action is the plugin's.
func (e *NodeEvents) Event(action, device, eventType, reason, note string) {
	node := e.Reference()
	node.FieldPath = part("devices", device)
	e.Events.Eventf(node, nil, eventType, reason, action, "%s", message.EventNote(note))
}

// EventOf returns Event for one action.
func (e *NodeEvents) EventOf(action string) func(device, eventType, reason, note string) {
	return func(device, eventType, reason, note string) { e.Event(action, device, eventType, reason, note) }
}

// part is the path of a part of an object. Events on one object that differ only in their text are merged, and only the first text is kept:
// the path keeps Events of two parts apart.
func part(field, name string) string {
	if name == "" {
		return ""
	}
	return field + "{" + name + "}"
}

// ObjectEvent writes an Event on an object, related to another one or to none.
func (e *NodeEvents) ObjectEvent(regarding, related *corev1.ObjectReference, action, eventType, reason, note string) {
	var other runtime.Object
	if related != nil {
		other = related
	}
	e.Events.Eventf(regarding, other, eventType, reason, action, "%s", message.EventNote(note))
}

// ClaimEvent writes an Event on a claim that is prepared nevertheless, about something in one of its requests or about all.
func (e *NodeEvents) ClaimEvent(c *resourceapi.ResourceClaim, request, eventType, reason, note string) {
	regarding := claimReference(c.Namespace, c.Name, string(c.UID))
	regarding.FieldPath = part("spec.devices.requests", request)
	e.ObjectEvent(regarding, nil, "Prepare", eventType, reason, note)
}

// RecordEvent writes an Event on the claim of a record.
func (e *NodeEvents) RecordEvent(r *record.Record, eventType, reason, note string) {
	e.ObjectEvent(claimReference(r.Namespace, r.Name, r.UID), nil, "Watch", eventType, reason, note)
}

func claimReference(namespace, name, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: namespace, Name: name, UID: types.UID(uid),
	}
}

// PodEvent writes an Event on a pod that uses a claim.
func (e *NodeEvents) PodEvent(pod *corev1.ObjectReference, c *resourceapi.ResourceClaim, eventType, reason, note string) {
	e.Events.Eventf(pod, c, eventType, reason, "Prepare", "%s", message.EventNote(note))
}

// IncidentEvent writes an Event on the node about a claim, for an incident outside of kubelet's calls.
func (e *NodeEvents) IncidentEvent(namespace, name, uid, eventType, reason, message string) {
	related := claimReference(namespace, name, uid) // keeps Events of two claims apart, see part
	e.ObjectEvent(e.Reference(), related, "Recover", eventType, reason, fmt.Sprintf("claim %s/%s (UID %s): %s", namespace, name, uid, message))
}

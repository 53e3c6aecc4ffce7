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

// event is an Event on an object of the cluster.
type event struct {
	// regarding is the object. related is another one that the Event is about too, or nil.
	regarding, related *corev1.ObjectReference
	// action is what the plugin does: "Prepare".
	action             string
	kind, reason, note string
}

func (e *NodeEvents) write(v event) {
	var related runtime.Object
	if v.related != nil {
		related = v.related
	}
	e.Events.Eventf(v.regarding, related, v.kind, v.reason, v.action, "%s", message.EventNote(v.note))
}

// ProgramEvent writes an Event on an object about the programming of an FPGA, related to another object or to none.
func (e *NodeEvents) ProgramEvent(regarding, related *corev1.ObjectReference, eventType, reason, note string) {
	e.write(event{regarding: regarding, related: related, action: "Program", kind: eventType, reason: reason, note: note})
}

// KeepEvent writes an Event on a kernel cache that this node does not keep.
func (e *NodeEvents) KeepEvent(cache *corev1.ObjectReference, eventType, reason, note string) {
	e.write(event{regarding: cache, action: "Keep", kind: eventType, reason: reason, note: "node " + e.Node + ": " + note})
}

// ClaimEvent writes an Event on a claim that is prepared nevertheless, about something in one of its requests or about all.
func (e *NodeEvents) ClaimEvent(c *resourceapi.ResourceClaim, request, eventType, reason, note string) {
	regarding := ClaimReference(c.Namespace, c.Name, string(c.UID))
	regarding.FieldPath = part("spec.devices.requests", request)
	e.write(event{regarding: regarding, action: "Prepare", kind: eventType, reason: reason, note: note})
}

// RecordEvent writes an Event on the claim of a record.
func (e *NodeEvents) RecordEvent(r *record.Record, eventType, reason, note string) {
	regarding := ClaimReference(r.Namespace, r.Name, r.UID)
	e.write(event{regarding: regarding, action: "Watch", kind: eventType, reason: reason, note: note})
}

// ClaimReference returns a reference to a claim.
func ClaimReference(namespace, name, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: namespace, Name: name, UID: types.UID(uid),
	}
}

// PodEvent writes an Event on a pod that uses a claim.
func (e *NodeEvents) PodEvent(pod *corev1.ObjectReference, c *resourceapi.ResourceClaim, eventType, reason, note string) {
	e.Events.Eventf(pod, c, eventType, reason, "Prepare", "%s", message.EventNote(note))
}

// IncidentEvent writes an Event on the node about a claim, for an incident outside of kubelet's calls.
func (e *NodeEvents) IncidentEvent(claim *corev1.ObjectReference, eventType, reason, message string) {
	e.write(event{
		regarding: e.Reference(), related: claim, // which keeps Events of two claims apart, see part
		action: "Recover", kind: eventType, reason: reason,
		note: fmt.Sprintf("claim %s/%s (UID %s): %s", claim.Namespace, claim.Name, claim.UID, message),
	})
}

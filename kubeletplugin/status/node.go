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

// Event writes an Event on the node. The action is the plugin's.
func (e *NodeEvents) Event(action, eventType, reason, note string) {
	e.Events.Eventf(e.Reference(), nil, eventType, reason, action, "%s", message.EventNote(note))
}

// ObjectEvent writes an Event on an object, related to another one or to none.
func (e *NodeEvents) ObjectEvent(regarding, related *corev1.ObjectReference, action, eventType, reason, note string) {
	var other runtime.Object
	if related != nil {
		other = related
	}
	e.Events.Eventf(regarding, other, eventType, reason, action, "%s", message.EventNote(note))
}

// ClaimEvent writes an Event on a claim that is prepared nevertheless.
func (e *NodeEvents) ClaimEvent(c *resourceapi.ResourceClaim, eventType, reason, note string) {
	e.Events.Eventf(c, nil, eventType, reason, "Prepare", "%s", message.EventNote(note))
}

// RecordEvent writes an Event on the claim of a record.
func (e *NodeEvents) RecordEvent(r *record.Record, eventType, reason, note string) {
	e.ObjectEvent(&corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.UID),
	}, nil, "Watch", eventType, reason, note)
}

// PodEvent writes an Event on a pod that uses a claim.
func (e *NodeEvents) PodEvent(pod *corev1.ObjectReference, c *resourceapi.ResourceClaim, eventType, reason, note string) {
	e.Events.Eventf(pod, c, eventType, reason, "Prepare", "%s", message.EventNote(note))
}

// IncidentEvent writes an Event on the node about a claim, for an incident outside of kubelet's calls.
func (e *NodeEvents) IncidentEvent(namespace, name, uid, eventType, reason, message string) {
	// Events that differ only in their text are merged, and the first text is kept. The related claim keeps Events of two claims apart.
	related := &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: namespace, Name: name, UID: types.UID(uid),
	}
	e.ObjectEvent(e.Reference(), related, "Recover", eventType, reason, fmt.Sprintf("claim %s/%s (UID %s): %s", namespace, name, uid, message))
}

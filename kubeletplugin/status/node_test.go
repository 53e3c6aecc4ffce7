// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/test/check"
)

// TestEventsOfPartsAreKeptApart: two devices of a node, or two requests of a claim, that have the same said of them have an Event each.
func TestEventsOfPartsAreKeptApart(t *testing.T) {
	kube := fake.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()})
	check.Must(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	defer broadcaster.Shutdown()
	e := &NodeEvents{Node: "n1", Events: broadcaster.NewRecorder(scheme.Scheme, "fettle.dev")}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u1"}}
	want := []string{
		"claim: spec.devices.requests{gpu/a}", "claim: spec.devices.requests{gpu/b}", "node: ", "node: devices{ssd0}", "node: devices{ssd1}",
	}
	for range 2 { // the second of each is the same again
		for _, device := range []string{"ssd0", "ssd1", ""} {
			e.Event("Watch", device, corev1.EventTypeWarning, "DeviceFatal", "device "+device)
		}
		for _, request := range []string{"gpu/a", "gpu/b"} {
			e.ClaimEvent(c, request, corev1.EventTypeWarning, "CacheSkipped", "request "+request)
		}
	}
	var got []string
	check.Eventually(t, "there is an Event of each", func() bool {
		list, err := kube.EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		check.Must(t, err)
		got = nil
		for i := range list.Items {
			regarding := &list.Items[i].Regarding
			kind := map[string]string{"ResourceClaim": "claim: ", "Node": "node: "}[regarding.Kind]
			got = append(got, kind+regarding.FieldPath)
		}
		slices.Sort(got)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("Events of %q, want %q", got, want)
	}
}

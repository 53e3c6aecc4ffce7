// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clear removes all objects of a scenario, so that the next one has the cluster to itself. Devices go first: a pod that waits would get
// those of a pod that is removed before it. Claims are removed once more at the end, since the scheduler makes one for an extended resource
// while it binds a pod.
func (c *cluster) clear(t *testing.T, s scenario) {
	t.Helper()
	kinds := []client.Object{&resourceapi.ResourceSlice{}, &corev1.Node{}, &resourceapi.DeviceClass{}}
	if c.version == "" {
		kinds = append(kinds, &resourceapi.DeviceTaintRule{})
	}
	for _, kind := range kinds {
		c.removed(t, c.client.DeleteAllOf(t.Context(), kind, client.HasLabels{scenarioLabel}))
	}
	namespaced := []client.Object{&corev1.Pod{}, &resourceapi.ResourceClaimTemplate{}, &corev1.ResourceQuota{}}
	namespaces := []string{s.namespace(), syncName}
	for _, namespace := range namespaces {
		for _, kind := range namespaced {
			c.removed(t, c.client.DeleteAllOf(t.Context(), kind, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
		}
		c.clearClaims(t, namespace)
	}
	for _, namespace := range namespaces {
		c.clearClaims(t, namespace)
	}
}

// clearClaims removes the claims of a namespace without waiting for the controller to see that their pods are gone.
func (c *cluster) clearClaims(t *testing.T, namespace string) {
	t.Helper()
	c.eventually(t, func() string {
		list := &resourceapi.ResourceClaimList{}
		if err := c.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			claim := &list.Items[i]
			if len(claim.Finalizers) > 0 {
				none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
				c.removed(t, c.client.Patch(t.Context(), claim, none))
			}
			c.removed(t, c.client.Delete(t.Context(), claim, client.GracePeriodSeconds(0)))
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%d claims are left", len(list.Items))
		}
		return ""
	})
}

// removed fails if an object could not be removed for another reason than that it is gone.
func (c *cluster) removed(t *testing.T, err error) {
	t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// poll waits for a check to return an empty text. It asks often: there are hundreds of waits, and most are over in milliseconds.
func poll(t *testing.T, within time.Duration, check func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		text := check()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", within, text)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// eventually waits for a check to return an empty text, as long as the scheduler may take.
func (c *cluster) eventually(t *testing.T, check func() string) {
	t.Helper()
	poll(t, patience, check)
}

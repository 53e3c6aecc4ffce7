// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// lateWriter is a writer for one claim with a preset.
type lateWriter struct {
	*ClaimWriter
	client *fake.Clientset
	claim  *resourceapi.ResourceClaim
	record *record.Record
}

func newLateWriter() *lateWriter {
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "g0"))
	result := &c.Status.Allocation.Devices.Results[0]
	w := &lateWriter{
		client: fake.NewClientset(c), claim: c,
		record: &record.Record{Devices: []record.Device{{Request: "gpu", Pool: result.Pool, Name: result.Device}}},
	}
	w.ClaimWriter = NewClaimWriter(ClaimConfig{
		Client: w.client, Clock: clock.RealClock{},
		Programmed: func(*record.Record) (map[string]region.Programmed, error) { return map[string]region.Programmed{}, nil },
		Presets: func(r *record.Record) (map[string][]preset.Origin, error) {
			if len(r.Devices) == 0 {
				return map[string][]preset.Origin{}, nil
			}
			return map[string][]preset.Origin{"gpu": {{Name: "nvidia.fettle.dev", Generation: 1}}}, nil
		},
	})
	return w
}

// written counts the updates of claims that the API server was asked for.
func (w *lateWriter) written() int {
	n := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() == "update" {
			n++
		}
	}
	return n
}

func (w *lateWriter) shown(t *testing.T) int {
	t.Helper()
	c, err := w.client.ResourceV1().ResourceClaims(w.claim.Namespace).Get(context.Background(), w.claim.Name, metav1.GetOptions{})
	check.Must(t, err)
	return len(c.Status.Devices)
}

// TestWrittenLater: what a claim has is written without its call, once, and a claim with nothing to show is not.
func TestWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWriter()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx)
		check.Must(t, w.WriteDevicesLater(w.claim, &record.Record{}))
		synctest.Wait()
		if w.written() != 0 {
			t.Error("a claim with nothing to show was written")
		}
		for range 3 {
			c, err := w.client.ResourceV1().ResourceClaims(w.claim.Namespace).Get(ctx, w.claim.Name, metav1.GetOptions{})
			check.Must(t, err)
			check.Must(t, w.WriteDevicesLater(c, w.record))
			synctest.Wait()
		}
		if w.written() != 1 || w.shown(t) != 1 {
			t.Errorf("%d writes, %d entries, want one of each", w.written(), w.shown(t))
		}
	})
}

// TestWrittenAtTheEnd: what is left when the plugin ends is written before Run returns, also what was being written then.
func TestWrittenAtTheEnd(t *testing.T) {
	for name, begun := range map[string]bool{"waits": false, "being written": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLateWriter()
				ctx, cancel := context.WithCancel(t.Context())
				first := true
				w.client.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					if begun && first {
						first = false
						cancel()
						return true, nil, context.Canceled
					}
					return false, nil, nil
				})
				check.Must(t, w.WriteDevicesLater(w.claim, w.record))
				if !begun {
					cancel()
				}
				w.Run(ctx)
				if w.shown(t) != 1 {
					t.Error("nothing is written")
				}
			})
		})
	}
}

// TestWriteRefused: a write that the API server refuses, and one for a claim that is gone, keep no other, and are not repeated.
func TestWriteRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWriter()
		refuse := error(apierrors.NewInternalError(context.DeadlineExceeded))
		w.client.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return refuse != nil, nil, refuse
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx)
		check.Must(t, w.WriteDevicesLater(w.claim, w.record))
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.written() != 1 {
			t.Errorf("%d tries, want one", w.written())
		}
		refuse = nil
		check.Must(t, w.WriteDevicesLater(w.claim, w.record))
		synctest.Wait()
		if w.shown(t) != 1 {
			t.Error("the next try wrote nothing")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/kubeletplugin/nodeview"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
)

// TestServerIsAskedRarely: an API server that keeps no counters is not asked at each look whether it does by now, but at every tenth.
func TestServerIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const node = "node-1"
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		view, err := nodeview.New(client, node, 0, clock.RealClock{})
		check.Must(t, err)
		tries, keeps := 0, partition.Form("")
		f := &cluster{config: &Config{
			Node: node, Interval: time.Minute, ReadNode: view.Node, Kube: client, Recheck: notify.New(),
			CounterForm: func(context.Context) (partition.Form, error) { tries++; return keeps, nil },
			KeepsShares: func(context.Context) (bool, error) { return true, nil },
		}}
		for range 60 {
			check.Must(t, f.look(t.Context()))
			time.Sleep(f.config.Interval)
		}
		if tries < 5 || tries > 6 {
			t.Errorf("tried %d times in an hour", tries)
		}
		keeps = partition.FormSeparate
		time.Sleep(12 * f.config.Interval)
		check.Must(t, f.look(t.Context()))
		if f.surroundings.counters != keeps {
			t.Error("that it keeps them now is not noticed")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
}

// unlabelled keeps no labels, and refuses one pod.
func unlabelled(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	if p.Name == "odd" {
		return nil, errors.New("odd")
	}
	kept := p.DeepCopy()
	kept.Labels = nil
	return kept, nil
}

// TestFollow: what is there and what comes is kept as Keep has it, and found by namespace; the end of the context ends it.
func TestFollow(t *testing.T) {
	client := fake.NewClientset(pod("a", "there"))
	informer, err := New(client.CoreV1().Pods(metav1.NamespaceAll), Options{Client: client, Object: &corev1.Pod{}, Keep: unlabelled})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := Run(ctx, informer)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("nothing was read")
	}
	for _, p := range []*corev1.Pod{pod("a", "odd"), pod("a", "new"), pod("b", "other")} {
		if _, err := client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	err = wait.PollUntilContextTimeout(ctx, time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return len(informer.GetStore().ListKeys()) >= 3, nil
	})
	if err != nil {
		t.Fatalf("has %v: %v", informer.GetStore().ListKeys(), err)
	}
	found, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, "a")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, object := range found {
		if p, ok := object.(*corev1.Pod); ok {
			got[p.Name] = len(p.Labels)
		}
	}
	if diff := cmp.Diff(map[string]int{"there": 0, "new": 0}, got); diff != "" {
		t.Errorf("labels of the pods of a (-want +got):\n%s", diff)
	}
	cancel()
	stopped()
	if !informer.IsStopped() {
		t.Error("goes on after its context ended")
	}
}

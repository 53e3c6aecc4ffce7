// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/test/check"
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

// TestEach: an update that changed nothing of what is kept, as those of counts do, is no change.
func TestEach(t *testing.T) {
	calls := 0
	handler := Each(func() { calls++ })
	before := pod("a", "x")
	now := before.DeepCopy()
	now.ResourceVersion = "2"
	handler.OnUpdate(before, now)
	if calls != 0 || before.ResourceVersion != "" {
		t.Errorf("%d calls for another version; the copy of before has version %q", calls, before.ResourceVersion)
	}
	changed := now.DeepCopy()
	changed.Labels["app"] = "y"
	again := now.DeepCopy()
	again.UID = "made again"
	handler.OnUpdate(now, changed)
	handler.OnUpdate(now, again)
	handler.OnUpdate("no object", "no object")
	handler.OnAdd(now, false)
	handler.OnDelete(now)
	if calls != 5 {
		t.Errorf("%d calls, want 5", calls)
	}
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
	// The fake API server shows a watch only what was created after the watch began.
	check.Eventually(t, "a watch is open", func() bool { return informer.HasSynced() && informer.Current() })
	for _, p := range []*corev1.Pod{pod("a", "odd"), pod("a", "new"), pod("b", "other")} {
		if _, err := client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check.Eventually(t, "three pods are kept", func() bool { return len(informer.GetStore().ListKeys()) >= 3 })
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

// TestCurrent: copies count as old between two watches, and after the end.
func TestCurrent(t *testing.T) {
	client := fake.NewClientset()
	watches, reachable := make(chan *watch.FakeWatcher, 1), make(chan struct{}, 1)
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		select {
		case <-reachable:
			w := watch.NewFake()
			watches <- w
			return true, w, nil
		default:
			return true, nil, unix.ECONNREFUSED
		}
	})
	informer, err := New(client.CoreV1().Pods(metav1.NamespaceAll), Options{Client: client, Object: &corev1.Pod{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := Run(ctx, informer)
	becomes := func(want bool, when string) {
		t.Helper()
		check.Eventually(t, fmt.Sprintf("%s: current is %v", when, want), func() bool {
			return informer.HasSynced() && informer.Current() == want
		})
	}
	becomes(false, "read, with no watch yet")
	reachable <- struct{}{}
	becomes(true, "watched")
	(<-watches).Stop()
	becomes(false, "the watch ended, and the next one is refused")
	reachable <- struct{}{}
	becomes(true, "watched again")
	cancel()
	stopped()
	becomes(false, "stopped")
}

// streaming is an API server whose watches begin with all objects, as the test sends them.
type streaming struct{ watches chan *watch.FakeWatcher }

func (s streaming) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return nil, errors.New("this server streams lists")
}

func (s streaming) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if options.SendInitialEvents == nil || !*options.SendInitialEvents {
		return nil, errors.New("client-go opens no other watch here")
	}
	w := watch.NewFake()
	select {
	case s.watches <- w:
		return w, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestCurrentWhileRead: a watch that follows one which broke off sends what is there, and until it has sent all of it the copies are old.
func TestCurrentWhileRead(t *testing.T) {
	server := streaming{make(chan *watch.FakeWatcher)}
	informer, err := New(server, Options{Object: &corev1.Pod{}, Keep: unlabelled})
	check.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := Run(ctx, informer)
	defer func() { cancel(); stopped() }()
	// send sends a pod and then says that this is all.
	send := func(w *watch.FakeWatcher, name, podVersion, version string) {
		p := pod("a", name)
		p.ResourceVersion = podVersion
		w.Add(p)
		if informer.Current() {
			t.Errorf("current before all was sent, with the pods %v", informer.GetStore().ListKeys())
		}
		all := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		w.Action(watch.Bookmark, all)
		check.Eventually(t, "current with pod "+name, informer.Current)
		if _, there, err := informer.GetStore().GetByKey("a/" + name); !there || err != nil {
			t.Errorf("current without pod %s, but %v (%v)", name, informer.GetStore().ListKeys(), err)
		}
	}
	first := <-server.watches
	send(first, "first", "5", "10")
	first.Stop()
	second := <-server.watches
	send(second, "second", "15", "20")
}

// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// TestFindPod: a pod that is followed is not asked for; one that is not, or is another by now, is. Pods of other nodes are not followed.
func TestFindPod(t *testing.T) {
	pod := func(name, uid string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid), Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{NodeName: "node-1", HostUsers: new(false), Containers: []corev1.Container{{Name: "c"}}},
		}
	}
	kube := kubefake.NewClientset(pod("known", "uid-1"))
	p, err := newPods(kube, "node-1", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := p.watch(ctx)
	t.Cleanup(func() { cancel(); stopped() })
	if !cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced) {
		t.Fatal("the pods of the node were not read")
	}
	for _, action := range kube.Actions() {
		if list, ok := action.(clienttesting.ListAction); ok {
			if want := fields.OneTermEqualSelector("spec.nodeName", "node-1"); list.GetListRestrictions().Fields.String() != want.String() {
				t.Errorf("lists pods with %s, want %s", list.GetListRestrictions().Fields, want)
			}
		}
	}
	find := func(name, uid string) (found *corev1.Pod, asked int, err error) {
		kube.ClearActions()
		found, err = p.find(t.Context(), "team-a", &resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: name, UID: types.UID(uid),
		})
		for _, action := range kube.Actions() {
			if action.Matches("get", "pods") {
				asked++
			}
		}
		return found, asked, err
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "known", UID: "uid-1"}, Spec: corev1.PodSpec{HostUsers: new(false)},
	}
	if got, asked, err := find("known", "uid-1"); err != nil || asked > 0 || cmp.Diff(want, got) != "" {
		t.Errorf("a pod that is followed: asked %d times, %v (-want +got):\n%s", asked, err, cmp.Diff(want, got))
	}
	if got, asked, err := find("known", "uid-2"); err != nil || asked != 1 || got.UID != "uid-1" || got.Labels["app"] == "" {
		t.Errorf("a pod that is another one by now: asked %d times, %v, %v", asked, got, err)
	}
	if _, asked, err := find("unknown", "uid-3"); !apierrors.IsNotFound(err) || asked != 1 {
		t.Errorf("a pod that is gone: asked %d times, %v", asked, err)
	}
	away := errors.New("the API server is away")
	kube.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, away })
	if _, _, err := find("unknown", "uid-3"); !errors.Is(err, away) {
		t.Errorf("the API server is away: %v", err)
	}
	p.informer = nil
	if _, asked, err := find("known", "uid-1"); !errors.Is(err, away) || asked != 1 {
		t.Errorf("nothing is followed: asked %d times, %v", asked, err)
	}
}

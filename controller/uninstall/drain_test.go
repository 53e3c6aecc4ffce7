// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
)

// pagedClient asks for tenants' objects in small pages only.
type pagedClient struct {
	client.WithWatch
	reader client.Reader
}

func (c pagedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.reader.List(ctx, list, options...)
}

// held adds a claim with devices to a cluster, for the pod, or for a group of pods if that is nil.
func (w *installed) held(t *testing.T, name string, pod *corev1.Pod) {
	t.Helper()
	c := claim("team", name, []string{v1alpha1.DriverName}, []string{name})
	if pod != nil {
		pod.Namespace, pod.Name, pod.UID = "team", name, c.Status.ReservedFor[0].UID
		check.Must(t, w.Create(t.Context(), pod))
	} else if name == "group" {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}}
	}
	check.Must(t, w.Create(t.Context(), &c))
}

// notReady has the kubelet of a node stop.
func (w *installed) notReady(t *testing.T, name string) {
	t.Helper()
	var node corev1.Node
	check.Must(t, w.Get(t.Context(), client.ObjectKey{Name: name}, &node))
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	check.Must(t, w.Status().Update(t.Context(), &node))
}

// force uninstalls by force. The plugins follow each of its writes.
func (w *installed) force(t *testing.T) error {
	t.Helper()
	api := (&faults{world: w}).client(w.WithWatch)
	return Uninstall{
		Client:   pagedClient{api, large.Paged(t, api, reconciler.TenantPage)},
		Recorder: events.NewFakeRecorder(10), Clock: clock.RealClock{}, Namespace: ownNamespace, Force: true, Timeout: 5 * time.Minute,
	}.Run(t.Context())
}

// terminating is a pod that is being deleted.
func terminating(node string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
	pod.Finalizers = []string{"test/kept"}
	return pod
}

// TestForcedUninstallEnds: claims stay reserved for pods whose kubelet is away, for pods that are gone, and for what is no pod. A forced
// uninstall does not wait for them.
func TestForcedUninstallEnds(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, w *installed){
		"a pod of a node that is not ready": func(t *testing.T, w *installed) {
			t.Helper()
			w.notReady(t, "b")
			w.held(t, "down", terminating("b"))
		},
		"a pod of a node that is gone": func(t *testing.T, w *installed) {
			t.Helper()
			w.held(t, "lost", terminating("none"))
		},
		"a pod that is gone": func(t *testing.T, w *installed) {
			t.Helper()
			w.held(t, "gone", nil)
		},
		"a group of pods": func(t *testing.T, w *installed) {
			t.Helper()
			w.held(t, "group", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := install(t, nil)
				hold(t, w)
				var pods corev1.PodList
				check.Must(t, w.List(t.Context(), &pods))
				for i := range pods.Items {
					check.Must(t, w.Delete(t.Context(), &pods.Items[i]))
				}
				before := time.Now()
				check.Must(t, w.force(t))
				if took := time.Since(before); took > 2*patience {
					t.Errorf("it took %s", took)
				}
				if left := w.left(t); len(left) > 0 {
					t.Errorf("it leaves %q", left)
				}
			})
		})
	}
}

// TestForcedUninstallWaits: a pod that its kubelet is ending is waited for, and when that takes too long the error names it.
func TestForcedUninstallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := install(t, nil)
		w.held(t, "ending", terminating("a"))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "ending"}}
		check.Must(t, w.Delete(t.Context(), pod))
		before := time.Now()
		err := w.force(t)
		if err == nil || !strings.Contains(err.Error(), "claim team/ending pod team/ending") || time.Since(before) != 5*time.Minute {
			t.Errorf("after %s: %v", time.Since(before), err)
		}
	})
}

// TestForcedUninstallOfRefusedPods: a pod that the API server does not evict, for whatever reason, is deleted after a while.
func TestForcedUninstallOfRefusedPods(t *testing.T) {
	for name, refusal := range map[string]metav1.Status{
		"a budget": {Code: 429, Reason: metav1.StatusReasonTooManyRequests},
		// As the registry of pods says it, without a reason.
		"two budgets": {Code: 500, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."},
		"a webhook":   {Code: 403, Reason: metav1.StatusReasonForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := install(t, nil)
				w.held(t, "refused", &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}})
				w.WithWatch = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
					SubResourceCreate: func(
						context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption,
					) error {
						return &apierrors.StatusError{ErrStatus: refusal}
					},
					Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
						if _, pod := o.(*corev1.Pod); pod { // its claim goes with it
							c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "refused"}}
							check.Must(t, w.Delete(ctx, c))
						}
						return c.Delete(ctx, o, options...)
					},
				})
				before := time.Now()
				check.Must(t, w.force(t))
				if took := time.Since(before); took < patience || took > 2*patience {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// TestForcedUninstallOfPodsThatHang: while evictions get no answer, as with a webhook for them that hangs, pods are deleted as soon as
// those that are refused: the time of the uninstall is not spent waiting for one after the other.
func TestForcedUninstallOfPodsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := install(t, nil)
		const pods = 9
		for i := range pods {
			w.held(t, fmt.Sprint("hangs-", i), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}})
		}
		w.WithWatch = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			SubResourceCreate: func(
				ctx context.Context, _ client.Client, _ string, _, _ client.Object, _ ...client.SubResourceCreateOption,
			) error {
				select {
				case <-ctx.Done():
					return fmt.Errorf("post: %w", ctx.Err())
				case <-time.After(10 * time.Second):
					return apierrors.NewInternalError(errors.New("failed calling webhook"))
				}
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
				if _, pod := o.(*corev1.Pod); pod { // its claim goes with it
					claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: o.GetName()}}
					check.Must(t, c.Delete(ctx, claim))
				}
				return c.Delete(ctx, o, options...)
			},
		})
		before := time.Now()
		check.Must(t, w.force(t))
		if took := time.Since(before); took < patience || took > 2*patience {
			t.Errorf("it took %s", took)
		}
	})
}

// TestForcedUninstallOfReplacedPods: a Deployment makes another pod of each that is evicted, whose claim is of a class of the
// administrator's own, which stays. It gets no device once the plugins publish none.
func TestForcedUninstallOfReplacedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := install(t, nil)
		const enough = 5
		api, made := w.WithWatch, 0
		scheduled := func() {
			made++
			w.held(t, fmt.Sprint("replica-", made), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}})
		}
		scheduled()
		w.WithWatch = interceptor.NewClient(api, interceptor.Funcs{
			SubResourceCreate: func(
				ctx context.Context, _ client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption,
			) error {
				c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: o.GetName()}}
				check.Must(t, errors.Join(api.Delete(ctx, o), api.Delete(ctx, c)))
				var a v1alpha1.AcceleratorNode
				check.Must(t, api.Get(ctx, client.ObjectKey{Name: "a"}, &a))
				if a.Annotations[v1alpha1.RetireAnnotation] == "" && made < enough {
					scheduled()
				}
				return nil
			},
		})
		if check.Must(t, w.force(t)); made >= enough {
			t.Errorf("%d pods had to go", made)
		}
	})
}

// member is a pod of a group, with a claim by name or by the group's template.
func (w *installed) member(t *testing.T, name, group, claim string, byTemplate bool) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}}
	pod.Spec = corev1.PodSpec{
		NodeName: "a", SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
	}
	if byTemplate {
		pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
	}
	check.Must(t, w.Create(t.Context(), pod))
}

// TestForcedUninstallOfSharedClaims: all pods of a claim end, also those that have it by their group, and no others. The plugin reports the
// claim as prepared until then.
func TestForcedUninstallOfSharedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := install(t, nil)
		shared := claim("team", "shared", []string{v1alpha1.DriverName}, []string{"one", "two", "three", "gone"})
		check.Must(t, w.Create(t.Context(), &shared))
		for _, name := range []string{"one", "two", "three"} {
			meta := metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}
			check.Must(t, w.Create(t.Context(), &corev1.Pod{ObjectMeta: meta}))
		}
		w.held(t, "group", nil)
		w.member(t, "first", "g", "group", false)
		w.member(t, "second", "g", "group", true)
		w.member(t, "other-claim", "g", "theirs", false)
		w.member(t, "other-group", "h", "group", false)
		prepared := func(n int32) {
			var a v1alpha1.AcceleratorNode
			check.Must(t, w.Get(t.Context(), client.ObjectKey{Name: "a"}, &a))
			a.Status.PreparedClaims = n
			check.Must(t, w.Update(t.Context(), &a))
		}
		prepared(2)
		api, ended := w.WithWatch, 0
		w.WithWatch = interceptor.NewClient(api, interceptor.Funcs{
			SubResourceCreate: func(
				ctx context.Context, _ client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption,
			) error {
				if ended++; ended == 5 {
					prepared(0)
				}
				return api.Delete(ctx, o)
			},
		})
		check.Must(t, w.force(t))
		var pods corev1.PodList
		check.Must(t, w.List(t.Context(), &pods))
		var names []string
		for i := range pods.Items {
			names = append(names, pods.Items[i].Name)
		}
		if diff := cmp.Diff([]string{"other-claim", "other-group"}, names); diff != "" {
			t.Errorf("pods that stay (-want +got):\n%s", diff)
		}
		if left := w.left(t); len(left) > 0 {
			t.Errorf("it leaves %q", left)
		}
	})
}

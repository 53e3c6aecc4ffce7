// SPDX-License-Identifier: Apache-2.0

package trustpolicies

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// policy looks at no signature of the images.
func policy(t *testing.T, name string, namespaces []string, images ...string) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.TrustPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindTrustPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: images, Namespaces: namespaces},
	})
	check.Must(t, err)
	return &unstructured.Unstructured{Object: content}
}

func reader(t *testing.T, objects ...runtime.Object) (*Reader, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.GroupVersion.WithResource(resource): "TrustPolicyList",
	}, objects...)
	r, err := NewReader(client, nil, nil)
	check.Must(t, err)
	return r, client
}

// named returns the names of the policies that are for an image.
func (r *Reader) named(t *testing.T, image, namespace string) (names []string) {
	t.Helper()
	ref, err := artifact.ParseReference(image)
	check.Must(t, err)
	policies, versions, err := r.For(t.Context(), ref, namespace)
	check.Must(t, err)
	for i, p := range policies {
		if versions[i].Name != p.Name() || versions[i].UID != types.UID("uid-"+p.Name()) || versions[i].Generation != p.Generation() {
			t.Errorf("policy %s is of version %+v", p.Name(), versions[i])
		}
		names = append(names, p.Name())
	}
	return names
}

// TestFor: only the policies for the repository and the namespace are returned, by name, whether they are followed or asked for.
func TestFor(t *testing.T) {
	r, client := reader(t, policy(t, "z", nil, "registry.example/a/*"), policy(t, "a", []string{"team-a"}, "registry.example/**"),
		policy(t, "other", nil, "registry.example/b/*"))
	answers := func(what string) {
		t.Helper()
		for namespace, want := range map[string][]string{"team-a": {"a", "z"}, "team-b": {"z"}, "": {"z"}} {
			if diff := cmp.Diff(want, r.named(t, "registry.example:443/a/x:v1", namespace)); diff != "" {
				t.Errorf("%s, namespace %q (-want +got):\n%s", what, namespace, diff)
			}
		}
		if got := r.named(t, "quay.io/x", "team-a"); got != nil {
			t.Errorf("%s: another registry: %v", what, got)
		}
	}
	answers("asked for")
	if r.Synced() {
		t.Error("synced before it watches")
	}
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
	ref, err := artifact.ParseReference("registry.example/a/x")
	check.Must(t, err)
	if _, _, err := r.For(t.Context(), ref, ""); err == nil {
		t.Error("an API server that does not answer has no policies")
	}
	client.ReactionChain = client.ReactionChain[1:]
	ctx, cancel := context.WithCancel(t.Context())
	told := notify.New()
	r.OnChange(told.Send)
	stopped := r.Watch(ctx)
	check.Eventually(t, "synced", r.Synced)
	check.Eventually(t, "a watch is open", r.informer.Current) // some time after all were listed
	client.ClearActions()
	answers("followed")
	if asked := client.Actions(); len(asked) > 0 {
		t.Errorf("the API server was asked: %v", asked)
	}
	check.Must(t, client.Tracker().Add(policy(t, "m", nil, "**")))
	check.Eventually(t, "a new policy", func() bool { return slices.Contains(r.named(t, "quay.io/x", ""), "m") })
	cancel()
	stopped()
}

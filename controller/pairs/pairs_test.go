// SPDX-License-Identifier: Apache-2.0

package pairs_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pairs"
)

// TestPairs: each pair is listed by scope, and its objects are read by key.
func TestPairs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	own, ofCluster := metav1.ObjectMeta{Namespace: "team", Name: "own"}, metav1.ObjectMeta{Name: "all"}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1alpha1.DevicePreset{ObjectMeta: own}, &v1alpha1.ClusterDevicePreset{ObjectMeta: ofCluster},
		&v1alpha1.FPGABitstream{ObjectMeta: own}, &v1alpha1.ClusterFPGABitstream{ObjectMeta: ofCluster},
		&v1alpha1.GPUKernelCache{ObjectMeta: own}, &v1alpha1.ClusterGPUKernelCache{ObjectMeta: ofCluster},
	).Build()
	for scope, want := range map[pairs.Scope][]string{
		pairs.Both: {"team/own", "/all"}, pairs.OfNamespaces: {"team/own"}, pairs.OfCluster: {"/all"},
	} {
		presets, err1 := pairs.Presets(t.Context(), api, scope)
		bitstreams, err2 := pairs.Bitstreams(t.Context(), api, scope)
		caches, err3 := pairs.KernelCaches(t.Context(), api, scope)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, p := range presets {
			got["presets"] = append(got["presets"], p.Key().String())
		}
		for _, b := range bitstreams {
			got["bitstreams"] = append(got["bitstreams"], b.Key().String())
		}
		for _, c := range caches {
			got["caches"] = append(got["caches"], c.Key().String())
		}
		for what, keys := range got {
			if !slices.Equal(keys, want) {
				t.Errorf("%s of scope %d: %q, want %q", what, scope, keys, want)
			}
		}
	}
	for _, key := range []types.NamespacedName{{Namespace: "team", Name: "own"}, {Name: "all"}} {
		p, err1 := pairs.Preset(t.Context(), api, key)
		b, err2 := pairs.Bitstream(t.Context(), api, key)
		c, err3 := pairs.KernelCache(t.Context(), api, key)
		if err := errors.Join(err1, err2, err3); err != nil || p.Key() != key || b.Key() != key || c.Key() != key {
			t.Errorf("of %s: %s, %s, %s, %v", key, p, b, c, err)
		}
	}
	if _, err := pairs.Preset(t.Context(), api, types.NamespacedName{Name: "own"}); !apierrors.IsNotFound(err) {
		t.Errorf("one that is not there: %v", err)
	}
	broken := interceptor.NewClient(api, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("away")
		},
	})
	if _, err := pairs.KernelCaches(t.Context(), broken, pairs.Both); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("from an API server that is away: %v", err)
	}
}

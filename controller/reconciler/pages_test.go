// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/test/seed"
)

// paged is an API server with seven objects, which may forget the pages of a list.
type paged struct {
	client.Reader
	forgets   func() bool
	forgotten int
}

func (p *paged) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	if o.Continue != "" && p.forgets() {
		p.forgotten++
		return apierrors.NewResourceExpired("the provided continue parameter is too old")
	}
	first, _ := strconv.Atoi(o.Continue)
	pods, _ := list.(*corev1.PodList)
	for i := first; i < min(first+int(o.Limit), 7); i++ {
		pods.Items = append(pods.Items, corev1.Pod{})
		pods.Items[len(pods.Items)-1].Name = strconv.Itoa(i)
	}
	if end := first + int(o.Limit); end < 7 {
		pods.Continue = strconv.Itoa(end)
	}
	return nil
}

// TestPages: a list is there once and as a whole, or there is an error.
func TestPages(t *testing.T) {
	random := seed.New(t)
	whole := 0
	for range 200 {
		p, size := &paged{forgets: func() bool { return random.IntN(5) == 0 }}, int64(1+random.IntN(8))
		var got []string
		listing := Listing{Reader: p, List: &corev1.PodList{}, Page: size}
		err := listing.Read(t.Context(), func() { got = nil }, func(o runtime.Object) error {
			pod, _ := o.(*corev1.Pod)
			got = append(got, pod.Name)
			return nil
		})
		switch {
		case err == nil && !slices.Equal(got, []string{"0", "1", "2", "3", "4", "5", "6"}):
			t.Fatalf("pages of %d, forgotten %d times: %q", size, p.forgotten, got)
		case err == nil && p.forgotten > 0:
			whole++
		case err != nil && !apierrors.IsResourceExpired(err):
			t.Fatal(err)
		}
	}
	if whole == 0 {
		t.Error("no list was read again")
	}
	enough := errors.New("enough")
	listing := Listing{Reader: &paged{}, List: &corev1.PodList{}, Page: 2}
	err := listing.Read(t.Context(), func() {}, func(runtime.Object) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("error %v, want that of the caller", err)
	}
}

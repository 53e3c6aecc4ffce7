// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// TestWatches: the controller may list and watch whatever a reconciler of the table watches. That the chart gives these rights is tested
// by TestRights.
func TestWatches(t *testing.T) {
	for _, test := range []struct {
		name        string
		withVolumes bool
		rights      map[string]map[string]string
	}{
		{"default", false, plainRights()},
		{"volumes of caches", true, volumesRights()},
	} {
		t.Run(test.name, func(t *testing.T) {
			scheme, err := reconciler.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			services := reconciler.Services{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clock.RealClock{}}
			rows := controller.Table(controller.Parts{
				Services: services, Options: controller.Options{NodePartitions: true},
				Policies: trustpolicies.NewReader(services.Client, nil, nil),
				Volumes:  volumes.NewPlanner(services, volumes.Options{Enabled: test.withVolumes}),
			})
			for _, row := range rows {
				for _, q := range row.Queues {
					for _, w := range q.Watches {
						kind, err := apiutil.GVKForObject(w.Object, scheme)
						if err != nil {
							t.Fatal(err)
						}
						resource, _ := meta.UnsafeGuessKindToResource(kind)
						role := "ClusterRole fettle-controller"
						if resource.Resource == "pods" { // the cache has those of the controller's namespace, see stacks.Cached
							role = "Role fettle-controller"
						}
						if !mayWatch(test.rights[role], resource.Group+"/"+resource.Resource) {
							t.Errorf("the reconciler of %s watches %s, which the controller may not", row.Name, resource)
						}
					}
				}
			}
		})
	}
}

// mayWatch says whether a role lets its holder list and watch a resource, all objects or those of some names.
func mayWatch(rights map[string]string, resource string) bool {
	for of, verbs := range rights {
		words := strings.Fields(verbs)
		if (of == resource || strings.HasPrefix(of, resource+" [")) && slices.Contains(words, "list") && slices.Contains(words, "watch") {
			return true
		}
	}
	return false
}

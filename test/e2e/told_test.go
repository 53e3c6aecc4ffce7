// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// After each spec: nothing that another tenant may read has a tenant's name.
var _ = JustAfterEach(func(ctx SpecContext) {
	if !CurrentSpecReport().Failed() {
		Expect(namedToOthers(ctx)).To(BeEmpty(), "what names a tenant to others")
	}
}, NodeTimeout(10*time.Minute)) // on the slowest machine: how slow this one is is not known yet where this is declared

// tenantPrefix begins the names of the specs' namespaces. The API server ends them with something that is nowhere else.
const tenantPrefix = "e2e-"

// namedToOthers returns where the name of a tenant's namespace stands before the eyes of others: in slices, and in Events and statuses of
// another tenant's namespace. Of a claim's status it reads what drivers write: the rest is the scheduler's, which copies the class there.
func namedToOthers(ctx context.Context) []string {
	GinkgoHelper()
	namespaces, err := h.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	tenants := slices.DeleteFunc(namespaces.Items, func(ns corev1.Namespace) bool { return !strings.HasPrefix(ns.Name, tenantPrefix) })
	var out []string
	look := func(namespace, what string, value any) {
		text, err := json.Marshal(value)
		Expect(err).NotTo(HaveOccurred())
		for i := range tenants {
			if name := tenants[i].Name; name != namespace && strings.Contains(string(text), name) {
				out = append(out, fmt.Sprintf("%s names %s: %s", what, name, text))
			}
		}
	}
	published, err := h.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i := range published.Items {
		if s := &published.Items[i]; s.Spec.Driver == v1alpha1.DriverName {
			look("", "slice "+s.Name, s)
		}
	}
	kinds := namespacedKinds()
	for i := range tenants {
		ns := tenants[i].Name
		events, err := h.Kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i := range events.Items {
			look(ns, "Event "+ns+"/"+events.Items[i].Name, events.Items[i].Message)
		}
		claims, err := h.Kube.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i := range claims.Items {
			look(ns, "claim "+ns+"/"+claims.Items[i].Name, claims.Items[i].Status.Devices)
		}
		for _, kind := range kinds {
			objects, err := h.Dynamic.Resource(kind).Namespace(ns).List(ctx, metav1.ListOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(objects.EachListItem(func(o runtime.Object) error {
				u := o.(*unstructured.Unstructured) //nolint:forcetypeassert // a list of the dynamic client has nothing else
				look(ns, kind.Resource+" "+ns+"/"+u.GetName(), u.Object["status"])
				return nil
			})).To(Succeed())
		}
	}
	return out
}

// namespacedKinds are our kinds that tenants have in their namespaces.
func namespacedKinds() []schema.GroupVersionResource {
	GinkgoHelper()
	list, err := h.Kube.Discovery().ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	Expect(err).NotTo(HaveOccurred())
	var out []schema.GroupVersionResource
	for i := range list.APIResources {
		if r := &list.APIResources[i]; r.Namespaced && !strings.Contains(r.Name, "/") {
			out = append(out, v1alpha1.GroupVersion.WithResource(r.Name))
		}
	}
	Expect(out).NotTo(BeEmpty())
	return out
}

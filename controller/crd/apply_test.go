// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"context"
	"testing"
	"testing/synctest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/test/check"
)

// TestBeingDeleted: a definition that an uninstall is deleting still says that it is established, and goes with all that is written to it.
// It is neither upgraded nor taken for one that stays.
func TestBeingDeleted(t *testing.T) {
	all, err := crd.Load(crds.Files)
	check.Must(t, err)
	synctest.Test(t, func(t *testing.T) {
		live := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
			Name: all[0].Name, DeletionTimestamp: new(metav1.Now()), Finalizers: []string{"customresourcecleanup.apiextensions.k8s.io"},
		}}
		live.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
		}
		scheme := runtime.NewScheme()
		check.Must(t, apiextensionsv1.AddToScheme(scheme))
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
				t.Error("it is written")
				return nil
			},
		}).Build()
		check.WantErr(t, crd.Apply(t.Context(), c, all[0], "test"), nil, all[0].Name, "being deleted")
		check.WantErr(t, crd.WaitEstablished(t.Context(), c, all[0].Name), nil, all[0].Name)
	})
}

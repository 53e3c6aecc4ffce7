// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// TestAPI gives every spec that Validate is tested with to a real API server: what one refuses, the other has to.
func TestAPI(t *testing.T) { testAgreement(t, nil) }

// TestOlderAPI is the same with the oldest API that is supported.
func TestOlderAPI(t *testing.T) { testAgreement(t, map[string]string{"emulated-version": "1.34"}) }

func testAgreement(t *testing.T, flags map[string]string) {
	c := server(t, flags, "devicepresets.fettle.dev", "clusterdevicepresets.fettle.dev", "trustpolicies.fettle.dev",
		"partitionpolicies.fettle.dev", "acceleratorstacks.fettle.dev")
	t.Run("trust", func(t *testing.T) { testTrustAgreement(t, c) })
	t.Run("partition", func(t *testing.T) { testPartitionAgreement(t, c) })
	t.Run("stack", func(t *testing.T) { testStackAgreement(t, c) })
	for _, p := range presetCases() {
		for kind := range p.kinds() {
			t.Run(kind+"/"+p.name, func(t *testing.T) {
				err := c.Create(t.Context(), preset(t, kind, p.spec), client.DryRunAll)
				if err != nil && !apierrors.IsInvalid(err) {
					t.Fatal(err)
				}
				faults := validate(t, kind, p.spec)
				refused, faulty := err != nil, len(faults) > 0
				if want := p.strict != "" || faulty && p.lenient == ""; refused != want {
					t.Errorf("the API server says %v, Validate %v; expected to be different: %q", err, faults.ToAggregate(), p.strict+p.lenient)
				}
			})
		}
	}
}

// server serves some of the definitions.
func server(t *testing.T, flags map[string]string, names ...string) client.Client {
	t.Helper()
	config := apitest.Start(t, flags)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	definitions, err := crd.Load(crds.Files)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range definitions {
		if !slices.Contains(names, d.Name) {
			continue
		}
		if err := crd.Apply(t.Context(), c, d, "test"); err != nil {
			t.Fatal(err)
		}
		check.Eventually(t, d.Name+" is served", func() bool {
			_, err := c.RESTMapper().KindFor(schema.ParseGroupResource(d.Name).WithVersion(d.Versions[0]))
			return err == nil
		})
	}
	return c
}

func preset(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal([]byte(spec), &content); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetName("p")
	if kind == "DevicePreset" {
		u.SetNamespace("default")
	}
	return u
}

// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	good   = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"Exclusive"}}`
	typing = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strateggy":"Exclusive"}}`
	closed = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowedNamespaces":["a"]}}`
	atData = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/data"}`
	atProc = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/proc"}`
)

func entry(config resourceapi.DeviceConfiguration, requests ...string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: config}
}

func TestValidate(t *testing.T) {
	ours := func(parameters string) resourceapi.DeviceConfiguration {
		return objects.Opaque(v1alpha1.DriverName, parameters)
	}
	claim := func(requests []resourceapi.DeviceRequest, entries ...resourceapi.DeviceClaimConfiguration) *resourceapi.ResourceClaim {
		c := claimOf(requests...)
		c.Spec.Devices.Config = entries
		return c
	}
	template := func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: c.Spec}}
	}
	several := objects.Request("many", "host.fettle.dev")
	several.Exactly.Count = 2
	either := firstAvailable("either", "host.fettle.dev", "host.fettle.dev")
	either.FirstAvailable[1].Count = 3
	parts := func(nvidia string) *v1alpha1.PartitionPolicy {
		p := &v1alpha1.PartitionPolicy{}
		if err := yaml.UnmarshalStrict([]byte("spec: {devices: {nvidia: "+nvidia+"}}"), p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	stack := func(engine string) *v1alpha1.AcceleratorStack {
		s := &v1alpha1.AcceleratorStack{}
		s.Spec.Driver.Engine = v1alpha1.DriverEngine(engine)
		return s
	}
	trusting := func(pem string) *v1alpha1.TrustPolicy {
		p := &v1alpha1.TrustPolicy{}
		p.Spec.Images = []string{"registry.example/**"}
		p.Spec.Authorities = []v1alpha1.TrustAuthority{{Name: "team", Key: &v1alpha1.TrustKey{PEM: pem}}}
		return p
	}
	for _, tc := range []struct {
		name   string
		object runtime.Object
		want   []string
	}{
		{name: "trust policy with a key that is none", object: trusting("x"), want: []string{"spec.authorities[0].key.pem"}},
		{name: "stack", object: stack("Host")},
		{name: "stack without its operator", object: stack("External"), want: []string{"spec.driver.external"}},
		{name: "no config", object: claim(nil)},
		{name: "another kind of object", object: &corev1.Pod{}},
		{name: "good", object: claim(nil, entry(ours(good)))},
		{name: "another driver", object: claim(nil, entry(objects.Opaque("gpu.example.com", `{]`)), entry(resourceapi.DeviceConfiguration{}))},
		{
			name: "claim", object: claim(nil, entry(ours(good)), entry(ours(typing))),
			want: []string{"spec.devices.config[1].opaque.parameters.sharing.strateggy"},
		},
		{
			name: "template, all faults", object: template(claim(nil, entry(ours(typing)), entry(ours(closed)), entry(ours(atProc)))),
			want: []string{
				"spec.spec.devices.config[0].opaque.parameters.sharing.strateggy",
				"spec.spec.devices.config[1].opaque.parameters.policy",
				"spec.spec.devices.config[2].opaque.parameters.mountPath",
			},
		},
		{name: "class with a policy", object: classOf("c", ours(closed))},
		{
			name: "class", object: classOf("c", objects.Opaque("gpu.example.com", `[]`), ours(typing)),
			want: []string{"spec.config[1].opaque.parameters.sharing.strateggy"},
		},
		{
			name:   "11 KiB",
			object: claim(nil, entry(ours(strings.Replace(good, "Exclusive", strings.Repeat("x", 11<<10), 1)))),
			want:   []string{"spec.devices.config[0].opaque.parameters"},
		},
		{name: "policy for partitions", object: parts(`{mig: {mode: Dynamic}}`)},
		{
			name: "a file of mig-parted",
			object: parts(`{mig: {mode: MigParted, migParted: {config: small, document: "version: v1\nmig-configs: {large: [{devices: all, ` +
				`mig-enabled: false}]}"}}}`),
			want: []string{"spec.devices.nvidia.mig.migParted.config"},
		},
		{
			name:   "an unknown field of a file of mig-parted",
			object: parts(`{mig: {mode: MigParted, migParted: {config: a, document: "version: v1\ncolour: red\nmig-configs: {a: []}"}}}`),
			want:   []string{"spec.devices.nvidia.mig.migParted.document"},
		},
		{
			name: "a rule of the CRD", object: parts(`{mig: {mode: Static}}`), want: []string{"spec.devices.nvidia.mig.layout"},
		},
		{
			name: "one path for several devices",
			object: claim([]resourceapi.DeviceRequest{objects.Request("one", "host.fettle.dev"), several, either},
				entry(ours(atData), "one"), entry(ours(atData), "many"), entry(ours(atData), "either/alt-1"), entry(ours(atData)),
				entry(ours(atData), "either"), entry(ours(atData), "either/alt-0"), entry(ours(atData), "absent")),
			want: []string{
				"spec.devices.config[1].opaque.parameters.mountPath",
				"spec.devices.config[2].opaque.parameters.mountPath",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, fault := range Validate(tc.object) {
				got = append(got, fault.Field)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong fields (-want +got):\n%s", diff)
			}
		})
	}
}

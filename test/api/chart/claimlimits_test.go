// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testClaimLimits: a claim or template that names another class, or asks for more devices than its namespace may in one, is refused.
func testClaimLimits(t *testing.T, server *apiServer) {
	server.runHelm(t, "upgrade", "fettle", chartDir, "--reuse-values", `--set-json=claimLimits=[`+
		`{"name":"classes","namespaceSelector":{"matchLabels":{"limit":"yes"}},"deviceClasses":["a","b"]},`+
		`{"name":"devices","namespaceSelector":{"matchLabels":{"limit":"yes"}},"maxDevices":4}]`)
	for _, n := range []*corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "limited", Labels: map[string]string{"limit": "yes", resourcev1.DRAAdminNamespaceLabelKey: "true"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "unlimited"}},
	} {
		if _, err := server.clients.CoreV1().Namespaces().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const classes, devices = "claims of this namespace may use only these DeviceClasses: a, b", "may ask for at most 4 devices"
	exactly := func(class string, count int64) resourcev1.DeviceRequest {
		return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, Count: count}}
	}
	all, watch := exactly("a", 0), exactly("c", 0)
	all.Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
	watch.Exactly.AllocationMode, watch.Exactly.AdminAccess = resourcev1.DeviceAllocationModeAll, new(true)
	firstOf := func(requests ...resourcev1.DeviceRequest) resourcev1.DeviceRequest {
		var first []resourcev1.DeviceSubRequest
		for i, r := range requests {
			first = append(first, resourcev1.DeviceSubRequest{
				Name: string(rune('a' + i)), DeviceClassName: r.Exactly.DeviceClassName,
				AllocationMode: r.Exactly.AllocationMode, Count: r.Exactly.Count,
			})
		}
		return resourcev1.DeviceRequest{FirstAvailable: first}
	}
	tests := map[string]struct {
		requests []resourcev1.DeviceRequest
		want     string
	}{
		"one, by default":              {[]resourcev1.DeviceRequest{exactly("a", 0)}, ""},
		"all that it may":              {[]resourcev1.DeviceRequest{exactly("a", 2), exactly("b", 2)}, ""},
		"one too many":                 {[]resourcev1.DeviceRequest{exactly("a", 2), exactly("b", 3)}, devices},
		"every device":                 {[]resourcev1.DeviceRequest{all}, devices},
		"another class":                {[]resourcev1.DeviceRequest{exactly("a", 1), exactly("c", 1)}, classes},
		"the largest choice":           {[]resourcev1.DeviceRequest{firstOf(exactly("a", 1), exactly("b", 4))}, ""},
		"a choice that is too large":   {[]resourcev1.DeviceRequest{firstOf(exactly("a", 1), exactly("b", 3)), exactly("a", 2)}, devices},
		"every device, as a choice":    {[]resourcev1.DeviceRequest{firstOf(exactly("a", 1), all)}, devices},
		"another class, as a choice":   {[]resourcev1.DeviceRequest{firstOf(exactly("a", 1), exactly("c", 1))}, classes},
		"access for an administrator":  {[]resourcev1.DeviceRequest{watch}, ""},
		"an administrator's and a lot": {[]resourcev1.DeviceRequest{watch, exactly("a", 5)}, devices},
	}
	try := func(ctx context.Context, namespace string, requests []resourcev1.DeviceRequest, template bool) error {
		spec := resourcev1.ResourceClaimSpec{}
		for i, r := range requests {
			r.Name = string(rune('a' + i))
			spec.Devices.Requests = append(spec.Devices.Requests, r)
		}
		dry, meta := metav1.CreateOptions{DryRun: []string{"All"}}, metav1.ObjectMeta{Name: "tried"}
		if template {
			_, err := server.clients.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourcev1.ResourceClaimTemplate{
				ObjectMeta: meta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec},
			}, dry)
			return err
		}
		_, err := server.clients.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: spec}, dry)
		return err
	}
	for name, test := range tests {
		for _, template := range []bool{false, true} {
			eventually(t, func(ctx context.Context) error {
				err := try(ctx, "limited", test.requests, template)
				if test.want == "" {
					return err
				}
				return refused(err, test.want)
			})
			if watched := test.requests[0].Exactly; watched == watch.Exactly {
				continue // only a namespace with the label may do that
			}
			if err := try(t.Context(), "unlimited", test.requests, template); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

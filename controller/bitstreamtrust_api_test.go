// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
)

// testBitstreamTrust: a policy counts for the bitstreams of its repositories as soon as it comes, changes or goes, and the status keeps who
// was asked.
func (c cluster) testBitstreamTrust(t *testing.T) {
	key := signed.NewKey(t)
	pushed := c.registry.Push(t, "signed/nlb0", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbs(t, shell)})
	d, err := artifact.ParseDigest(pushed.Digest)
	if err != nil {
		t.Fatal(err)
	}
	object := own("signed", c.registry.Host+"/signed/nlb0@"+d.String()) // which is resolved again only for a reason
	expect := func(want string, result v1alpha1.VerdictResult) {
		t.Helper()
		apitest.Eventually(t, func() string {
			if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				return err.Error()
			}
			got := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionVerified)
			if got == nil || string(got.Status)+" "+got.Reason != want {
				return fmt.Sprintf("Verified is %+v, want %s", got, want)
			}
			v := object.Status.Verification
			switch {
			case result == "" && v != nil:
				return fmt.Sprintf("there is a verdict: %+v", v)
			case result == "":
				return ""
			case v == nil || v.Result != result || v.Digest != d.String() || len(v.Policies) != 1 || v.Policies[0].Name != "bitstreams":
				return fmt.Sprintf("verdict %+v, want %s of %s", v, result, d)
			}
			return ""
		})
	}
	c.create(t, object)
	expect("Unknown NoTrustPolicy", "")
	policy := c.policyFor(t, "bitstreams", "signed/*", key)
	c.create(t, policy)
	expect("False Refused", v1alpha1.VerdictRefused)
	c.images.SignV2(t, "signed/nlb0", d, key)
	c.edit(t, policy, func() { policy.Spec.Authorities = authorities(t, signed.NewKey(t), key) })
	expect("True Verified", v1alpha1.VerdictVerified)
	c.wantRow(t, "namespaces/"+team+"/fpgabitstreams/signed", map[string]string{"Resolved": "True", "Verified": "True"})
	if err := c.client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	expect("Unknown NoTrustPolicy", "")
}

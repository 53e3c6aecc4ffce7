// SPDX-License-Identifier: Apache-2.0

package sharing_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/sharing"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/seed"
)

// choices are what a class or a claim may say of strategies.
func choices() []string {
	out := []string{"", `{}`, `{"strategy":"Exclusive"}`, `{"strategy":"TimeSlicing"}`, `{"timeSlicing":{"interval":"Long"}}`}
	for _, interval := range []v1alpha1.TimeSliceInterval{
		v1alpha1.IntervalDefault, v1alpha1.IntervalShort, v1alpha1.IntervalMedium, v1alpha1.IntervalLong,
	} {
		out = append(out, fmt.Sprintf(`{"strategy":"TimeSlicing","timeSlicing":{"interval":%q}}`, interval))
	}
	return out
}

// ofTenant is a claim of one or two shares whose class and claim chose something.
func ofTenant(r *rand.Rand, uid, namespace string) *resourceapi.ResourceClaim {
	var results []nodefixture.APIResult
	for i := range 1 + r.IntN(2) {
		share := nodefixture.Result(fmt.Sprint("r", i), device.KindGPU, "h100")
		share.ShareID = new(types.UID(fmt.Sprint(uid, "-", i)))
		results = append(results, share)
	}
	c := nodefixture.Allocated(uid, results...)
	c.Namespace, c.Name = namespace, "secret-name-of-"+uid
	for _, source := range []resourceapi.AllocationConfigSource{
		resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim,
	} {
		if text := choices()[r.IntN(len(choices()))]; text != "" {
			nodefixture.Configured(c, source, `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":`+text+`}`)
		}
	}
	return c
}

// take prepares a claim as far as others can be in its way: its configuration, its steps and its devices.
func take(t *testing.T, f *sharing.Feature, records *record.Store, c *resourceapi.ResourceClaim) error {
	t.Helper()
	h100 := machine(t)["h100"]
	a, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	if err != nil {
		return err
	}
	r := &record.Record{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), BootID: "boot", Phase: record.Prepared}
	for i := range a.Results {
		result := &a.Results[i]
		f.Settle(result, h100)
		r.Devices = append(r.Devices, record.Device{
			Request: result.Request, Pool: result.Pool, Name: result.Device, ShareID: string(*result.ShareID),
			Effect: result.Effect(), Setting: result.Setting(),
		})
	}
	find := func(*claim.Result) (device.Device, bool) { return h100, true }
	if _, err := f.Plan(t.Context(), prepare.Request{Claim: c, Allocation: a, Find: find}); err != nil {
		return err
	}
	if err := records.Acquire(r); err != nil {
		return err
	}
	return records.Create(r)
}

func newRecords(t *testing.T) *record.Store {
	t.Helper()
	records, err := record.Open(disk.OS{}, t.TempDir())
	check.Must(t, err)
	return records
}

// TestTenantSpoilsNoShare: whatever claims of one namespace choose, a claim of another is prepared beside them if it would be without them,
// and a refusal names nothing of others.
func TestTenantSpoilsNoShare(t *testing.T) {
	r := seed.New(t)
	policies := []struct {
		strategies []string
		interval   string
	}{
		{nil, ""},
		{[]string{"TimeSlicing"}, ""},
		{[]string{"TimeSlicing", "MPS"}, "Long"},
		{[]string{"MPS", "TimeSlicing"}, "Short"},
		{[]string{"MPS"}, ""},
	}
	prepared, refused := 0, 0
	for round := range 30 {
		p := policies[r.IntN(len(policies))]
		f, err := sharing.New(sharing.Config{
			HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Enabled: r.IntN(5) > 0, DriverRoot: "/",
			Library: nvml.NewProber(nvml.Command{Path: "/does/not/exist"}),
			Allowed: func(string) ([]string, string) { return p.strategies, p.interval },
		})
		check.Must(t, err)
		together, held := newRecords(t), []string{}
		for i := range 8 {
			c := ofTenant(r, fmt.Sprintf("u%d-%d", round, i), []string{"team-a", "team-b"}[r.IntN(2)])
			alone := take(t, f, newRecords(t), c)
			beside := take(t, f, together, c)
			if (alone == nil) != (beside == nil) {
				t.Fatalf("policy %+v, round %d, claim %s: alone %v, beside others %v", p, round, c.Name, alone, beside)
			}
			if beside == nil {
				prepared, held = prepared+1, append(held, c.Name)
				continue
			}
			refused++
			for _, name := range held {
				if strings.Contains(beside.Error(), name) {
					t.Errorf("the refusal names %s: %v", name, beside)
				}
			}
		}
	}
	if prepared == 0 || refused == 0 {
		t.Errorf("%d prepared, %d refused", prepared, refused)
	}
}

// TestShareRefused: a share that chose another setting than its GPU has is refused, and told what to choose.
func TestShareRefused(t *testing.T) {
	f := feature(t, "")
	for text, want := range map[string]string{
		`{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`: "every share of it has TimeSlicing with interval Default",
		`{"strategy":"Exclusive"}`:                                     "leave sharing out of claim and class",
		`{"strategy":"TimeSlicing"}`:                                   "",
		`{}`:                                                           "",
	} {
		share := nodefixture.Result("r", device.KindGPU, "h100")
		share.ShareID = new(types.UID("s"))
		c := nodefixture.Configured(nodefixture.Allocated("u", share), resourceapi.AllocationConfigSourceClaim,
			`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":`+text+`}`)
		err := take(t, f, newRecords(t), c)
		if want == "" {
			check.Must(t, err)
			continue
		}
		refused, ok := errors.AsType[*claim.RefusedError](err)
		if !ok || refused.Reason != claim.ReasonSharingUnsupported || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

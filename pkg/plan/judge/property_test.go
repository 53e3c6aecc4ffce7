// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/objects"
)

var (
	seedFlag      = flag.Uint64("judge.seed", 0, "try only the snapshot of this seed, and print it")
	snapshotsFlag = flag.Int("judge.snapshots", 2000, "how many random snapshots to try")
)

// counts are what the snapshots had, so that a generator which makes nothing of interest fails.
type counts struct {
	usable, refused, aborting                 int
	fits, impossible, fatal, searched, onNode int
	kinds                                     map[Kind]int
}

// TestAgreesWithAllocator holds the judge against the scheduler's allocator on random snapshots: each device alone, and the claims as they
// are.
func TestAgreesWithAllocator(t *testing.T) {
	c := counts{kinds: map[Kind]int{}}
	compiled := map[structured.Features]*Expressions{}
	first, n := uint64(1), uint64(*snapshotsFlag)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
		show(t, generate(first))
	}
	for seed := first; seed < first+n; seed++ {
		in := generate(seed)
		if compiled[in.Features] == nil {
			compiled[in.Features] = NewExpressions(in.Features)
		}
		in.Expressions = compiled[in.Features]
		if message := compare(t.Context(), in, &c); message != "" {
			t.Fatalf("seed %d: %s\nTry again with: go test ./pkg/plan/judge -run TestAgreesWithAllocator -judge.seed=%d", seed, message, seed)
		}
	}
	t.Logf("%+v", c)
	if *seedFlag != 0 || *snapshotsFlag < 1000 {
		return
	}
	for name, number := range map[string]int{
		"usable": c.usable, "refused": c.refused, "aborting": c.aborting, "fits": c.fits, "impossible": c.impossible, "fatal": c.fatal,
	} {
		if number < 100 {
			t.Errorf("%d %s seen: the generator makes too few", number, name)
		}
	}
	for _, kind := range []Kind{
		KindGate, KindAdminAccess, KindClass, KindLimit, KindPool, KindInUse, KindBinding, KindClassSelector, KindSelector, KindNode,
		KindCapacity, KindNodeOperations, KindGroups, KindCounters, KindTaint, KindConstraint, KindShortage,
	} {
		if c.kinds[kind] < 5 {
			t.Errorf("%d checks of %q failed: the generator makes too few", c.kinds[kind], kind)
		}
	}
}

func show(t *testing.T, in Input) {
	t.Helper()
	for _, o := range []any{in.Features, in.Slices, in.Claims} {
		out, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + string(out))
	}
	t.Log(in.State)
}

// compare returns a disagreement.
func compare(ctx context.Context, in Input, c *counts) string {
	v := Judge(ctx, in)
	if message := compareClaims(ctx, in, &v, c); message != "" {
		return message
	}
	for i, claim := range in.Claims {
		for _, r := range v.Claims[i].Requests {
			for _, check := range r.Problems {
				c.kinds[check.Kind]++
			}
			for _, d := range r.Devices {
				c.count(&d)
				if message := compareDevice(ctx, in, claim, r, d); message != "" {
					return fmt.Sprintf("claim %s, request %s, device %s: %s\nfailed checks: %+v", claim.Name, r.Name, d.ID(), message, d.Failed)
				}
			}
		}
	}
	return ""
}

func (c *counts) count(d *DeviceVerdict) {
	switch {
	case d.Usable():
		c.usable++
	case d.Aborts():
		c.aborting++
	default:
		c.refused++
	}
	for _, check := range d.Failed {
		c.kinds[check.Kind]++
	}
}

func run(ctx context.Context, in Input) ([]resourceapi.AllocationResult, error) {
	allocator, err := structured.NewAllocator(ctx, in.Features, in.State, classes(in.Classes), in.Slices, in.Expressions.cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, in.Node, in.Claims)
}

// compareClaims holds the verdict of the claims against the allocator's result.
func compareClaims(ctx context.Context, in Input, v *Verdict, c *counts) string {
	results, err := run(ctx, in)
	local := errors.Is(err, structured.ErrFailedAllocationOnNode)
	for _, claim := range v.Claims {
		for _, check := range claim.Problems {
			c.kinds[check.Kind]++
		}
	}
	for _, check := range v.Problems {
		c.kinds[check.Kind]++
	}
	switch {
	case err != nil && !local:
		c.fatal++
		if !v.fatal() && !mayAbort(v) {
			return fmt.Sprintf("the allocator says %q, and the judge has nothing fatal", err)
		}
		return ""
	case v.fatal():
		return fmt.Sprintf("the judge has a fatal problem, and the allocator returns %v, %v: %+v", results, err, v.Claims)
	case results != nil:
		c.fits++
		if v.Impossible() {
			return fmt.Sprintf("the allocator gives %v, and the judge says that is impossible: %+v", results, problems(v))
		}
		return given(v, results)
	case local:
		c.onNode++
	}
	if v.Impossible() {
		c.impossible++
		return ""
	}
	c.searched++
	if simple(in) {
		return "the allocator gives nothing, and the judge knows no reason"
	}
	return ""
}

func problems(v *Verdict) []Check {
	out := v.Problems
	for _, c := range v.Claims {
		out = append(out, c.Problems...)
	}
	return out
}

// mayAbort says whether the allocator's search can come to an error.
func mayAbort(v *Verdict) bool {
	for _, c := range v.Claims {
		for _, r := range c.Requests {
			if r.All && len(c.Constraints) > 0 {
				return true
			}
			for i := range r.Devices {
				if r.Devices[i].Aborts() {
					return true
				}
			}
		}
	}
	return false
}

// given checks that the judge has every allocated device as usable.
func given(v *Verdict, results []resourceapi.AllocationResult) string {
	for i, result := range results {
		for _, d := range result.Devices.Results {
			for _, r := range v.Claims[i].Requests {
				if r.Name != d.Request {
					continue
				}
				for k := range r.Devices {
					if verdict := &r.Devices[k]; verdict.Driver == d.Driver && verdict.Pool == d.Pool && verdict.Device == d.Device && !verdict.Usable() {
						return fmt.Sprintf("the allocator gives %s to request %s, and the judge says %+v", verdict.ID(), r.Name, verdict.Failed)
					}
				}
			}
		}
	}
	return ""
}

// simple says whether only one request matters, so that counting must be enough.
func simple(in Input) bool {
	if len(in.Claims) != 1 || len(in.Claims[0].Spec.Devices.Requests) != 1 || len(in.Claims[0].Spec.Devices.Constraints) > 0 {
		return false
	}
	for _, slice := range in.Slices {
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].ConsumesCounters) > 0 {
				return false
			}
		}
	}
	return true
}

// compareDevice narrows a request to one device, and compares.
func compareDevice(ctx context.Context, in Input, claim *resourceapi.ResourceClaim, r RequestVerdict, d DeviceVerdict) string {
	id, ok := identityOf(in, d)
	if !ok {
		return "" // a name twice in an invalid pool
	}
	narrow := narrowed(in, claim, r, id)
	if narrow.Claims == nil {
		return ""
	}
	results, err := run(ctx, narrow)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		results, err = nil, nil
	}
	fatal := false // what the narrowed request is refused for, whatever the devices are
	if err != nil && !d.Aborts() {
		again := Judge(ctx, narrow)
		fatal = again.fatal()
	}
	switch {
	case err != nil && !fatal && !d.Aborts():
		return "the allocator says " + err.Error()
	case err == nil && d.Aborts():
		return fmt.Sprintf("the judge expects an error, and the allocator gives %v", results)
	case err != nil:
		return ""
	case d.Usable() != (results != nil):
		return fmt.Sprintf("usable is %t, and the allocator gives %v", d.Usable(), results)
	case results != nil:
		if got := results[0].Devices.Results; len(got) != 1 || got[0].Driver != d.Driver || got[0].Pool != d.Pool || got[0].Device != d.Device {
			return fmt.Sprintf("the allocator gives %v", got)
		}
	}
	return ""
}

func identityOf(in Input, d DeviceVerdict) (string, bool) {
	found := ""
	for _, slice := range in.Slices {
		if slice.Spec.Driver != d.Driver || slice.Spec.Pool.Name != d.Pool {
			continue
		}
		for i := range slice.Spec.Devices {
			if slice.Spec.Devices[i].Name != d.Device {
				continue
			}
			if found != "" {
				return "", false
			}
			found = *slice.Spec.Devices[i].Attributes[identity].StringValue
		}
	}
	return found, true
}

// narrowed leaves one request, or one alternative, of one claim, and makes its class accept one device only.
func narrowed(in Input, claim *resourceapi.ResourceClaim, r RequestVerdict, id string) Input {
	base, alternative, _ := strings.Cut(r.Name, "/")
	one := claim.DeepCopy()
	one.Spec.Devices.Requests = nil
	for _, request := range claim.DeepCopy().Spec.Devices.Requests {
		if request.Name != base {
			continue
		}
		if request.Exactly != nil {
			request.Exactly.Count = min(request.Exactly.Count, 1)
		}
		for _, sub := range request.FirstAvailable {
			if sub.Name == alternative {
				sub.Count = min(sub.Count, 1)
				request.FirstAvailable = []resourceapi.DeviceSubRequest{sub}
				break
			}
		}
		one.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	}
	in.Claims = []*resourceapi.ResourceClaim{one}
	narrow := map[string]*resourceapi.DeviceClass{}
	for name, class := range in.Classes {
		class = class.DeepCopy()
		only := objects.Selectors(fmt.Sprintf(`device.attributes["test.fettle.dev"].id == %q`, id))
		class.Spec.Selectors = append(only, class.Spec.Selectors...)
		narrow[name] = class
	}
	in.Classes = narrow
	return in
}

// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"slices"
	"testing"
)

// FuzzResolve checks, for any bytes in a class's and a claim's configuration, that Resolve either refuses with paths into the
// claim or gives every result, and that a claim can never undo what a class's policy says.
func FuzzResolve(f *testing.F) {
	for _, seed := range []string{exclusive, onlyA, onlyB, mps, passes, atData, keep, empty, `{`, `null`} {
		f.Add([]byte(seed), []byte(exclusive), "main")
		f.Add([]byte(onlyA), []byte(seed), "disk")
		f.Add([]byte(keep), []byte(seed), "")
	}
	results := []apiResult{result("main/a", "gpu", "g0"), result("disk", "host", "h0")}
	f.Fuzz(func(t *testing.T, ofClass, ofClaim []byte, request string) {
		fromClass := class(string(ofClass), "main/a")
		alone, errAlone := Resolve(Input{Claim: allocated(results, fromClass), Driver: driver, Node: node})
		both, err := Resolve(Input{
			Claim: allocated(results, own(string(ofClaim), request), fromClass), Driver: driver, Node: node,
		})
		if err != nil {
			var refused *RefusedError
			if !errors.As(err, &refused) || len(refused.Faults) == 0 || refused.Reason == "" {
				t.Fatalf("error without reason or faults: %v", err)
			}
			return
		}
		if errAlone != nil {
			t.Fatalf("the claim's entry made a refused class pass: %v", errAlone)
		}
		if len(both.Results) != len(results) {
			t.Fatalf("%d results, want %d", len(both.Results), len(results))
		}
		for i := range both.Results {
			a, b := alone.Results[i].Config, both.Results[i].Config
			if !slices.Equal(a.AllowedNamespaces, b.AllowedNamespaces) || (a.AllowedNamespaces == nil) != (b.AllowedNamespaces == nil) {
				t.Errorf("the claim changed the allowed namespaces from %v to %v", a.AllowedNamespaces, b.AllowedNamespaces)
			}
			if a.GPU != nil && a.GPU.AllowPassthrough != b.GPU.AllowPassthrough {
				t.Errorf("the claim changed passthrough to %t", b.GPU.AllowPassthrough)
			}
			if a.Host != nil && a.Host.OnRelease != b.Host.OnRelease {
				t.Errorf("the claim changed onRelease from %s to %s", a.Host.OnRelease, b.Host.OnRelease)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// long is a selector of about 10 KiB, the longest that the API server lets be.
func long(i int) string { return fmt.Sprintf("%d > 1", i) + strings.Repeat(" || 1+2 > 2", 900) }

// TestExpressionsAreBounded: what is kept of long selectors is bounded by memory, however many tenants write.
func TestExpressionsAreBounded(t *testing.T) {
	judged := func(in Input, i int) {
		in.Claims = gpus(0).Claims
		in.want("gpu", 1).Selectors = objects.Selectors(long(i))
		if v := Judge(t.Context(), in); v.Outcome != Fits {
			t.Fatalf("outcome %q: %s", v.Outcome, v.Error)
		}
	}
	in := gpus(1)
	in.Expressions = NewExpressions(in.Features)
	judged(in, 0) // the environments are made once
	before := check.Heap()
	for i := range 30 {
		judged(in, i)
	}
	if kept := check.Heap() - before; kept > maxKept {
		t.Errorf("%d MiB are kept, more than %d", kept>>20, maxKept>>20)
	}
	if n := len(in.Expressions.compiled); n < 2 || n > 15 {
		t.Errorf("%d selectors stay compiled", n)
	}
}

// TestTooLong: nothing is compiled of claims that would take too much.
func TestTooLong(t *testing.T) {
	in := gpus(1)
	in.Expressions = NewExpressions(in.Features)
	for i := range 32 {
		in.want(fmt.Sprintf("gpu-%d", i), 1).Selectors = objects.Selectors(long(i))
	}
	if v := Judge(t.Context(), in); v.Outcome != TimedOut || v.Error != TooLong || len(in.Expressions.compiled) > 0 {
		t.Errorf("outcome %q: %q, %d selectors were compiled", v.Outcome, v.Error, len(in.Expressions.compiled))
	}
	for i := range in.Claims[0].Spec.Devices.Requests {
		in.Claims[0].Spec.Devices.Requests[i].Exactly.Selectors = objects.Selectors(long(0)) // one for all
	}
	if IsTooLong(in.Claims) {
		t.Error("the same selector counts twice")
	}
}

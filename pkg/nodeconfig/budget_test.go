// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/test/check"
)

func TestBudget(t *testing.T) {
	c, err := Parse([]byte(header + "budget: {memory: {node: 40%, namespace: 3Gi}, pins: {namespace: 7}, maxSizeLimit: 1Gi}"))
	check.Must(t, err)
	want := budget.Limits{
		budget.Memory:      {Node: 40 << 30, Namespace: 3 << 30},
		budget.SeedEntries: {Node: 131072, Namespace: 32768},
		budget.SeedBytes:   {Node: 64 << 20, Namespace: 16 << 20},
		budget.PinnedBytes: {Node: 1000, Namespace: 500},
		budget.Pins:        {Node: 8192, Namespace: 7},
		budget.Mounts:      {Node: 40_000, Namespace: 10_000},
	}
	if diff := cmp.Diff(want, c.Budget.Limits(100<<30, 1000)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Budget.MaxSizeLimit.String() != "1Gi" || c.Budget.MaxWritableLimit.String() != "16Gi" || c.Budget.Unpacking != (Count{4, 2}) {
		t.Errorf("%+v", c.Budget)
	}
}

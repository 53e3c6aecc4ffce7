// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// TestBitstreamsHeld: trouble with the disk is not taken for an empty store; what the node held before stays in its status.
func TestBitstreamsHeld(t *testing.T) {
	var held []string
	var broken error
	r := &Reporter{ReporterConfig: ReporterConfig{Bitstreams: func() ([]string, error) { return held, broken }}}
	before := &v1alpha1.AcceleratorNodeStatus{Bitstreams: []string{"sha256:1"}}
	for _, tc := range []struct {
		name   string
		held   []string
		broken error
		before *v1alpha1.AcceleratorNodeStatus
		want   []string
	}{
		{"some", []string{"sha256:2"}, nil, before, []string{"sha256:2"}},
		{"none", nil, nil, before, nil},
		{"unknown", nil, errors.New("EIO"), before, before.Bitstreams},
		{"unknown, on a node without a status", nil, errors.New("EIO"), &v1alpha1.AcceleratorNodeStatus{}, nil},
	} {
		held, broken = tc.held, tc.broken
		if diff := cmp.Diff(tc.want, r.bitstreams(t.Context(), tc.before)); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", tc.name, diff)
		}
	}
}

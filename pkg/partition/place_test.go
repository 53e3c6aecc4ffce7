// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
)

func TestPlace(t *testing.T) {
	some := func(profile string, count int, starts ...uint32) partition.Instances {
		return partition.Instances{Profile: profile, Count: count, Starts: starts}
	}
	for _, tc := range []struct {
		name    string
		layout  []partition.Instances
		want    string
		wantErr string
	}{
		{name: "nothing"},
		{
			name: "seven small ones", layout: []partition.Instances{some("1g.10gb", 7)},
			want: "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6",
		},
		{name: "two large ones", layout: []partition.Instances{some("3g.40gb", 2)}, want: "3g.40gb@0 3g.40gb@4"},
		{
			name: "the large one can be only on the left", layout: []partition.Instances{some("3g.40gb", 1), some("4g.40gb", 1)},
			want: "4g.40gb@0 3g.40gb@4",
		},
		{
			name:   "what is left first leaves no place for the small ones",
			layout: []partition.Instances{some("1g.10gb", 2), some("3g.40gb", 1), some("2g.20gb", 1)},
			want:   "2g.20gb@0 1g.10gb@2 1g.10gb@3 3g.40gb@4",
		},
		{
			name: "starts", layout: []partition.Instances{some("1g.10gb", 2, 6, 4), some("3g.40gb", 1)}, want: "3g.40gb@0 1g.10gb@4 1g.10gb@6",
		},
		{
			name: "one start, and the others anywhere", layout: []partition.Instances{some("1g.10gb", 1, 6), some("1g.10gb", 2)},
			want: "1g.10gb@0 1g.10gb@1 1g.10gb@6",
		},
		{
			name: "media engines", layout: []partition.Instances{some("1g.10gb+me", 1), some("1g.10gb", 6)},
			want: "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb+me@6",
		},
		{
			name: "media engines twice", layout: []partition.Instances{some("1g.10gb+me", 2)},
			wantErr: "the instances need ofa-engines 2 together, the GPU has 1",
		},
		{
			name: "overfull", layout: []partition.Instances{some("3g.40gb", 2), some("1g.10gb", 1)},
			wantErr: "1 x 1g.10gb, 2 x 3g.40gb do not fit on the GPU together",
		},
		{name: "eight small ones", layout: []partition.Instances{some("1g.10gb", 8)}, wantErr: "8 x 1g.10gb do not fit on the GPU together"},
		{
			name: "start that is none", layout: []partition.Instances{some("3g.40gb", 1, 2)},
			wantErr: "profile 3g.40gb: no instance can start at 2, only at 0, 4",
		},
		{
			name: "overlap", layout: []partition.Instances{some("3g.40gb", 1, 4), some("1g.10gb", 1, 6)},
			wantErr: "profile 1g.10gb at 6 overlaps profile 3g.40gb at 4",
		},
		{
			name: "a start too few", layout: []partition.Instances{some("1g.10gb", 2, 1)},
			wantErr: "profile 1g.10gb: 1 starts for 2 instances, want one each or none",
		},
		{name: "none of it", layout: []partition.Instances{some("1g.10gb", 0)}, wantErr: "profile 1g.10gb: count 0, want 1 to 64"},
		{
			name: "several faults", layout: []partition.Instances{some("1g.5gb", 1), some("1g.10gb", 65)},
			wantErr: "profile 1g.5gb: this GPU has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb\nprofile 1g.10gb: count 65",
		},
		{name: "too many", layout: []partition.Instances{some("1g.10gb", 40), some("1g.20gb", 40)}, wantErr: "80 instances: want at most 64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			slots, err := partition.Place(h100().whole(t, 0), h100().mig(false), tc.layout)
			if tc.wantErr != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.wantErr) {
					t.Errorf("got %v, want %q", err, tc.wantErr)
				}
				return
			}
			check.Must(t, err)
			var got []string
			for i, s := range slots {
				got = append(got, fmt.Sprintf("%s@%d", s.Profile, s.Placement.Start))
				for _, other := range slots[:i] {
					if other.Placement.Overlaps(s.Placement) {
						t.Errorf("%v overlaps %v", s, other)
					}
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestPlaceGivesUp: a table that NVML never had makes the search end with an error, not run on.
func TestPlaceGivesUp(t *testing.T) {
	m := &nvml.MIG{}
	var layout []partition.Instances
	for i := range uint32(16) {
		p := nvml.MIGProfile{ID: i, Name: fmt.Sprintf("%dg.1gb", i+1), Multiprocessors: 1, MaxInstances: 64}
		for start := range uint32(15) {
			p.Placements = append(p.Placements, nvml.MIGPlacement{Start: start, Size: 1})
		}
		m.Profiles = append(m.Profiles, p)
		layout = append(layout, partition.Instances{Profile: p.Name, Count: 1})
	}
	if _, err := partition.Place(h100().whole(t, 0), m, layout); err == nil || !strings.Contains(err.Error(), "give their starts") {
		t.Errorf("got %v", err)
	}
}

// FuzzPlace: whatever NVML and a layout say, what is placed is where the profile can be and overlaps nothing.
func FuzzPlace(f *testing.F) {
	f.Add([]byte{2, 1, 0})
	f.Add([]byte{0, 9, 3, 1, 7, 7})
	m := h100().mig(true)
	whole := h100().whole(f, 0)
	f.Fuzz(func(t *testing.T, counts []byte) {
		var layout []partition.Instances
		total := 0
		for i, n := range counts[:min(len(counts), len(m.Profiles))] {
			if n %= 9; n > 0 {
				layout = append(layout, partition.Instances{Profile: m.Profiles[i].Name, Count: int(n)})
				total += int(n)
			}
		}
		slots, err := partition.Place(whole, m, layout)
		if err != nil {
			return
		}
		if len(slots) != total {
			t.Errorf("%d slots of %d", len(slots), total)
		}
		for i, s := range slots {
			for _, other := range slots[:i] {
				if other.Placement.Overlaps(s.Placement) {
					t.Errorf("%v overlaps %v", s, other)
				}
			}
		}
	})
}

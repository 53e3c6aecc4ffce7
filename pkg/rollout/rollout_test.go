// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/rollout"
	"github.com/fettle-dev/fettle/test/seed"
)

func TestNext(t *testing.T) {
	for _, test := range []struct {
		name     string
		admitted int32
		wave     rollout.Wave
		want     int32
		look     time.Duration
	}{
		{"no nodes yet", 0, rollout.Wave{}, 1000, 0},
		{"a small cluster", 0, rollout.Wave{Nodes: 16}, 1000, 0},
		{"eight of 17", 0, rollout.Wave{Nodes: 17}, 471, 5 * time.Minute},
		{"eight of 300", 0, rollout.Wave{Nodes: 300}, 27, 5 * time.Minute},
		{"one of a hundred of 5,000", 0, rollout.Wave{Nodes: 5000}, 10, 5 * time.Minute},
		{"most have it", 10, rollout.Wave{Nodes: 5000, Admitted: 50, Done: 38}, 80, 5 * time.Minute},
		{"the last wave", 640, rollout.Wave{Nodes: 5000, Admitted: 3200, Done: 2400}, 1000, 5 * time.Minute},
		{"no node of a wave", 10, rollout.Wave{Nodes: 20}, 80, 5 * time.Minute},
		{
			"too few have it", 10,
			rollout.Wave{Nodes: 5000, Admitted: 50, Done: 37, Busy: 13, Since: time.Minute, Idle: time.Second},
			10,
			5*time.Minute - time.Second,
		},
		{"none gets it", 10, rollout.Wave{Nodes: 5000, Admitted: 50, Since: 5 * time.Minute, Idle: 5 * time.Minute}, 80, 5 * time.Minute},
		{"it goes slowly", 80, rollout.Wave{Nodes: 5000, Admitted: 400, Done: 90, Since: 29 * time.Minute}, 80, time.Minute},
		{"too slowly", 80, rollout.Wave{Nodes: 5000, Admitted: 400, Done: 90, Since: 30 * time.Minute}, 640, 5 * time.Minute},
		{"nodes may be silent", 10, rollout.Wave{Nodes: 5000, Admitted: 50, Quiet: true, Since: time.Minute, Idle: time.Minute}, 10, time.Minute},
		{"nodes are silent", 10, rollout.Wave{Nodes: 5000, Admitted: 50, Quiet: true, Since: 2 * time.Minute}, 80, 5 * time.Minute},
		{
			"some are not", 10, rollout.Wave{Nodes: 5000, Admitted: 50, Busy: 1, Quiet: true, Since: 2 * time.Minute}, 10, 5 * time.Minute,
		},
		{"all are", 1000, rollout.Wave{Nodes: 5000}, 1000, 0},
	} {
		if got, look := rollout.Next(test.admitted, test.wave); got != test.want || look != test.look {
			t.Errorf("%s: %d, look after %s, want %d, %s", test.name, got, look, test.want, test.look)
		}
	}
}

// TestAdmits: who is admitted stays so, and the share of nodes is about the thousandths.
func TestAdmits(t *testing.T) {
	for _, admitted := range []int32{0, 10, 80, 640, 1000} {
		n := 0
		for i := range 5000 {
			node := fmt.Sprintf("node-%d", i)
			if rollout.Admits(admitted, node, "sha256:a") {
				n++
				if !rollout.Admits(8*admitted, node, "sha256:a") {
					t.Fatalf("%s is not admitted any more", node)
				}
			}
		}
		if want := 5 * int(admitted); n < want*3/4-10 || n > want*5/4+10 || admitted == 1000 && n != 5000 {
			t.Errorf("%d thousandths: %d of 5,000 nodes", admitted, n)
		}
	}
}

// TestFiveThousand: whatever nodes are slow, stuck or silent, as many as 5,000 nodes are all admitted, with few writes and within a time.
func TestFiveThousand(t *testing.T) {
	random := seed.New(t)
	for range 4 {
		synctest.Test(t, func(t *testing.T) {
			nodes, quiet := 1+random.IntN(5000), random.IntN(2) == 0
			stuck, silent := random.Float64()*random.Float64(), 0.0
			if quiet {
				silent = random.Float64()
			}
			takes := time.Duration(1+random.IntN(600)) * time.Second
			began, ends := time.Now(), map[int]time.Time{} // when an admitted node has it; zero: never
			admitted, writes, raised, changed, last := int32(0), 0, began, began, 0
			for admitted < rollout.All {
				w := rollout.Wave{Nodes: nodes, Quiet: quiet, Since: time.Since(raised)}
				for i := range nodes {
					if !rollout.Admits(admitted, fmt.Sprint("node-", i), "sha256:a") {
						continue
					}
					w.Admitted++
					at, started := ends[i]
					if !started {
						at = time.Now().Add(takes/2 + time.Duration(random.Int64N(int64(takes))))
						if random.Float64() < stuck || random.Float64() < silent {
							at = time.Time{}
						}
						ends[i] = at
					}
					switch {
					case at.IsZero():
					case !at.After(time.Now()):
						w.Done++
					default:
						w.Busy++
					}
				}
				if w.Done != last {
					last, changed = w.Done, time.Now()
				}
				w.Idle = time.Since(changed)
				next, look := rollout.Next(admitted, w)
				if next != admitted {
					admitted, raised, changed, writes = next, time.Now(), time.Now(), writes+1
					continue
				}
				if look <= 0 {
					t.Fatalf("looks again after %s", look)
				}
				time.Sleep(min(look, 15*time.Second))
			}
			if took := time.Since(began); writes > 6 || took > 2*time.Hour+time.Minute {
				t.Errorf("%d nodes: %d writes, %s", nodes, writes, took)
			}
			for i := range nodes {
				if !rollout.Admits(admitted, fmt.Sprint("node-", i), "sha256:a") {
					t.Fatalf("node %d of %d is never admitted", i, nodes)
				}
			}
		})
	}
}

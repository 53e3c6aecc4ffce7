// SPDX-License-Identifier: Apache-2.0

// Package rollout says in which order the nodes of a cluster fetch the same thing ahead of its use: a few first, then eight times as many
// each time that most of these have it.
package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// All is how many of a thousand nodes there are.
const All int32 = 1000

const (
	// first is how many nodes begin, growth is how many times as many follow.
	first  = 8
	growth = 8
	// least is how many of a thousand nodes begin at least, so that there are few waves in the largest cluster.
	least = 10
	// small is how many nodes begin together in any case.
	small = 16

	// stuck is how long no further node has to get it until the next wave begins all the same, and longest how long a wave takes at most.
	stuck   = 5 * time.Minute
	longest = 30 * time.Minute
	// silent is how long a wave takes in which no node fetches, if nodes that do not need it say nothing.
	silent = 2 * time.Minute
)

// Stale is how long after the last wave began a node does not wait for its own any more: nothing leads the rollout then.
const Stale = time.Hour

// Admits says whether a node is among the admitted thousandths of those that fetch a digest. The nodes of a wave are others for each
// digest.
func Admits(admitted int32, node, digest string) bool {
	sum := sha256.Sum256([]byte(node + "\x00" + digest))
	return binary.BigEndian.Uint32(sum[:])%uint32(All) < uint32(max(admitted, 0))
}

// Wave is how far a rollout is.
type Wave struct {
	// Nodes is how many nodes there are that may fetch it, Admitted how many of them may now. Of these, Done have it or do not fit it, and
	// Busy fetch it.
	Nodes, Admitted, Done, Busy int
	// Quiet says that nodes that do not need it say nothing.
	Quiet bool
	// Since is how long ago the wave began, Idle how long ago Done changed.
	Since, Idle time.Duration
}

// Next returns how many of a thousand nodes are admitted from now on, where it was so many until now: 0 before the first wave. If it is the
// same, look is when to ask again unless a node reports before.
func Next(admitted int32, w Wave) (next int32, look time.Duration) {
	switch {
	case w.Nodes <= small || admitted >= All:
		return All, 0
	case admitted <= 0:
		return min(All, max(least, (first*All+int32(w.Nodes)-1)/int32(w.Nodes))), stuck
	case 4*w.Done >= 3*w.Admitted, w.Idle >= stuck, w.Since >= longest, w.Quiet && w.Busy == 0 && w.Since >= silent:
		return min(All, growth*admitted), stuck
	}
	look = min(stuck-w.Idle, longest-w.Since)
	if w.Quiet && w.Since < silent {
		look = min(look, silent-w.Since)
	}
	return admitted, look
}

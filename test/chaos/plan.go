// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// scale is how much happens in one round.
type scale struct {
	// prepares is how many claims are prepared at least; each is unprepared as well.
	prepares int
	// kills are kill -9 of a plugin, those of reboots not counted.
	kills, reboots int
	// pauses stop the API server, hangs a disk, stops the plugin, each for a while.
	pauses, hangs, stops int
	// restarts are kubelet's own: it asks for every claim again.
	restarts int
	// rolls are rolling updates: two plugins serve until the older is told to end.
	rolls int
	// wipes empty the CDI directory under a kubelet that lives and asks nobody again.
	wipes int
	// fills leave no space where the plugin has its state, unloads take the GPUs' driver away, both for a while.
	fills, unloads int
	// renames let two directories have each other's name for a while.
	renames int
	// looks are the quiet moments in which everything is checked.
	looks int
}

// standard is one round of make chaos.
func standard() scale {
	return scale{
		prepares: 5000, kills: 200, reboots: 20, pauses: 20, hangs: 20, stops: 10, restarts: 10, rolls: 8, wipes: 5, fills: 15, unloads: 10,
		renames: 15, looks: 40,
	}
}

// short is the round that every change has to pass: all that a standard one does, each several times. What is rare takes its share of the
// time that continuous integration has for everything.
func short() scale {
	s := standard().times(1000)
	s.stops, s.restarts, s.rolls, s.wipes, s.fills, s.unloads, s.renames = 3, 3, 3, 3, 3, 3, 3
	return s
}

// times makes a scale smaller or larger by its number of prepares. Everything happens twice at least: the last reboot, for one, is not
// like the others.
func (s scale) times(prepares int) scale {
	part := func(n int) int { return max(2, n*prepares/s.prepares) }
	return scale{
		prepares: prepares, kills: part(s.kills), reboots: part(s.reboots), pauses: part(s.pauses), hangs: part(s.hangs),
		stops: part(s.stops), restarts: part(s.restarts), rolls: part(s.rolls), wipes: part(s.wipes), looks: part(s.looks),
		fills: part(s.fills), unloads: part(s.unloads), renames: part(s.renames),
	}
}

// plan is everything that is decided before a round begins.
type plan struct {
	scale
	seed uint64
	pods []pod
	// faults are sorted by when they happen.
	faults []fault
}

// pod is the life of one pod, or of several that use the same claims after each other.
type pod struct {
	claims []want
	// rounds is how many pods use these claims, one after the other. Each round allocates anew.
	rounds int
	// patience is kubelet's timeout for one call.
	patience time.Duration
	// attempts is after how many calls that did not prepare everything the pod is deleted. Negative: never; 0: before the first.
	attempts int
	// hold is for how many operations of all pods this one keeps running.
	hold int
	// forced: the pod is force-deleted, so that its devices are given to others before kubelet unprepares it, which comes after
	// delay.
	forced bool
	delay  time.Duration
	// twice: kubelet forgets that it unprepared the claims, and does it again.
	twice bool
	// vanishes: the pod and its claims are deleted while kubelet is down, and kubelet's state is lost, so that nobody ever asks for
	// their release.
	vanishes bool
	// choice decides which of the free devices are allocated.
	choice uint64
}

// want is one claim.
type want struct {
	gpus, dirs int
	// look is for adminAccess: the devices may be anyone's.
	look bool
	// mountPath is where the claim wants its one directory. Empty: where the administrator's configuration says.
	mountPath string
	// litter is how many files the tenant makes in each directory, beside the one with its name.
	litter int
}

// fault is one thing that goes wrong, or is looked at.
type fault struct {
	kind faultKind
	// at is after how many operations.
	at int
	// wait comes before it, and length is how long it lasts.
	wait, length time.Duration
	// early: a kill does not wait until the plugin serves; a hang waits for nothing else to go wrong meanwhile; a plugin is killed while
	// directories have each other's name.
	early bool
	// choice decides which plugin or disk.
	choice uint64
}

type faultKind string

const (
	faultKill faultKind = "kill"
	// faultReboot switches the node off and on.
	faultReboot faultKind = "reboot"
	// faultPause stops the API server for a while, faultHang a disk, faultStop the plugin.
	faultPause faultKind = "pause"
	faultHang  faultKind = "hang"
	faultStop  faultKind = "stop"
	// faultRestart is kubelet's.
	faultRestart faultKind = "restart"
	// faultRoll begins a rolling update, faultRolled ends it.
	faultRoll   faultKind = "roll"
	faultRolled faultKind = "rolled"
	// faultWipe empties the CDI directory.
	faultWipe faultKind = "wipe"
	// faultFill fills the disk of the plugin's state, faultUnload takes the GPUs' driver away, both for a while.
	faultFill   faultKind = "fill"
	faultUnload faultKind = "unload"
	// faultRename lets two directories have each other's name for a while.
	faultRename faultKind = "rename"
	// faultLook is the checker's.
	faultLook faultKind = "look"
)

// without leaves out kinds of faults, for whoever looks for the one that matters.
func (p plan) without(kinds []string) plan {
	p.faults = slices.DeleteFunc(slices.Clone(p.faults), func(f fault) bool {
		return slices.Contains(kinds, string(f.kind)) || f.kind == faultRolled && slices.Contains(kinds, string(faultRoll))
	})
	return p
}

// makePlan gives the same plan for the same seed and scale.
func makePlan(seed uint64, s scale) plan {
	p := plan{scale: s, seed: seed}
	random := rand.New(rand.NewPCG(seed, 1))
	for prepares := 0; prepares < s.prepares; {
		next := makePod(random)
		if next.attempts < 0 {
			prepares += len(next.claims) * next.rounds
		}
		p.pods = append(p.pods, next)
	}
	p.faults = makeFaults(rand.New(rand.NewPCG(seed, 2)), s)
	return p
}

// oneIn says yes once in n times.
func oneIn(random *rand.Rand, n int) bool { return random.IntN(n) == 0 }

// between is a random duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)+1))
}

func makePod(random *rand.Rand) pod {
	const patient = 5 * time.Second
	p := pod{rounds: 1, patience: patient, attempts: -1, choice: random.Uint64()}
	for range []int{1, 1, 1, 1, 1, 1, 2, 2, 2, 3}[random.IntN(10)] {
		p.claims = append(p.claims, makeWant(random))
	}
	if oneIn(random, 6) {
		p.rounds = 2 + random.IntN(2)
	}
	if oneIn(random, 4) {
		p.patience = between(random, 20*time.Millisecond, 400*time.Millisecond)
	}
	if oneIn(random, 8) {
		p.attempts = random.IntN(4)
	}
	switch n := random.IntN(100); {
	case n < 8:
		p.hold = 300 + random.IntN(900)
	case n < 30:
		p.hold = 30 + random.IntN(120)
	default:
		p.hold = random.IntN(15)
	}
	if oneIn(random, 7) {
		p.forced, p.delay = true, between(random, 0, 400*time.Millisecond)
	}
	p.twice = oneIn(random, 20)
	p.vanishes = oneIn(random, 60)
	return p
}

func makeWant(random *rand.Rand) want {
	w := want{look: oneIn(random, 12)}
	count := []int{1, 1, 1, 1, 1, 1, 1, 2, 2, 4}[random.IntN(10)]
	switch random.IntN(5) {
	case 0, 1:
		w.gpus = count
	case 2, 3:
		w.dirs = count
	default:
		w.gpus, w.dirs = 1, 1
	}
	if w.dirs == 1 && oneIn(random, 3) {
		w.mountPath = []string{"/data", "/scratch/a", "/scratch/b", "/models"}[random.IntN(4)]
	}
	if oneIn(random, 5) {
		w.litter = random.IntN(150)
	}
	return w
}

func makeFaults(random *rand.Rand, s scale) []fault {
	var faults []fault
	operations := 2 * s.prepares
	// spread puts n faults evenly over the round, each somewhere in its part, and returns how long a part is.
	spread := func(n int, f fault, least, most time.Duration) int {
		part := operations * 9 / 10 / n
		for i := range n {
			f.at = operations/50 + part*i + random.IntN(max(1, part/2))
			f.wait, f.length = between(random, 0, 20*time.Millisecond), between(random, least, most)
			f.early, f.choice = oneIn(random, 4), random.Uint64()
			faults = append(faults, f)
		}
		return part
	}
	spread(s.kills, fault{kind: faultKill}, 0, 0)
	spread(s.reboots, fault{kind: faultReboot}, 0, 0)
	spread(s.pauses, fault{kind: faultPause}, 200*time.Millisecond, 1500*time.Millisecond)
	spread(s.hangs, fault{kind: faultHang}, 500*time.Millisecond, 2*time.Second)
	stops := len(faults)
	spread(s.stops, fault{kind: faultStop}, 300*time.Millisecond, 1500*time.Millisecond)
	spread(s.restarts, fault{kind: faultRestart}, 0, 0)
	spread(s.wipes, fault{kind: faultWipe}, 0, 0)
	spread(s.fills, fault{kind: faultFill}, 200*time.Millisecond, 1500*time.Millisecond)
	spread(s.unloads, fault{kind: faultUnload}, 500*time.Millisecond, 4*time.Second)
	spread(s.renames, fault{kind: faultRename}, 0, 1500*time.Millisecond)
	spread(s.looks, fault{kind: faultLook}, 0, 0)
	first := len(faults)
	part := spread(s.rolls, fault{kind: faultRoll}, 0, 0)
	for i, f := range faults[first:] {
		if i < s.stops/2 {
			faults[stops+i].at = f.at + part/5 // what one plugin was stopped in, the other may be asked to take back
		}
		f.kind, f.at = faultRolled, f.at+part*2/5
		faults = append(faults, f)
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return faults
}

// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
)

// scheduler gives devices to pods as the API server's state allows it: it knows nothing of what kubelet still has to do.
type scheduler struct {
	mu sync.Mutex
	// gpus and dirs are all devices, free those that no claim is allocated.
	gpus, dirs []deviceID
	free       map[deviceID]bool
	// hot are free devices whose last claim kubelet has not unprepared: they are given out first.
	hot map[deviceID]bool
	// given is closed, and replaced, when devices are given back.
	given chan struct{}
	// pods is how many live now. Of these, waiting wait for devices, and holding keep theirs until others have done something.
	pods, waiting, holding int
}

func newScheduler(gpus, dirs []deviceID) *scheduler {
	s := &scheduler{gpus: gpus, dirs: dirs, free: map[deviceID]bool{}, hot: map[deviceID]bool{}, given: make(chan struct{})}
	for _, list := range [][]deviceID{gpus, dirs} {
		slices.SortFunc(list, byName)
		for _, id := range list {
			s.free[id] = true
		}
	}
	return s
}

func byName(a, b deviceID) int { return cmp.Compare(a.String(), b.String()) }

// take waits until all that a pod wants is free, and returns the devices of each of its claims: GPUs first.
func (s *scheduler) take(ctx context.Context, random *rand.Rand, wants []want) ([][]deviceID, error) {
	for {
		out, given := s.try(random, wants)
		if out != nil {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-given:
		}
	}
}

func (s *scheduler) try(random *rand.Rand, wants []want) ([][]deviceID, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gpus, dirs := s.candidates(random, s.gpus), s.candidates(random, s.dirs)
	out := make([][]deviceID, 0, len(wants))
	for _, w := range wants {
		if w.look {
			out = append(out, append(some(random, s.gpus, w.gpus), some(random, s.dirs, w.dirs)...))
			continue
		}
		if w.gpus > len(gpus) || w.dirs > len(dirs) {
			s.waiting++
			return nil, s.given
		}
		out = append(out, slices.Concat(gpus[:w.gpus], dirs[:w.dirs]))
		gpus, dirs = gpus[w.gpus:], dirs[w.dirs:]
	}
	for i, w := range wants {
		for _, id := range out[i] {
			if !w.look {
				delete(s.free, id)
				delete(s.hot, id)
			}
		}
	}
	return out, nil
}

// candidates are the free devices in the order in which they are given out.
func (s *scheduler) candidates(random *rand.Rand, all []deviceID) []deviceID {
	out := slices.DeleteFunc(slices.Clone(all), func(id deviceID) bool { return !s.free[id] })
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	slices.SortStableFunc(out, func(a, b deviceID) int {
		switch {
		case s.hot[a] == s.hot[b]:
			return 0
		case s.hot[a]:
			return -1
		}
		return 1
	})
	return out
}

// some are n different devices, whoever has them.
func some(random *rand.Rand, all []deviceID, n int) []deviceID {
	var out []deviceID
	for _, i := range random.Perm(len(all))[:n] {
		out = append(out, all[i])
	}
	return out
}

// reserve takes one device if it is free.
func (s *scheduler) reserve(id deviceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.free[id] || s.hot[id] {
		return false
	}
	delete(s.free, id)
	return true
}

// give takes devices back. hot ones are those whose last claim is not unprepared.
func (s *scheduler) give(ids []deviceID, hot bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.free[id] = true
		if hot {
			s.hot[id] = true
		}
	}
	close(s.given)
	s.given, s.waiting = make(chan struct{}), 0 // all look again
}

// live adds to the number of pods.
func (s *scheduler) live(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods += n
}

// hold adds to the number of pods that keep their devices until others have done something.
func (s *scheduler) hold(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding += n
}

// stuck says whether every pod waits for another one, so that one that holds devices must give them back.
func (s *scheduler) stuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting+s.holding >= s.pods
}

// cooled: kubelet has unprepared the last claim of these devices.
func (s *scheduler) cooled(ids []deviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.hot, id)
	}
}

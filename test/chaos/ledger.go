// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// ledger is what kubelet, the scheduler and the tenants know of claims. It sees at once where two claims have one device, and where
// what kubelet was told changes.
type ledger struct {
	mu    sync.Mutex
	known map[*tenancy]struct{}
	// users are the live claims by device, looks left out.
	users map[deviceID]*tenancy
	// meanings are the edits that a CDI name had at this boot.
	meanings map[string]string
	// boot counts boots.
	boot int
}

func newLedger() *ledger {
	return &ledger{known: map[*tenancy]struct{}{}, users: map[deviceID]*tenancy{}, meanings: map[string]string{}}
}

// tenancy is one use of a claim, from its allocation to its release.
type tenancy struct {
	holder
	// claim is the object's name, uid its UID.
	claim, uid string
	want       want

	// movedIn: the tenant has made its files. Only the caller whose claim it is looks at this.
	movedIn bool
	// counted: it was prepared once. lastError is of the last call that failed. Both are the caller's too.
	counted   bool
	lastError string
	// answer is what kubelet was told at boot.
	answer string
	boot   int
}

// begin takes note of a claim that was allocated.
func (l *ledger) begin(t *tenancy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[t] = struct{}{}
}

// prepared takes note that kubelet was told so. names are the CDI devices of each grant, and answer the whole of what was said.
func (l *ledger) prepared(t *tenancy, names [][]string, answer string) []violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []violation
	if t.answer != "" && t.boot == l.boot && t.answer != answer {
		found = append(found, violation{lost, t.name, fmt.Sprintf("kubelet was told %s, and then %s", t.answer, answer)})
	}
	t.live, t.answer, t.boot = true, answer, l.boot
	for i := range t.grants {
		g := &t.grants[i]
		g.cdi = names[i]
		if g.look {
			continue
		}
		if other := l.users[g.id]; other != nil && other != t {
			found = append(found, violation{doublyUsed, t.name, fmt.Sprintf("was given %s, which %s has", g.id, other.name)})
		}
		l.users[g.id] = t
	}
	return found
}

// meant wants a CDI name to mean the same as long as the machine runs: a container that restarts is given the same names.
func (l *ledger) meant(t *tenancy, specs specDir) []violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []violation
	for i := range t.grants {
		for _, id := range t.grants[i].cdi {
			e, err := specs.find(id)
			if err != nil {
				continue // said by the checker
			}
			if old, ok := l.meanings[id]; ok && old != e.String() {
				found = append(found, violation{lost, t.name, fmt.Sprintf("CDI device %s meant %s, and now %s", id, old, e)})
			}
			l.meanings[id] = e.String()
		}
	}
	return found
}

// moved takes note of the files that a tenant made.
func (l *ledger) moved(t *tenancy, files []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.files = files
}

// releasing takes note that kubelet is about to ask for the claim's release, after its containers ended.
func (l *ledger) releasing(t *tenancy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(t)
}

func (l *ledger) drop(t *tenancy) {
	t.live = false
	for i := range t.grants {
		if id := t.grants[i].id; l.users[id] == t {
			delete(l.users, id)
		}
	}
}

// end takes note that kubelet was told of the release.
func (l *ledger) end(t *tenancy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, t)
}

// rebooted: no container runs any more, and what kubelet was told holds no longer. The devices have new numbers.
func (l *ledger) rebooted(now map[string]hardware) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boot++
	clear(l.meanings)
	for t := range l.known {
		l.drop(t)
		for i := range t.grants {
			g := &t.grants[i]
			g.cdi, g.hardware = nil, now[g.hardware.key]
		}
	}
}

// holders are copies of all that is known, by name.
func (l *ledger) holders() []holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]holder, 0, len(l.known))
	for t := range l.known {
		out = append(out, t.copy())
	}
	slices.SortFunc(out, func(a, b holder) int { return cmp.Compare(a.name, b.name) })
	return out
}

// holderOf is a copy of what is known of one claim.
func (l *ledger) holderOf(t *tenancy) holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.copy()
}

func (t *tenancy) copy() holder {
	h := t.holder
	h.grants = slices.Clone(t.grants)
	return h
}

// alive says whether kubelet was told at this boot that the claim is prepared.
func (l *ledger) alive(t *tenancy) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.live
}

// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
	"github.com/fettle-dev/fettle/test/seed"
)

// secret is what a tenant leaves in a card's memory.
const secret = "the other tenant's data;"

// slowly is how long the blank image of these tests takes to clear the memory: far longer than the next image takes to be loaded.
const slowly = 500 * time.Millisecond

// fills writes a text to all memory of the first card, as a claim's program does through its port.
func (n *node) fills(port int, text string) {
	n.t.Helper()
	all := strings.Repeat(text, fpgasim.MemorySize/len(text)+1)[:fpgasim.MemorySize]
	f, err := os.OpenFile(filepath.Join(n.Root, n.Place(0, port).Node), os.O_RDWR, 0)
	check.Must(n.t, err)
	_, err = f.WriteAt([]byte(all), 0)
	check.Must(n.t, err)
	check.Must(n.t, f.Close())
}

// memory is all memory of the first card, as a claim's program reads it through its port.
func (n *node) memory(port int) []byte {
	n.t.Helper()
	f, err := os.Open(filepath.Join(n.Root, n.Place(0, port).Node))
	check.Must(n.t, err)
	defer f.Close()
	content := make([]byte, fpgasim.MemorySize)
	_, err = f.ReadAt(content, 0)
	check.Must(n.t, err)
	return content
}

// forgets wants the memory of the first card to have nothing of the tenant before.
func (n *node) forgets(port int) {
	n.t.Helper()
	content := n.memory(port)
	if left := bytes.Count(content, []byte(secret)); left > 0 {
		n.t.Errorf("a program on port %d reads %d times %q of another namespace's claim, first at byte %d",
			port, left, secret, bytes.Index(content, []byte(secret)))
	}
}

// slowBlank is a blank image that takes a while to clear the card's memory, and of which the plugin knows it.
func (n *node) slowBlank() *region.Image {
	n.t.Helper()
	blank := n.keep(packed(shell, nothing, "", fpgasim.ClearingImage(shell, nothing, 1000, slowly)))
	blank.ClearTime = slowly
	return blank
}

// TestMemoryOfTheNext: the program of a claim reads nothing of what a claim of another namespace left in the card's memory, through the
// same region or another one of the card, however soon it comes. A claim of the same namespace finds its data.
func TestMemoryOfTheNext(t *testing.T) {
	for _, tc := range []struct {
		name  string
		claim region.Claim
		port  int
		// keepMemory: a class accepts that the memory is not cleared.
		keepMemory, finds bool
	}{
		{name: "another namespace", claim: ours()},
		{name: "another namespace, another region of the card", claim: ours(), port: 1},
		{name: "the same namespace", claim: claimOf(theirs().Namespace, "b2"), finds: true},
		{name: "another namespace, accepted by the class", claim: ours(), keepMemory: true, port: 1, finds: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, machine(card(2)))
			before := p.program(theirs(), p.image(nlb0), func(program *region.Program) { program.MarkCard = true })
			check.Must(t, p.apply(before))
			p.fills(0, secret)
			check.Must(t, p.undo(before))
			if !bytes.Contains(p.memory(0), []byte(secret)) {
				t.Fatal("a release clears the memory of the simulated card, so that nothing is left to be cleared")
			}

			device := name(0, tc.port)
			check.Must(t, p.apply(&region.Scrub{
				Device: device, Claim: tc.claim, Blank: p.slowBlank(), KeepMemory: tc.keepMemory, Required: true, Timeout: time.Minute,
			}))
			check.Must(t, p.apply(p.program(tc.claim, p.image(nlb3), at(device))))
			if !tc.finds {
				p.forgets(tc.port)
			} else if !bytes.Contains(p.memory(tc.port), []byte(secret)) {
				t.Error("the memory was cleared")
			}
		})
	}
}

// TestMemoryOfTheStopped: a plugin is stopped while the blank image clears the memory. No claim gets the region before all of the memory is
// cleared.
func TestMemoryOfTheStopped(t *testing.T) {
	p := start(t, machine(card(1)))
	p.usedBy(theirs(), nlb0)
	p.fills(0, secret)
	scrub := p.scrub(p.slowBlank())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	made := p.step(scrub)
	go func() { ended <- p.kinds.Apply(ctx, made) }()
	p.Await(2, func(e fpgasim.Event) bool { return e.Op == "done" }) // that of the tenant, and the blank image
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the image has cleared the memory before it could be stopped")
	}

	p = p.process()
	program := p.program(ours(), p.image(nlb3), mode(region.ModeNever))
	wants(t, p.apply(program), region.ErrUnknownState)
	check.Must(t, p.apply(scrub))
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3))))
	p.forgets(0)
}

// TestMemoryInUse: a claim's memory is not cleared by the end of another claim of the card, nor for the next one; and what it leaves there
// is known when it has ended.
func TestMemoryInUse(t *testing.T) {
	p := start(t, machine(card(2)))
	marked := func(program *region.Program) { program.MarkCard = true }
	stays := p.program(ours(), p.image(nlb0), marked)
	ends := p.program(next(), p.image(nlb3), at(name(0, 1)), marked, released(region.ReleaseBlank, p.blank()))
	check.Must(t, p.apply(stays), p.apply(ends))
	p.fills(0, secret)
	used := p.memory(0)
	check.Must(t, p.undo(ends))
	scrub := &region.Scrub{Device: name(0, 1), Claim: theirs(), Blank: p.blank(), Required: true, Timeout: time.Minute}
	if err := p.apply(scrub); !errors.Is(err, region.ErrCardInUse) || !strings.Contains(err.Error(), name(0, 0)) {
		t.Errorf("error %v, want one that names the region that is in use", err)
	}
	if !bytes.Equal(used, p.memory(0)) {
		t.Fatal("the memory was cleared while a claim uses it")
	}
	check.Must(t, p.undo(stays), p.apply(scrub))
	p.forgets(1)
}

// TestMemoryAfterCleared: the memory was cleared through another region, and then a claim of the namespace whose logic this region still
// has wrote to it once more. That is not forgotten.
func TestMemoryAfterCleared(t *testing.T) {
	p := start(t, machine(card(2)))
	marked := func(program *region.Program) { program.MarkCard = true }
	one, two := name(0, 0), name(0, 1)
	uses := func(c region.Claim, device string) {
		t.Helper()
		check.Must(t, p.apply(&region.Scrub{Device: device, Claim: c, Blank: p.blank(), Timeout: time.Minute}))
		program := p.program(c, p.image(nlb3), at(device), marked)
		check.Must(t, p.apply(program), p.undo(program))
	}
	uses(ours(), two)
	uses(theirs(), one) // clears the memory
	uses(next(), one)   // and clears it again; then it writes
	if err := p.apply(&region.Scrub{Device: two, Claim: theirs(), Timeout: time.Minute}); !errors.Is(err, region.ErrMemory) {
		t.Errorf("error %v, want that the memory may hold data of %s", err, ours().Namespace)
	}
}

// TestMemoryInAnyOrder has claims of two namespaces come and go on the two regions of a card, at most one namespace at a time, and end in
// any way. A claim finds no data of the other namespace, and keeps its own as long as it is there.
func TestMemoryInAnyOrder(t *testing.T) {
	random := seed.New(t)
	p := start(t, machine(card(2)))
	var there [2]*region.Program
	releases := []region.Release{region.ReleaseBlank, region.ReleaseReset, region.ReleaseKeep}
	texts := map[string]string{"team-a": "what team-a wrote;", "team-b": "what team-b wrote;"}
	for i := range 150 {
		port := random.IntN(2)
		other := there[1-port]
		if ends := there[port]; ends != nil {
			before := p.memory(port)
			check.Must(t, p.undo(ends))
			if other != nil && !bytes.Equal(before, p.memory(port)) {
				t.Fatalf("step %d: the end of a claim changed the memory that another claim uses", i)
			}
			there[port] = nil
			continue
		}
		namespace := []string{"team-a", "team-b"}[random.IntN(2)]
		if other != nil {
			namespace = other.Claim.Namespace
		}
		c := claimOf(namespace, fmt.Sprint(i))
		before := p.memory(port)
		err := p.apply(&region.Scrub{Device: name(0, port), Claim: c, Blank: p.blank(), Timeout: time.Minute})
		if other != nil && !bytes.Equal(before, p.memory(port)) {
			t.Fatalf("step %d: a claim that comes had the memory cleared that another claim uses", i)
		}
		if other != nil && errors.Is(err, region.ErrCardInUse) {
			continue
		}
		check.Must(t, err)
		program := p.program(c, p.image([]string{nlb0, nlb3}[random.IntN(2)]), at(name(0, port)),
			released(releases[random.IntN(len(releases))], p.blank()), func(program *region.Program) { program.MarkCard = true })
		check.Must(t, p.apply(program))
		there[port] = program
		for whose, text := range texts {
			if whose != namespace && bytes.Contains(p.memory(port), []byte(text)) {
				t.Fatalf("step %d: a claim of %s reads what %s wrote", i, namespace, whose)
			}
		}
		p.fills(port, texts[namespace])
	}
}

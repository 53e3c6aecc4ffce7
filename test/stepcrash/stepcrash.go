// SPDX-License-Identifier: Apache-2.0

// Package stepcrash ends a process at every point of a step that changes a device of a simulated machine: before and after each write of an
// attribute and each operation on the files of restore points. After each it does what the next process would do, and compares the machine
// with what it was.
package stepcrash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// Kinds makes the step kinds of a process.
type Kinds func(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds

// job is what a child does until it is killed.
type job struct {
	Root, Dir, Boot string
	Acts            []act
}

// act is one step, applied or undone.
type act struct {
	Undo bool
	Step step.Step
}

// Writer counts the writes of attributes among the operations of an injector.
type Writer struct {
	Injector *fault.Injector
	Under    *sysfs.Writer
}

// WriteAttr writes an attribute.
func (w Writer) WriteAttr(name, value string) error {
	return w.Injector.Do("write "+name+" "+value, func() error { return w.Under.WriteAttr(name, value) })
}

// Child plays the process that is killed. A test function of the caller's package, which Case names, has nothing else.
func Child(t *testing.T, kinds Kinds) {
	t.Helper()
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var j job
	check.Must(t, json.Unmarshal(plan.Data, &j))
	in, err := plan.Injector()
	check.Must(t, err)
	tree, err := sysfs.Open(j.Root)
	check.Must(t, err)
	under, err := sysfs.OpenWriter(j.Root)
	check.Must(t, err)
	k := kinds(tree, Writer{in, under}, restorepoint.Open(in.FS(disk.OS{}), j.Dir, j.Boot))
	for _, a := range j.Acts {
		do := k.Apply
		if a.Undo {
			do = k.Undo
		}
		check.Must(t, do(t.Context(), a.Step))
	}
}

// Case is a step on a machine.
type Case struct {
	// Child is the name of the test function that calls Child.
	Child string
	Kinds Kinds
	// Root is the host tree, Dir the directory of restore points, Boot the boot.
	Root, Dir, Boot string
	// Plan plans the step anew. Sharers are steps of other claims that share the device: they are applied after it, and undone after it.
	Plan    func() step.Step
	Sharers func() []step.Step
	// State is the machine as text.
	State func() string
}

// steps are those of all claims.
func (c Case) steps() []step.Step {
	steps := []step.Step{c.Plan()}
	if c.Sharers != nil {
		steps = append(steps, c.Sharers()...)
	}
	return steps
}

// recovery is what may happen next.
type recovery func(t *testing.T, k step.Kinds, points *restorepoint.Store, steps []step.Step)

func recoveries() map[string]recovery {
	return map[string]recovery{
		"the record is undone": func(t *testing.T, k step.Kinds, _ *restorepoint.Store, steps []step.Step) {
			t.Helper()
			each(t, k.Undo, steps)
		},
		"the record is lost": func(t *testing.T, k step.Kinds, points *restorepoint.Store, _ []step.Step) {
			t.Helper()
			left, err := points.List()
			check.Must(t, err)
			for _, p := range left {
				for _, claim := range p.Claims() {
					s, _ := p.Of(claim)
					check.Must(t, k.Undo(t.Context(), s))
				}
			}
		},
		"the step is tried again": func(t *testing.T, k step.Kinds, _ *restorepoint.Store, steps []step.Step) {
			t.Helper()
			each(t, k.Apply, steps)
			each(t, k.Verify, steps)
			each(t, k.Undo, steps)
		},
	}
}

func each(t *testing.T, do func(context.Context, step.Step) error, steps []step.Step) {
	t.Helper()
	for _, s := range steps {
		check.Must(t, do(t.Context(), s))
	}
}

// Every kills a process at every point of the step's Apply and Undo, in the middle of each write to a file as well, and lets each recovery
// follow. It returns how many points there are, and how many times a process was killed.
func (c Case) Every(t *testing.T) (points, kills int) {
	t.Helper()
	before := c.State()
	for name, recover := range recoveries() {
		for n := 1; !t.Failed(); n++ {
			killed := c.one(t, fault.Kill(n))
			if killed == nil {
				c.recovered(t, name+" after it finished", before, recover)
				break
			}
			c.recovered(t, fmt.Sprintf("%s after a kill at %s", name, killed), before, recover)
			points = max(points, n)
			kills++
			if killed.Kind == fault.Write {
				c.one(t, fault.Tear(n))
				c.recovered(t, fmt.Sprintf("%s after a kill in the middle of %s", name, killed), before, recover)
				kills++
			}
		}
	}
	return points, kills
}

// one runs a process that applies and undoes the step, until the fault kills it. It returns where that was, nil if the process finished.
func (c Case) one(t *testing.T, f fault.Fault) *fault.Op {
	t.Helper()
	j := job{Root: c.Root, Dir: c.Dir, Boot: c.Boot}
	for _, undo := range []bool{false, true} {
		for _, s := range c.steps() {
			j.Acts = append(j.Acts, act{Undo: undo, Step: s})
		}
	}
	data, err := json.Marshal(j)
	check.Must(t, err)
	result, err := fault.Child{Test: c.Child}.Run(t.Context(), fault.Plan{Faults: []fault.Fault{f}, Quick: true, Data: data})
	check.Must(t, err)
	return result.Killed
}

// recovered lets the next process recover and compares.
func (c Case) recovered(t *testing.T, name, before string, recover recovery) {
	t.Helper()
	tree, err := sysfs.Open(c.Root)
	check.Must(t, err)
	under, err := sysfs.OpenWriter(c.Root)
	check.Must(t, err)
	defer func() { check.Must(t, errors.Join(tree.Close(), under.Close())) }()
	points := restorepoint.Open(disk.OS{}, c.Dir, c.Boot)
	k := c.Kinds(tree, under, points)
	steps := c.steps()
	recover(t, k, points, steps)
	each(t, k.Undo, steps) // twice
	if diff := cmp.Diff(before, c.State()); diff != "" {
		t.Errorf("%s (-before +after):\n%s", name, diff)
	}
	left, err := points.List()
	check.Must(t, err)
	if len(left) > 0 {
		t.Errorf("%s: restore points %+v are left", name, left)
	}
	entries, err := os.ReadDir(c.Dir)
	check.Must(t, err)
	for _, e := range entries { // What a write that was cut off leaves.
		check.Must(t, os.Remove(c.Dir+"/"+e.Name()))
	}
}

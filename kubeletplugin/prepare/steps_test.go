// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/test/check"
)

var errInjected = errors.New("injected")

func fail(context.Context, json.RawMessage) error { return errInjected }

// gate stands before a kind of step: each call about what it watches announces itself at the gate and waits there until the test lets
// it through, or its context ends.
type gate struct {
	// at says which call came: "apply" or "undo".
	at chan string
	// through is what the call that waits returns at once; nil lets it do its work.
	through chan error
	watches string
}

// guard puts a gate before an engine's steps on directories whose path contains watches.
func (s *site) guard(watches string) *gate {
	g := &gate{at: make(chan string, 100), through: make(chan error), watches: watches}
	kind := s.kinds[hostdir.StepKind]
	kind.Apply, kind.Undo = g.before("apply", kind.Apply), g.before("undo", kind.Undo)
	s.kinds[hostdir.StepKind] = kind
	return g
}

func (g *gate) before(verb string, inner stepFunc) stepFunc {
	return func(ctx context.Context, params json.RawMessage) error {
		if !bytes.Contains(params, []byte(g.watches)) {
			return inner(ctx, params)
		}
		g.at <- verb
		select {
		case err := <-g.through:
			if err != nil {
				return err
			}
			return inner(ctx, params)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// open lets everything through from now on.
func (g *gate) open() { close(g.through) }

type stepFunc = func(context.Context, json.RawMessage) error

// diary puts a kind's calls down in order, "apply /path" and "undo /path", before they are made.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (s *site) diary() *diary {
	d := new(diary)
	kind := s.kinds[hostdir.StepKind]
	kind.Apply, kind.Undo = d.before("apply", kind.Apply), d.before("undo", kind.Undo)
	s.kinds[hostdir.StepKind] = kind
	return d
}

func (d *diary) before(verb string, inner stepFunc) stepFunc {
	return func(ctx context.Context, params json.RawMessage) error {
		var p hostdir.Params
		if err := json.Unmarshal(params, &p); err != nil {
			return err
		}
		d.mu.Lock()
		d.lines = append(d.lines, verb+" "+filepath.Base(p.Path))
		d.mu.Unlock()
		return inner(ctx, params)
	}
}

// take returns what was put down since the last call.
func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

// failing makes one part of a kind fail where the path contains a text, and returns what puts it right.
func (s *site) failing(verb, about string) (repair func()) {
	good := s.kinds[hostdir.StepKind]
	bad := good
	unless := func(inner stepFunc) stepFunc {
		return func(ctx context.Context, params json.RawMessage) error {
			if bytes.Contains(params, []byte(about)) {
				return fail(ctx, params)
			}
			return inner(ctx, params)
		}
	}
	switch verb {
	case "apply":
		bad.Apply = unless(good.Apply)
	case "undo":
		bad.Undo = unless(good.Undo)
	case "finish":
		bad.Finish = unless(good.Finish)
	}
	s.kinds[hostdir.StepKind] = bad
	return func() { s.kinds[hostdir.StepKind] = good }
}

func (p *place) ownSpecPath(uid string) string {
	return filepath.Join(p.cdiDir(), "fettle.dev-claim-"+uid+".json")
}

// ownSpec reads a claim's own spec file. A file that is not there has no devices.
func (p *place) ownSpec(uid string) specs.Spec {
	p.t.Helper()
	var spec specs.Spec
	data, err := os.ReadFile(p.ownSpecPath(uid))
	if errors.Is(err, os.ErrNotExist) {
		return spec
	}
	check.Must(p.t, err)
	check.Must(p.t, json.Unmarshal(data, &spec))
	return spec
}

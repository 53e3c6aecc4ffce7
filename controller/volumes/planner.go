// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/controller/reconciler"
)

// Planner plans the volumes of caches: for the reconciler that carries plans out, and for the status of caches. It remembers why the last
// plan of a cache could not be carried out, such as a quota of the namespace, since the status has to say that.
type Planner struct {
	reader  Reader
	options Options

	mu       sync.Mutex
	failures map[types.NamespacedName]string
}

// NewPlanner returns a planner.
func NewPlanner(s reconciler.Services, options Options) *Planner {
	return &Planner{
		reader: Reader{Cached: s.Client, Live: s.Live, Clock: s.Clock}, options: options, failures: map[types.NamespacedName]string{},
	}
}

// Enabled says whether plans are carried out.
func (p *Planner) Enabled() bool { return p.options.Enabled }

// Report plans for the status of a cache: with the pods that use its volumes, and with the error of the last plan that was carried out. A
// cache without volumes has an empty plan.
func (p *Planner) Report(ctx context.Context, o Object) (Plan, error) {
	if !o.Wants() {
		return Plan{}, nil
	}
	reader := p.reader
	reader.Users = true
	plan, err := reader.Plan(ctx, o, p.options)
	if failure := p.failure(o.key()); failure != "" {
		plan.Stuck = append(plan.Stuck, failure)
	}
	return plan, err
}

func (p *Planner) failure(cache types.NamespacedName) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures[cache]
}

// note remembers the error of the last plan of a cache; nil forgets it.
func (p *Planner) note(cache types.NamespacedName, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.failures, cache)
		return
	}
	p.failures[cache] = strings.ReplaceAll(err.Error(), "\n", "; ")
}

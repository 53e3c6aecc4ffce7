// SPDX-License-Identifier: Apache-2.0

// Package play runs a scenario of the demo on a cluster, as a person at a keyboard would: with kubectl, and from inside containers.
package play

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/fettle-dev/fettle/demo/internal/script"
	"github.com/fettle-dev/fettle/test/harness"
)

// patience is how long a step may wait for what must be seen. It takes seconds on an idle machine.
const patience = 90 * time.Second

// Scenario is one directory of the demo.
type Scenario struct {
	// Name is the directory's, and Dir is its path.
	Name, Dir string
	// Title is the heading of its README.
	Title  string
	Script script.Script
}

// Namespace is where the scenario's objects live, unless they say otherwise.
func (s Scenario) Namespace() string { return "demo-" + s.Name }

// stage is a scenario being played.
type stage struct {
	Scenario
	h *harness.Harness
	// look is the script that lists a container's device nodes.
	look string
	// vars are what expected lines have set so far.
	vars map[string]string
	// applied are the files to take away afterwards, and converted the manifests.
	applied, converted []string
}

// Contexts adds a context to a kubeconfig for each scenario: its name is that of the scenario's namespace, which it makes the default.
func Contexts(kubeconfig string, scenarios []Scenario) error {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("add the scenarios' contexts: %w", err)
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok {
		return fmt.Errorf("add the scenarios' contexts: %s has no current context", kubeconfig)
	}
	for _, s := range scenarios {
		own := current.DeepCopy()
		own.Namespace = s.Namespace()
		config.Contexts[s.Namespace()] = own
	}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return fmt.Errorf("add the scenarios' contexts: %w", err)
	}
	return nil
}

// Play runs a scenario to its end or to the first step that is not as expected. What it made is removed afterwards, without waiting
// for it to be gone, unless it failed and keep is set, or the end of ctx stopped it. Its context must be there.
func Play(ctx context.Context, h *harness.Harness, s Scenario, look string, keep bool) error {
	st := &stage{Scenario: s, h: h, look: look, vars: map[string]string{}}
	if _, err := h.Kubectl(ctx, "create", "namespace", s.Namespace()); err != nil {
		return err
	}
	err := st.play(ctx)
	if err != nil && keep || ctx.Err() != nil {
		return err
	}
	if cleared := st.clear(ctx); cleared != nil {
		return errors.Join(err, fmt.Errorf("%w: %w", ErrClear, cleared))
	}
	return err
}

// ErrClear is the fault of a scenario whose objects could not be taken away.
var ErrClear = errors.New("take away what the scenario made")

func (st *stage) play(ctx context.Context) error {
	for _, written := range st.Script.Steps {
		step, err := written.Expand(st.vars)
		if err == nil {
			err = st.step(ctx, step)
		}
		if err != nil {
			return &StepError{Step: step, Err: err}
		}
	}
	return nil
}

// StepError is a step that was not as expected.
type StepError struct {
	Step script.Step
	Err  error
}

// Error names the line of the expect file.
func (e *StepError) Error() string {
	return fmt.Sprintf("expect:%d: %s: %v", e.Step.Line, e.Step, e.Err)
}

// Unwrap is the fault.
func (e *StepError) Unwrap() error { return e.Err }

// step does what the verb says.
func (st *stage) step(ctx context.Context, step script.Step) error {
	switch step.Verb {
	case "apply":
		if step.Fails {
			return st.refused(ctx, step)
		}
		return st.apply(ctx, step.Args)
	case "convert":
		return st.convert(ctx, step.Args)
	case "delete":
		return st.delete(ctx, step.Args)
	case "node":
		out, err := st.h.OnNode(ctx, step.Args[0], "sh", "-c", step.Text)
		return st.see(step, out, err)
	case "running":
		return st.running(ctx, step.Args)
	case "gone":
		return st.gone(ctx, step.Args)
	case "pending":
		return st.pending(ctx, step)
	case "look":
		step.Text = st.look
		return st.exec(ctx, step)
	case "exec":
		return st.exec(ctx, step)
	case "get":
		return st.get(ctx, step)
	case "fettle":
		return st.fettle(ctx, step)
	default:
		return st.ofCluster(ctx, step)
	}
}

// ofCluster does a step that is not about objects of the scenario alone.
func (st *stage) ofCluster(ctx context.Context, step script.Step) error {
	switch step.Verb {
	case "walk":
		return st.walk(ctx, step)
	case "helm-test":
		out, err := st.h.TestChart(ctx)
		return st.see(step, out, err)
	default:
		return fmt.Errorf("there is no step %q", step.Verb)
	}
}

// see compares output with what the step expects and keeps the variables that it set.
func (st *stage) see(step script.Step, seen string, err error) error {
	if err != nil {
		return err
	}
	vars, err := step.Match(seen, st.vars)
	if err != nil {
		return err
	}
	st.vars = vars
	return nil
}

// file is the path of one of the scenario's files.
func (st *stage) file(name string) string { return filepath.Join(st.Dir, name) }

// pod splits NAMESPACE/POD; without a namespace it is the scenario's own.
func (st *stage) pod(word string) (namespace, name string) {
	namespace, name, ok := strings.Cut(word, "/")
	if !ok {
		return st.Namespace(), word
	}
	return namespace, name
}

// kubectl runs kubectl with the scenario's namespace as the default one, which unlike --namespace allows objects of others.
func (st *stage) kubectl(ctx context.Context, args ...string) (string, error) {
	return st.h.Kubectl(ctx, append([]string{"--context", st.Namespace()}, args...)...)
}

// clear deletes everything that was applied.
func (st *stage) clear(ctx context.Context) error {
	var errs []error
	for _, file := range slices.Backward(st.applied) {
		_, err := st.kubectl(ctx, "delete", "--ignore-not-found", "--wait=false", "--grace-period=1", "--filename", file)
		errs = append(errs, err)
	}
	for _, manifests := range st.converted {
		_, err := st.h.KubectlWith(ctx, manifests, "--context", st.Namespace(), "delete", "--ignore-not-found", "--wait=false",
			"--grace-period=1", "--filename", "-")
		errs = append(errs, err)
	}
	_, err := st.h.Kubectl(ctx, "delete", "namespace", st.Namespace(), "--wait=false")
	return errors.Join(append(errs, err)...)
}

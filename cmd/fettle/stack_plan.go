// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const stackPlanHelp = `
Says what AcceleratorStacks would do next with the drivers of their nodes: which nodes get another driver, in which order and how many at
once, which pods are evicted for it, and which PodDisruptionBudgets keep them now. Nothing is changed.

Of a cluster:  fettle stack plan [--stack NAME]
Of a change:   fettle stack plan --from-cluster -f stack.yaml
Of files:      fettle stack plan -f FILE|DIR [-f ...]

With both, the objects of the files take the place of those of the cluster: that shows what a change of a stack would do before it is
applied. Of files it needs the AcceleratorStacks, AcceleratorNodes, Nodes, ResourceClaims and PodDisruptionBudgets, the Pods that hold
claims and those of drivers and of Fettle's plugin, and with the engine KMM the NodeModulesConfigs.

TURN is when a node begins: 1 is now, 2 once those of 1 are done, as if all went well. A node without a turn waits for what REASON says.
PHASE is where the node is after the next step of the controller. Pods with admin access go last. Each pod is held against its budgets as
if it were the only one. What cannot be known is named at the end.`

const stackPlanExamples = `
fettle stack plan
fettle stack plan --stack h100 -o yaml
fettle stack plan --from-cluster -f h100.yaml
fettle stack plan -f objects.yaml`

// stackPlanFlags are those of stack plan.
type stackPlanFlags struct {
	*cluster
	files           list
	fromCluster     bool
	stack           string
	system, drivers string
}

func stackPlan(flags *arguments) action {
	f := stackPlanFlags{cluster: flags.connection()}
	flags.VarP(&f.files, "filename", "f", "`file` or directory with objects, - for standard input; may be repeated")
	flags.BoolVar(&f.fromCluster, "from-cluster", false, "read the cluster of kubectl, too")
	flags.StringVar(&f.stack, "stack", "", "`name` of the only stack to show")
	flags.StringVar(&f.system, "driver-namespace", "fettle-system", "`namespace` of Fettle's plugin")
	flags.StringVar(&f.drivers, "drivers-namespace", "fettle-drivers", "`namespace` in which stacks run drivers")
	flags.where("stack", unless(isName))
	flags.where("driver-namespace", isNamespace)
	flags.where("drivers-namespace", isNamespace)
	format := flags.format()
	flags.completeFlagBy("stack", func(ctx context.Context) []string {
		return f.names(ctx, func(ctx context.Context, r *reader, _ string) []string {
			all, _ := r.list(ctx, v1alpha1.GroupVersion.WithResource("acceleratorstacks"), "")
			var names []string
			for i := range all {
				names = append(names, all[i].GetName())
			}
			return names
		})
	})
	return func(ctx context.Context, _ []string, stdout, _ io.Writer) error {
		f.fromCluster = f.fromCluster || len(f.files) == 0
		if given := flags.whichCluster(); !f.fromCluster && given != "" {
			return flags.misused(fmt.Errorf("--%s: want --from-cluster", given))
		}
		plans, err := f.plan(ctx)
		if err != nil {
			return fmt.Errorf("stack plan: %w", err)
		}
		return show(*format, plans, stdout, plans.table)
	}
}

// stackPlans are those of the stacks.
type stackPlans struct {
	Stacks []stack.Preview `json:"stacks"`
}

// plan reads the objects and makes the plans.
func (f *stackPlanFlags) plan(ctx context.Context) (stackPlans, error) {
	objects, unread, err := f.read(ctx)
	if err != nil {
		return stackPlans{}, err
	}
	objects.Namespace, objects.Drivers, objects.Now = f.system, f.drivers, time.Now()
	plans := stackPlans{objects.Previews(f.stack)}
	switch {
	case len(plans.Stacks) == 0 && f.stack != "":
		return plans, fmt.Errorf("there is no AcceleratorStack %s: look with kubectl get acceleratorstacks", f.stack)
	case len(plans.Stacks) == 0:
		return plans, errors.New("there is no AcceleratorStack: give a file that has one, or see docs/user/stack.md")
	}
	for i := range plans.Stacks {
		plans.Stacks[i].Unknown = slices.Concat(unread, plans.Stacks[i].Unknown)
	}
	return plans, nil
}

// table writes each stack: how it changes drivers, its nodes, the pods that go, and what is not known.
func (p stackPlans) table(stdout io.Writer) error {
	for i := range p.Stacks {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		if err := writeStackPlan(&p.Stacks[i], stdout); err != nil {
			return err
		}
	}
	return nil
}

func writeStackPlan(p *stack.Preview, stdout io.Writer) error {
	fmt.Fprintf(stdout, "stack %s, engine %s: %s\n", p.Stack, p.Engine, stackRules(p))
	var shown []stack.NodePreview
	for _, n := range p.Nodes {
		if p.Changes && (n.Phase != stack.PhaseCurrent || n.Reason != "") {
			shown = append(shown, n)
		}
	}
	if err := writeNodes(shown, stdout); err != nil {
		return err
	}
	if rest := len(p.Nodes) - len(shown); rest > 0 {
		fmt.Fprintf(stdout, "\n%s with nothing to change\n", counted(rest, "node"))
	}
	if err := writeEvictions(shown, stdout); err != nil {
		return err
	}
	if err := writePossibleHolders(shown, stdout); err != nil {
		return err
	}
	if err := writeLines("warning", p.Warnings, stdout); err != nil {
		return err
	}
	return writeLines("not known", p.Unknown, stdout)
}

// stackRules says how many nodes change at once, and when no further node begins.
func stackRules(p *stack.Preview) string {
	if !p.Changes {
		return "changes no driver"
	}
	out := fmt.Sprintf("%s at once, stops once more than %d failed, drains for %s", counted(p.MaxUnavailable, "node"), p.MaxFailed,
		p.DrainTimeout.Duration)
	if p.Force {
		out += ", then deletes pods whatever their budgets say"
	}
	if p.Paused {
		out += ", is paused"
	}
	return out
}

func writeNodes(nodes []stack.NodePreview, stdout io.Writer) error {
	if len(nodes) == 0 {
		return nil
	}
	fmt.Fprintln(stdout)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TURN\tNODE\tPHASE\tREASON\tFROM\tTO\tKERNEL") // a tabwriter's errors come at Flush
	for i := range nodes {
		n := &nodes[i]
		turn := "-"
		if n.Turn > 0 {
			turn = fmt.Sprint(n.Turn)
		}
		phase := string(n.Phase)
		switch {
		case n.Failed:
			phase += ", failed"
		case n.Stuck:
			phase += ", stuck"
		}
		row := []string{turn, n.Node, phase, orDash(n.Reason), driverText(n.From), driverText(n.To), kernels(n)}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var why []string
	for i := range nodes {
		if nodes[i].Message != "" && nodes[i].Turn < 2 { // others wait for their turn
			why = append(why, nodes[i].Node+": "+nodes[i].Message)
		}
	}
	return writeLines("", why, stdout)
}

// driverText is the last part of a driver's image, which -o json has whole, with the version if it does not have that.
func driverText(d *stack.DriverPreview) string {
	if d == nil {
		return "-"
	}
	image := ""
	if d.Image != "" {
		image = path.Base(d.Image)
	}
	if strings.Contains(image, d.Version) {
		return orDash(image)
	}
	return strings.TrimSpace(d.Version + " " + image)
}

// kernels is the kernel of the new driver, and that of the old one if it is another.
func kernels(n *stack.NodePreview) string {
	var from, to string
	if n.From != nil {
		from = n.From.Kernel
	}
	if n.To != nil {
		to = n.To.Kernel
	}
	if from == "" || to == "" || from == strings.TrimSuffix(to, "+") || from == to {
		return cmp.Or(to, from, "-")
	}
	return from + " -> " + to
}

func writeEvictions(nodes []stack.NodePreview, stdout io.Writer) error {
	if !slices.ContainsFunc(nodes, func(n stack.NodePreview) bool { return len(n.Pods) > 0 }) {
		return nil
	}
	fmt.Fprintln(stdout)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tEVICTS POD\tCLAIMS\tACCESS\tKEPT NOW BY") // a tabwriter's errors come at Flush
	for _, n := range nodes {
		for _, p := range n.Pods {
			access := "devices"
			if p.AdminAccess {
				access = "admin"
			}
			kept := orDash(p.Refused)
			if p.Unknown {
				kept = "not known: the pod was not read"
			}
			fmt.Fprintf(table, "%s\t%s/%s\t%s\t%s\t%s\n", n.Node, p.Namespace, p.Name, strings.Join(p.Claims, ","), access, kept)
		}
	}
	return table.Flush()
}

// writePossibleHolders lists the pods that may keep a driver from being unloaded.
func writePossibleHolders(nodes []stack.NodePreview, stdout io.Writer) error {
	if !slices.ContainsFunc(nodes, func(n stack.NodePreview) bool { return len(n.MayHold) > 0 }) {
		return nil
	}
	fmt.Fprintln(stdout)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tLEAVES POD\tMAY HOLD THE DRIVER BY") // a tabwriter's errors come at Flush
	for _, n := range nodes {
		for _, p := range n.MayHold {
			fmt.Fprintf(table, "%s\t%s/%s\t%s\n", n.Node, p.Namespace, p.Name, p.Why)
		}
	}
	return table.Flush()
}

// writeLines writes texts after an empty line, each with what it is.
func writeLines(what string, texts []string, stdout io.Writer) error {
	for i, text := range texts {
		if i == 0 {
			fmt.Fprintln(stdout)
		}
		if what != "" {
			text = what + ": " + text
		}
		if _, err := fmt.Fprintln(stdout, text); err != nil {
			return err
		}
	}
	return nil
}

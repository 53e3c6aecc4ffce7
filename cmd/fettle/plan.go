// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/change"
	"github.com/fettle-dev/fettle/pkg/plan/page"
)

const planHelp = `
Says which node and which devices the scheduler will give to the pods that wait, before they are created or while they wait.

Of files:      fettle plan -f FILE|DIR [-f ...]
Of a cluster:  fettle plan --from-cluster [--add FILE] [--drain NODE] [--remove KIND/NAME]

The pods are planned one after the other, each with what those before it left: of files in their order, of a cluster by priority and age.
Devices are given by the scheduler's own allocator, with the features of --kubernetes-version. Of the other checks of the scheduler a plan
makes those of taints, node selectors, node affinity, CPU, memory and the number of pods. Nothing is changed. The newest allocator plans for
all versions, without the faults of older ones.

A pod fits the nodes of FITS. Of these it gets the one with the highest score of its devices, then the first by name; the scheduler adds the
scores of other plugins, so that it may choose another of them.

With -o html the plan is a page for a browser, in one file: it draws nodes, PCIe roots and GPUs with their parts, and who has them.

--add, --remove and --drain say what would happen if objects were applied, deleted, or a node was drained. An object is KIND/NAME,
KIND/NAMESPACE/NAME or, of a pod, NAMESPACE/NAME.

The exit status is 0 if all pods have a node, 3 if some have none, 1 if the input is wrong.`

const planExamples = `
fettle plan -f pods.yaml -f slices.yaml
fettle plan --from-cluster --add pod.yaml
fettle plan --from-cluster --drain node-1
fettle plan -f snapshot.yaml -o html > plan.html
fettle plan -f snapshot.yaml --remove team-a/trainer --kubernetes-version 1.36 -o json
kubectl get nodes,resourceslices,deviceclasses -o yaml | fettle plan -f - -f pod.yaml`

// statusNoNode is the exit status of a plan in which pods have no node.
const statusNoNode = 3

// planFlags are those of plan.
type planFlags struct {
	*snapshotFlags
	added, removed, drained list
	timeout                 time.Duration
}

func planPods(flags *arguments) action {
	f := planFlags{snapshotFlags: flags.snapshot()}
	flags.Var(&f.added, "add", "`file` or directory with objects as if they were applied too; may be repeated")
	flags.Var(&f.removed, "remove", "`object` as if it was deleted: KIND/NAME or NAMESPACE/NAME; may be repeated")
	flags.Var(&f.drained, "drain", "`node` as if it was drained; may be repeated")
	flags.DurationVar(&f.timeout, "search-timeout", plan.DefaultTimeout, "`time` of the search on one node; default is the scheduler's")
	flags.where("search-timeout", func(text string) error {
		if d, err := time.ParseDuration(text); err == nil && d <= 0 {
			return errors.New("want more than nothing")
		}
		return nil
	})
	format := flags.formatOf("table", "json", "yaml", formatPage)
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		if err := f.check(flags); err != nil {
			return flags.misused(err)
		}
		made, err := f.make(ctx)
		if err != nil {
			return fmt.Errorf("plan: %w", err)
		}
		err = show(*format, made.report, stdout, func(stdout io.Writer) error {
			if *format == formatPage {
				return page.Write(stdout, planPage(made.cluster, made.before, made.report))
			}
			return made.table(stdout, stderr)
		})
		return errors.Join(err, made.failure())
	}
}

// madePlan is a plan with the pods in their order.
type madePlan struct {
	report plan.Report
	order  []string
	// cluster is as the plan leaves it. Before are the claims that had devices already.
	cluster *plan.Cluster
	before  map[string]bool
}

// make reads the snapshot, changes it and plans.
func (f *planFlags) make(ctx context.Context) (madePlan, error) {
	snapshot, problems, err := f.read(ctx)
	if err != nil {
		return madePlan{}, err
	}
	snapshot, more, err := f.change(snapshot)
	if err != nil {
		return madePlan{}, err
	}
	cluster, _, err := plan.Adopt(snapshot)
	if err != nil {
		return madePlan{}, err
	}
	pending, before := cluster.Pending(), page.Allocated(cluster)
	report, err := plan.Run(ctx, cluster, pending, plan.Options{Timeout: f.timeout, Explain: whatWouldHelp(ctx, cluster)})
	report.Problems = slices.Concat(problems, more, report.Problems)
	return madePlan{report, podNames(pending), cluster, before}, err
}

func podNames(pods []*corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return names
}

// change does to the snapshot what --add, --remove and --drain ask for.
func (f *planFlags) change(snapshot plan.Snapshot) (plan.Snapshot, []plan.Problem, error) {
	var problems []plan.Problem
	if len(f.added) > 0 {
		added, more, err := readSnapshot(f.added, f.defaultNamespace())
		if err != nil {
			return snapshot, nil, fmt.Errorf("--add: %w", err)
		}
		snapshot, problems = change.Add(snapshot, added), append(problems, more...)
	}
	for _, object := range f.removed {
		changed, more, err := change.Remove(snapshot, object, f.defaultNamespace())
		if err != nil {
			return snapshot, nil, fmt.Errorf("--remove: %w", err)
		}
		snapshot, problems = changed, append(problems, more...)
	}
	for _, node := range f.drained {
		changed, more, err := change.Drain(snapshot, node)
		if err != nil {
			return snapshot, nil, fmt.Errorf("--drain: %w", err)
		}
		snapshot, problems = changed, append(problems, more...)
	}
	return snapshot, problems, nil
}

// failure says that pods have no node.
func (m madePlan) failure() error {
	without, beyond, all := 0, 0, counted(len(m.report.Pods), "pod")
	for _, pod := range m.report.Pods {
		switch {
		case pod.Node == nil:
			without++
		case pod.BeyondScheduler:
			beyond++
		}
	}
	switch {
	case without > 0:
		return statusError{fmt.Errorf("plan: %d of %s have no node", without+beyond, all), statusNoNode}
	case beyond > 0:
		return statusError{fmt.Errorf("plan: %d of %s have a node that the scheduler does not find", beyond, all), statusNoNode}
	}
	return nil
}

// table writes the pods, then why some have no node, then what is free. Problems go to stderr.
func (m madePlan) table(stdout, stderr io.Writer) error {
	for _, p := range m.report.Problems {
		if _, err := fmt.Fprintf(stderr, "%s: %s\n", p.Object, p.Message); err != nil {
			return err
		}
	}
	if len(m.order) == 0 {
		_, err := fmt.Fprintln(stderr, "no pod waits for a node")
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POD\tNODE\tFITS\tDEVICES") // a tabwriter's errors come at Flush
	for _, name := range m.order {
		pod := m.report.Pods[name]
		node := "-"
		if pod.Node != nil {
			node = *pod.Node
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", name, node, fitsText(pod), orDash(devicesText(pod.Devices)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	separator := "\n"
	for _, name := range m.order {
		if pod := m.report.Pods[name]; pod.Node == nil {
			fmt.Fprintf(stdout, "%s%s: %s\n", separator, name, pod.Reason)
			separator = ""
		}
	}
	_, err := fmt.Fprintf(stdout, "\n%s\n", freeText(m.report.Free))
	return err
}

// shown is how many names a table has of a long list.
const shown = 8

// fitsText lists nodes, each with its score if devices give one.
func fitsText(pod plan.PodResult) string {
	var nodes []string
	for _, node := range pod.Fits {
		if score, scored := pod.Scores[node]; scored {
			node = fmt.Sprintf("%s(%d)", node, score)
		}
		nodes = append(nodes, node)
	}
	return orDash(shortened(nodes, ","))
}

// devicesText lists devices by claim.
func devicesText(devices map[string][]string) string {
	var claims []string
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		claims = append(claims, name+"="+strings.Join(devices[name], ","))
	}
	return strings.Join(claims, " ")
}

func freeText(free []string) string {
	if len(free) == 0 {
		return "free: no device"
	}
	return fmt.Sprintf("free: %s: %s", counted(len(free), "device"), shortened(free, ", "))
}

// shortened joins the first of a list, and says how many more there are.
func shortened(names []string, separator string) string {
	if len(names) <= shown {
		return strings.Join(names, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], separator), len(names)-shown)
}

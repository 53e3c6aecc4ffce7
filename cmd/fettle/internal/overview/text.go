// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/message"
)

const (
	// rows is how many nodes, and how many faults, fit on a screen.
	rows = 10
	// widest is the longest that is told of a fault, in bytes.
	widest = 160
)

// WriteText writes the overview for people. All has it tell of all nodes and faults, however many there are.
func (r *Report) WriteText(out io.Writer, all bool) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Programs) > 0 {
		fmt.Fprintln(table, "NAMESPACE\tPROGRAM\tVERSION\tREADY") // a tabwriter's errors come at Flush
		for _, p := range r.Programs {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d/%d\n", p.Namespace, p.Name, p.Version, p.Ready, p.Want)
		}
		fmt.Fprintln(table)
	}
	r.writeNodes(table, all)
	if err := table.Flush(); err != nil {
		return err
	}
	if line := r.counts(); line != "" {
		fmt.Fprintf(out, "%s\n\n", line)
	}
	return r.writeWrong(out, all)
}

// writeNodes writes nodes with problems first, and sums of all.
func (r *Report) writeNodes(table io.Writer, all bool) {
	if len(r.Nodes) == 0 {
		return
	}
	fmt.Fprintln(table, "NODE\tDEVICES\tCLAIMS\tPROBLEMS\tSTATE")
	nodes := slices.Clone(r.Nodes)
	slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(b.urgency(), a.urgency()) })
	left := 0
	if !all && len(nodes) > rows {
		left, nodes = len(nodes)-rows, nodes[:rows]
	}
	for _, n := range nodes {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\n", n.Name, devices(n.Pools), n.Claims, n.Problems, n.State)
	}
	if left > 0 {
		fmt.Fprintf(table, "and %d more (--all)\t%s in all\n", left, devices(r.sum()))
	}
	fmt.Fprintln(table)
}

func (n *Node) urgency() int {
	switch {
	case n.State != "Ready":
		return 2
	case n.Problems > 0:
		return 1
	}
	return 0
}

// devices says what pools have: "8 gpu (3 used, 5 free)".
func devices(pools []Pool) string {
	var parts []string
	for _, p := range pools {
		part := fmt.Sprintf("%d %s (%d used, %d free", p.Devices, p.Kind, p.Used, p.Free)
		if p.Unhealthy > 0 {
			part += fmt.Sprintf(", %d unhealthy", p.Unhealthy)
		}
		parts = append(parts, part+")")
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// sum adds the pools of all nodes by kind.
func (r *Report) sum() (out []Pool) {
	for i := range r.Nodes {
		for _, p := range r.Nodes[i].Pools {
			at := slices.IndexFunc(out, func(o Pool) bool { return o.Kind == p.Kind })
			if at < 0 {
				at, out = len(out), append(out, Pool{Kind: p.Kind})
			}
			out[at].Devices += p.Devices
			out[at].Used += p.Used
			out[at].Free += p.Free
			out[at].Unhealthy += p.Unhealthy
		}
	}
	slices.SortFunc(out, func(a, b Pool) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

func (r *Report) counts() string {
	var parts []string
	for _, c := range r.Objects {
		part := fmt.Sprintf("%s %d", c.Kind, c.Count)
		if c.Wrong > 0 {
			part += fmt.Sprintf(" (%d wrong)", c.Wrong)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (r *Report) writeWrong(out io.Writer, all bool) error {
	for _, u := range r.Unread {
		fmt.Fprintf(out, "note: %s\n", u)
	}
	if len(r.Wrong) == 0 {
		_, err := fmt.Fprintln(out, "nothing is wrong, as far as was read")
		return err
	}
	faults, left := r.Wrong, 0
	if !all && len(faults) > rows {
		left, faults = len(faults)-rows, faults[:rows]
	}
	for _, f := range faults {
		what := f.What
		if !all {
			what = message.Line(what, widest)
		}
		if _, err := fmt.Fprintf(out, "wrong: %s: %s\n  next: %s\n", f.About, what, f.Next); err != nil {
			return err
		}
	}
	if left > 0 {
		_, err := fmt.Fprintf(out, "and %d more: --all\n", left)
		return err
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// WriteText writes an explanation for people.
func (e *Explanation) WriteText(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", e.First)
	for _, s := range e.Said {
		fmt.Fprintf(&b, "\n%s: %s\n", s.From, s.Words)
		for _, m := range s.Meanings {
			fmt.Fprintf(&b, "  %s\n", m)
		}
	}
	if len(e.Nodes) > 0 {
		b.WriteString("\n")
	}
	for _, group := range grouped(e.Nodes) {
		fmt.Fprintf(&b, "%s: %s\n", listed(group.names, 8), group.node.Outcome)
		for _, line := range group.node.Lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		if group.node.Verdict != nil {
			writeDevices(&b, group.node.Verdict)
		}
	}
	if len(e.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, note := range e.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// group is nodes with the same lines.
type group struct {
	names []string
	node  Node
}

// grouped puts nodes together that have the same lines, unless their devices are shown.
func grouped(nodes []Node) []group {
	var out []group
	for _, node := range nodes {
		at := slices.IndexFunc(out, func(g group) bool {
			return node.Verdict == nil && g.node.Outcome == node.Outcome && slices.Equal(g.node.Lines, node.Lines)
		})
		if at < 0 {
			out = append(out, group{node: node})
			at = len(out) - 1
		}
		out[at].names = append(out[at].names, node.Name)
	}
	return out
}

// writeDevice writes a device, with every check that fails.
func writeDevice(b *strings.Builder, d *judge.DeviceVerdict) {
	name := fmt.Sprintf("    %s/%s/%s", d.Driver, d.Pool, d.Device)
	if d.Usable() {
		fmt.Fprintf(b, "%s: can be had\n", name)
		return
	}
	fmt.Fprintf(b, "%s\n", name)
	for _, check := range d.Failed {
		fmt.Fprintf(b, "      %s: %s\n", check.Kind, check.Message)
	}
}

// writeDevices writes every device of every request, and the constraints of each claim.
func writeDevices(b *strings.Builder, v *judge.Verdict) {
	for _, c := range v.Claims {
		for i := range c.Requests {
			r := &c.Requests[i]
			fmt.Fprintf(b, "  claim %s, request %s: %d of %d devices can be had\n", c.Name, r.Name, r.Usable(), len(r.Devices))
			for k := range r.Devices {
				writeDevice(b, &r.Devices[k])
			}
		}
		for _, t := range c.Constraints {
			writeTable(b, &t)
		}
	}
}

func writeTable(b *strings.Builder, t *judge.ConstraintVerdict) {
	kind := "the same"
	if t.Distinct {
		kind = "different values of"
	}
	fmt.Fprintf(b, "  constraint: %s %s\n", kind, t.Attribute)
	for _, row := range t.Rows {
		var cells []string
		for i, free := range row.Free {
			cells = append(cells, fmt.Sprintf("request %s: %d of %d", t.Requests[i], free, t.Need[i]))
		}
		fmt.Fprintf(b, "    %s: %s\n", row.Value, strings.Join(cells, ", "))
	}
	if t.Without > 0 {
		fmt.Fprintf(b, "    without the attribute: %d\n", t.Without)
	}
}

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// located is a card with the place where it is drawn.
type located struct {
	Card
	node, kind string
	numa, root string
	use        use
}

// use says how much of a card claims have.
type use int

const (
	useNone use = iota
	usePart
	useFull
	// useOff: no claim has it, and none can get it.
	useOff
)

// cardsOf groups the devices of all drivers by card, in the order in which they are drawn.
func cardsOf(in Input, p *Page) []located {
	footnotes := footnotesOf(in.Why)
	claims := claimsOf(in)
	var out []located
	for _, driver := range drivers(in.Slices) {
		report := usage.Of(usage.Objects{Driver: driver, Slices: in.Slices, Claims: in.Claims, ClaimsUnknown: in.ClaimsUnknown})
		for _, problem := range report.Problems {
			p.Problems = append(p.Problems, Problem{problem.Subject, problem.Message})
		}
		counters := map[[2]string]*usage.Card{}
		for i := range report.Cards {
			counters[[2]string{report.Cards[i].Pool, report.Cards[i].Name}] = &report.Cards[i]
		}
		for rest := report.Devices; len(rest) > 0; {
			n := 1
			for n < len(rest) && sameCard(&rest[0], &rest[n]) {
				n++
			}
			d := drawing{driver: driver, devices: rest[:n], card: counters[[2]string{rest[0].Pool, rest[0].Card}], claims: claims, why: in.Why}
			out = append(out, d.draw(footnotes))
			rest = rest[n:]
		}
	}
	p.Reasons = footnotes.finish(out)
	slices.SortStableFunc(out, func(a, b located) int {
		return cmp.Or(emptyLast(a.node, b.node), compareNumbers(a.numa, b.numa), emptyLast(a.root, b.root), cmp.Compare(a.kind, b.kind))
	})
	return out
}

func sameCard(a, b *usage.Device) bool {
	return a.Node == b.Node && a.Pool == b.Pool && a.Group == b.Group
}

func drivers(resourceSlices []*resourceapi.ResourceSlice) []string {
	var names []string
	for _, s := range resourceSlices {
		names = append(names, s.Spec.Driver)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// compareNumbers orders numbers in texts; what is none comes last.
func compareNumbers(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX != nil || errY != nil {
		return emptyLast(a, b)
	}
	return cmp.Compare(x, y)
}

func emptyLast(a, b string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// attribute returns an attribute of a device by the first of the names that it has.
func attribute(d *usage.Device, driver string, names ...resourceapi.QualifiedName) string {
	for _, name := range names {
		for _, qualified := range []resourceapi.QualifiedName{name, resourceapi.QualifiedName(driver) + "/" + name} {
			a := d.Attributes[qualified]
			if a.IntValue != nil {
				return strconv.FormatInt(*a.IntValue, 10)
			}
			if text := device.StringOf(a); text != "" {
				return text
			}
		}
	}
	return ""
}

// place says where a card is, by what any of its devices says.
func place(driver string, devices []usage.Device) (numa, root string) {
	for i := range devices {
		numa = cmp.Or(numa, attribute(&devices[i], driver, deviceattribute.StandardDeviceAttributeNUMANode, "numaNode"))
		root = cmp.Or(root, attribute(&devices[i], driver, deviceattribute.StandardDeviceAttributePCIeRoot, "pcieRoot"))
	}
	return numa, root
}

// nodesOf puts the cards into their nodes, and nodes that look the same together.
func nodesOf(in Input, cards []located) (nodes []Node, without []string) {
	notes := map[string][]string{}
	for _, n := range in.Nodes {
		notes[n.Name] = notesOf(n)
	}
	drawn := map[string]bool{}
	alike := map[string]int{}
	for rest := cards; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(c located) bool { return c.node != rest[0].node })
		if n < 0 {
			n = len(rest)
		}
		name := rest[0].node
		drawn[name] = true
		node := Node{Names: []string{name}, Notes: notes[name], Summary: strings.Join(summaries(rest[:n]), "; "), Domains: domainsOf(rest[:n])}
		rest = rest[n:]
		look := lookOf(node)
		if i, ok := alike[look]; ok && name != "" {
			nodes[i].Names = append(nodes[i].Names, name)
			continue
		}
		node.Anchor = fmt.Sprintf("node-%d", len(nodes)+1)
		alike[look] = len(nodes)
		nodes = append(nodes, node)
	}
	for _, n := range in.Nodes {
		if !drawn[n.Name] {
			without = append(without, n.Name)
		}
	}
	slices.Sort(without)
	return nodes, without
}

// lookOf is the same for nodes whose drawings would be the same.
func lookOf(n Node) string {
	n.Names = nil
	look, err := json.Marshal(n)
	if err != nil { // there is nothing in it that cannot be written
		return ""
	}
	return string(look)
}

// notesOf is what keeps pods off a node whatever its devices are.
func notesOf(n *corev1.Node) []string {
	var notes []string
	if n.Spec.Unschedulable {
		notes = append(notes, "cordoned: no new pods")
	}
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable && t.Effect != corev1.TaintEffectPreferNoSchedule {
			notes = append(notes, "taint "+t.ToString())
		}
	}
	return notes
}

// domainsOf puts cards that are in order into their NUMA nodes and PCIe roots.
func domainsOf(cards []located) []Domain {
	var domains []Domain
	for i := range cards {
		c := &cards[i]
		if numa := label("NUMA node", c.numa); i == 0 || domains[len(domains)-1].Label != numa {
			domains = append(domains, Domain{Label: numa})
		}
		domain := &domains[len(domains)-1]
		if root := label("PCIe root", c.root); len(domain.Roots) == 0 || domain.Roots[len(domain.Roots)-1].Label != root {
			domain.Roots = append(domain.Roots, Root{Label: root})
		}
		root := &domain.Roots[len(domain.Roots)-1]
		root.Cards = append(root.Cards, c.Card)
	}
	return domains
}

func label(noun, value string) string {
	if value == "" {
		return ""
	}
	return noun + " " + value
}

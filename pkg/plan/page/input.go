// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/plan"
)

// Input is what a page is made of.
type Input struct {
	Title, Lead string
	Nodes       []*corev1.Node
	Slices      []*resourceapi.ResourceSlice
	// Claims are as they are when all is done. ClaimsUnknown says that they could not be read.
	Claims        []*resourceapi.ResourceClaim
	ClaimsUnknown bool
	// New are the claims, as NAMESPACE/NAME, that a plan has given devices.
	New map[string]bool
	// Pods are the results of a plan, by NAMESPACE/NAME.
	Pods     map[string]plan.PodResult
	Problems []plan.Problem
	// Said is what Kubernetes said of the pod that is explained.
	Said []Saying
	// Why says why a pod has no node; nil if no pod is explained.
	Why *Why
}

// Why is about one pod.
type Why struct {
	// Nodes are answers by the name of the node, one thing a line.
	Nodes map[string][]string
	// Devices are by DRIVER/POOL/DEVICE. One that is not there was not judged.
	Devices map[string]Judged
}

// Judged is what is known of a device for the pod.
type Judged struct {
	// Matches says that the pod asks for such a device.
	Matches bool
	// Failed are the checks that the device does not pass. Without any it would do.
	Failed []Check
}

// Check is a check that a device does not pass.
type Check struct {
	// Name is a word or two: "class selector".
	Name    string
	Message string
}

// fewNodes are so many that they are drawn unfolded.
const fewNodes = 4

// manyNodes are so many that the sorts of each card would make the page large.
const manyNodes = 50

// Of makes the page. The same input gives the same page.
func Of(in Input) Page {
	p := Page{Title: in.Title, Lead: in.Lead, Said: in.Said}
	cards := cardsOf(in, &p)
	p.Nodes, p.Without = nodesOf(in, cards)
	p.unfold()
	if p.Brief = len(p.Nodes) > manyNodes; p.Brief {
		p.eachCard((*Card).shorten)
	}
	anchors := map[string]string{}
	for _, n := range p.Nodes {
		for _, name := range n.Names {
			anchors[name] = n.Anchor
		}
	}
	p.addPods(in.Pods, anchors)
	p.addAnswers(in.Why, anchors)
	for _, problem := range in.Problems {
		p.Problems = append(p.Problems, Problem{problem.Object, problem.Message})
	}
	p.Facts = facts(in.Nodes, cards)
	p.eachCard(p.Marks.add)
	return p
}

// addPods sorts the pods of a plan by whether they have a node.
func (p *Page) addPods(results map[string]plan.PodResult, anchors map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(results)) {
		result := results[name]
		pod := Pod{Name: name, Reason: result.Reason, Fits: result.Fits}
		for _, claim := range slices.Sorted(maps.Keys(result.Devices)) {
			pod.Claims = append(pod.Claims, PodClaim{claim, shortNames(result.Devices[claim])})
		}
		if result.Node == nil {
			p.Waiting = append(p.Waiting, pod)
			continue
		}
		pod.Reference = Reference{*result.Node, anchors[*result.Node]}
		p.Placed = append(p.Placed, pod)
	}
}

// shortNames leaves driver and pool out, which the pod's node tells.
func shortNames(devices []string) []string {
	short := make([]string, 0, len(devices))
	for _, d := range devices {
		short = append(short, d[strings.LastIndexByte(d, '/')+1:])
	}
	return short
}

// addAnswers puts nodes together that have the same answer.
func (p *Page) addAnswers(why *Why, anchors map[string]string) {
	if why == nil {
		return
	}
	for _, node := range slices.Sorted(maps.Keys(why.Nodes)) {
		lines := why.Nodes[node]
		at := slices.IndexFunc(p.Answers, func(a Answer) bool { return slices.Equal(a.Lines, lines) })
		if at < 0 {
			at = len(p.Answers)
			p.Answers = append(p.Answers, Answer{Lines: lines})
		}
		p.Answers[at].Nodes = append(p.Answers[at].Nodes, Reference{node, anchors[node]})
	}
}

// facts counts nodes, and cards by kind.
func facts(nodes []*corev1.Node, cards []located) []string {
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = true
	}
	for i := range cards {
		if cards[i].node != "" {
			names[cards[i].node] = true
		}
	}
	return append([]string{plural(len(names), "node")}, summaries(cards)...)
}

// summaries writes for each kind of device how many are free: "8 GPUs: 2 free, 5 in part, 1 held".
func summaries(cards []located) []string {
	counts := map[string]*struct{ all, free, part, full, off int }{}
	for i := range cards {
		noun := cmp.Or(device.Kind(cards[i].kind).Noun(), "device")
		if counts[noun] == nil {
			counts[noun] = new(struct{ all, free, part, full, off int })
		}
		c := counts[noun]
		c.all++
		switch cards[i].use {
		case useNone:
			c.free++
		case usePart:
			c.part++
		case useFull:
			c.full++
		case useOff:
			c.off++
		}
	}
	var out []string
	for _, noun := range slices.Sorted(maps.Keys(counts)) {
		c := counts[noun]
		parts := list(count(c.free, "free"), count(c.part, "held in part"), count(c.full, "held"), count(c.off, "not usable"))
		out = append(out, plural(c.all, noun)+": "+parts)
	}
	return out
}

// count writes "3 free", or nothing for 0.
func count(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

// list joins what is not empty.
func list(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// unfold opens all nodes if they are few, else those on which a plan gives something, if these are few.
func (p *Page) unfold() {
	var given []*Node
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.marks().New {
			given = append(given, n)
		}
	}
	for i := range p.Nodes {
		p.Nodes[i].Open = len(p.Nodes) <= fewNodes
	}
	if len(given) <= fewNodes {
		for _, n := range given {
			n.Open = true
		}
	}
}

// marks looks which marks a node has.
func (n *Node) marks() (m Marks) {
	n.eachCard(m.add)
	return m
}

// shorten leaves out what the block of a card and the name of a sort tell too.
func (c *Card) shorten() {
	c.Sorts = nil
	for i := range c.Holders {
		c.Holders[i].Takes = ""
	}
}

// eachCard calls a function for each card.
func (p *Page) eachCard(each func(*Card)) {
	for i := range p.Nodes {
		p.Nodes[i].eachCard(each)
	}
}

func (n *Node) eachCard(each func(*Card)) {
	for _, d := range n.Domains {
		for _, r := range d.Roots {
			for i := range r.Cards {
				each(&r.Cards[i])
			}
		}
	}
}

func (m *Marks) add(c *Card) {
	for _, b := range c.Bar.Blocks {
		m.Held = m.Held || b.Mark == MarkHeld
		m.New = m.New || b.Mark == MarkNew
		m.Unusable = m.Unusable || b.Mark == MarkUnusable
	}
}

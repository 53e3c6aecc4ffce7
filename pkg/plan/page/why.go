// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// AddExplanation adds why a pod or claim has no devices. The devices are explained if the explanation has the verdicts of nodes.
func (in *Input) AddExplanation(e explain.Explanation) {
	in.Title, in.Lead = "Why "+e.Object+" waits", sentence(e.First)
	if e.Reason == explain.Fits || e.Reason == explain.Placed || e.Reason == explain.NoDevicesAsked {
		in.Title = e.Object
	}
	for _, s := range e.Said {
		in.Said = append(in.Said, Saying(s))
	}
	for _, note := range e.Notes {
		in.Problems = append(in.Problems, plan.Problem{Object: "Note", Message: note})
	}
	in.Why = &Why{Nodes: map[string][]string{}, Devices: map[string]Judged{}}
	for _, node := range e.Nodes {
		in.Why.Nodes[node.Name] = append([]string{node.Outcome}, node.Lines...)
		if node.Verdict != nil {
			in.Why.addDevices(node.Verdict)
		}
	}
}

// sentence begins with a capital letter and ends with a point.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

// addDevices adds what the requests of a pod say of the devices of a node. A device that several nodes can use is taken from the node that
// says the best of it.
func (w *Why) addDevices(v *judge.Verdict) {
	several := 0
	for _, claim := range v.Claims {
		several += len(claim.Requests)
	}
	found := map[string]Judged{}
	for _, claim := range v.Claims {
		for i := range claim.Requests {
			request := &claim.Requests[i]
			prefix := ""
			if several > 1 {
				prefix = "request " + request.Name + ": "
			}
			for j := range request.Devices {
				d := &request.Devices[j]
				name := strings.Join([]string{d.Driver, d.Pool, d.Device}, "/")
				known, seen := found[name]
				found[name] = together(known, judgedOf(d, prefix), seen)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		known, seen := w.Devices[name]
		if !seen || better(found[name], known) {
			w.Devices[name] = found[name]
		}
	}
}

// judgedOf is what one request says of a device. Of a device that it does not ask for, who has it is not the point.
func judgedOf(d *judge.DeviceVerdict, prefix string) Judged {
	out := Judged{Matches: !slices.ContainsFunc(d.Failed, unasked)}
	inUse := slices.ContainsFunc(d.Failed, func(c judge.Check) bool { return c.Kind == judge.KindInUse })
	for _, c := range d.Failed {
		switch {
		case !out.Matches && !unasked(c):
		case inUse && c.Kind == judge.KindCounters:
		default:
			out.Failed = append(out.Failed, Check{Name: string(c.Kind), Message: prefix + messageOf(c)})
		}
	}
	return out
}

// messageOf is the message of a check. A card has a dozen counters, of which a picture needs one line.
func messageOf(c judge.Check) string {
	if c.Kind != judge.KindCounters || len(c.Amounts) < 2 {
		return c.Message
	}
	lacks, totals := map[string]resourceapi.Counter{}, map[string]resourceapi.Counter{}
	for _, a := range c.Amounts {
		total, free, need, err := quantities(a)
		if err != nil {
			return c.Message
		}
		need.Sub(free)
		lacks[a.Name], totals[a.Name] = resourceapi.Counter{Value: need}, resourceapi.Counter{Value: total}
	}
	return strings.TrimSuffix(partition.Short(lacks, totals)+" "+holdersOf(c.Holders), " ")
}

func quantities(a judge.Amount) (total, free, need resource.Quantity, err error) {
	total, errTotal := resource.ParseQuantity(a.Total)
	free, errFree := resource.ParseQuantity(a.Free)
	need, errNeed := resource.ParseQuantity(a.Need)
	return total, free, need, errors.Join(errTotal, errFree, errNeed)
}

// holdersOf names claims, and counts those that the reader may not see.
func holdersOf(holders []judge.Holder) string {
	var names []string
	hidden := 0
	for _, h := range holders {
		switch name := h.Namespace + "/" + h.Name; {
		case h.Name == "":
			hidden++
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	if hidden > 0 {
		names = append(names, plural(hidden, "claim")+" of other namespaces")
	}
	if len(names) == 0 {
		return ""
	}
	return "held by " + strings.Join(names, ", ")
}

// unasked says whether a failed check means that the request is for other devices.
func unasked(c judge.Check) bool {
	return !c.Fatal && slices.Contains([]judge.Kind{judge.KindClassSelector, judge.KindSelector, judge.KindNode}, c.Kind)
}

// better says whether a device is nearer to what a pod needs.
func better(a, b Judged) bool {
	if a.Matches != b.Matches {
		return a.Matches
	}
	return a.Matches && len(a.Failed) == 0 && len(b.Failed) > 0
}

// together joins what two requests of a pod say. The one that is nearer to having the device counts; if neither is, both do.
func together(a, b Judged, both bool) Judged {
	switch {
	case !both || better(b, a):
		return b
	case better(a, b):
		return a
	case a.Matches && len(a.Failed) == 0:
		return a
	}
	return Judged{Matches: a.Matches, Failed: slices.Concat(a.Failed, b.Failed)}
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

// fatal says what keeps the pod from all nodes.
func (w *work) fatal() (Reason, string) {
	for i := range w.nodes {
		v := &w.nodes[i].verdict
		if v.Outcome != judge.Fatal {
			continue
		}
		for k := range v.Claims {
			if reason, text := fatalClaim(&v.Claims[k]); text != "" {
				return reason, "claim " + v.Claims[k].Name + text
			}
		}
		if strings.Contains(v.Error, "claim constraint would not be satisfied") { // the allocator's own words
			return Constraint, v.Error
		}
		return Invalid, v.Error
	}
	return "", ""
}

// fatalClaim says what is fatal of one claim.
func fatalClaim(c *judge.ClaimVerdict) (Reason, string) {
	if check, found := firstFatal(c.Problems); found {
		return reasonOf(check.Kind), ": " + check.Message
	}
	for i := range c.Requests {
		if check, found := firstFatal(c.Requests[i].Problems); found {
			return reasonOf(check.Kind), fmt.Sprintf(", request %s: %s", c.Requests[i].Name, check.Message)
		}
	}
	for i := range c.Requests {
		for k := range c.Requests[i].Devices {
			if d := &c.Requests[i].Devices[k]; d.Aborts() {
				return Invalid, fmt.Sprintf(": %s, for device %s/%s of %s. An error on one device keeps the pod from all nodes",
					d.Failed[0].Message, d.Pool, d.Device, d.Driver)
			}
		}
	}
	return "", ""
}

func firstFatal(checks []judge.Check) (judge.Check, bool) {
	at := slices.IndexFunc(checks, func(c judge.Check) bool { return c.Fatal })
	if at < 0 {
		return judge.Check{}, false
	}
	return checks[at], true
}

func reasonOf(kind judge.Kind) Reason {
	switch kind { //nolint:exhaustive // all others are invalid input
	case judge.KindClass:
		return ClassMissing
	case judge.KindPool:
		return PoolBroken
	case judge.KindConstraint:
		return Constraint
	}
	return Invalid
}

// nothingThere says that no node has a device of a class.
func (w *work) nothingThere() string {
	if w.left > 0 {
		return ""
	}
	for _, request := range w.nodes[0].requests() {
		total, candidates := w.devicesFor(request.Name, request.Class)
		switch {
		case strings.Contains(request.Name, "/"): // another alternative may be there
		case total == 0:
			return fmt.Sprintf("no node has a device: no ResourceSlice is for any of %d nodes, so see whether the driver of class %s runs",
				len(w.nodes), request.Class)
		case candidates == 0:
			return fmt.Sprintf("no node has a device of class %s: its selectors accept none of %d devices on %d nodes, so see whether its driver "+
				"runs, and what the class selects", request.Class, total, len(w.nodes))
		}
	}
	return ""
}

// devicesFor counts the devices of all nodes for a request, and those that its class selects.
func (w *work) devicesFor(name, class string) (total, candidates int) {
	for i := range w.nodes {
		for _, r := range w.nodes[i].requests() {
			if r.Name == name && r.Class == class {
				total += len(r.Devices)
				candidates += selected(r.Devices)
			}
		}
	}
	return total, candidates
}

// selected counts the devices that the class of their request selects.
func selected(devices []judge.DeviceVerdict) (n int) {
	for i := range devices {
		if !fails(&devices[i], judge.KindClassSelector) {
			n++
		}
	}
	return n
}

func fails(d *judge.DeviceVerdict, kind judge.Kind) bool {
	return slices.ContainsFunc(d.Failed, func(c judge.Check) bool { return c.Kind == kind })
}

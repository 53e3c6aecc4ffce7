// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

func options(name, state string, nodes int) plan.Options {
	return plan.Options{Name: name, State: state, Bin: "/bin", Nodes: nodes}
}

func TestNewIsDeterministic(t *testing.T) {
	a, err := plan.New(options("fettle", "/state", 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := plan.New(options("fettle", "/state", 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("same name and state, different plans:\n%+v\n%+v", a, b)
	}
	if len(a.ID) > 15 {
		t.Errorf("ID %q is too long for an interface name", a.ID)
	}
}

func TestClustersDoNotOverlap(t *testing.T) {
	var used []netip.Prefix
	for range 50 {
		// The same identity every time, so that only what is in use makes the difference.
		c, err := plan.New(options("fettle", "/state", plan.MaxNodes), used)
		if err != nil {
			t.Fatal(err)
		}
		own := []netip.Prefix{c.Subnet}
		for _, n := range c.Nodes {
			if !c.Subnet.Contains(n.Address) {
				t.Errorf("node address %s is outside of %s", n.Address, c.Subnet)
			}
			own = append(own, n.Pods)
		}
		for i, p := range own {
			for _, other := range append(used, own[:i]...) {
				if p.Overlaps(other) {
					t.Fatalf("%s overlaps %s", p, other)
				}
			}
		}
		used = append(used, own...)
	}
}

func TestNewAcceptsDefaultRoute(t *testing.T) {
	if _, err := plan.New(options("fettle", "/state", 1), []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		options plan.Options
		used    []netip.Prefix
		want    string
	}{
		"no node":    {options("a", "/s", 0), nil, "1 to 15"},
		"many nodes": {options("a", "/s", 16), nil, "1 to 15"},
		"bad name":   {options("A b", "/s", 1), nil, "at most 32"},
		"full":       {options("a", "/s", 1), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "no free /20"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := plan.New(test.options, test.used)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestSaveAndLoad(t *testing.T) {
	state := t.TempDir()
	if _, err := plan.Load(state); !errors.Is(err, plan.ErrNoCluster) {
		t.Errorf("empty directory: got error %v, want ErrNoCluster", err)
	}
	want, err := plan.New(options("fettle", state, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := want.Save(); err != nil {
		t.Fatal(err)
	}
	got, err := plan.Load(state)
	if err != nil {
		t.Fatal(err)
	}
	want.Options.Nodes = 0 // the list of nodes tells it
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

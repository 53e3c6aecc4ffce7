// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func of(namespace string, needs ...Need) Holding { return Holding{Namespace: namespace, Needs: needs} }

func memory(n int64) Need  { return Need{Resource: Memory, Amount: n} }
func entries(n int64) Need { return Need{Resource: SeedEntries, Amount: n} }

func tree(name string, n int64) Need { return Need{Resource: PinnedBytes, Amount: n, Once: name} }

func TestCheck(t *testing.T) {
	limits := Limits{Memory: {Node: 100, Namespace: 40}, SeedEntries: {Node: 10}, PinnedBytes: {Namespace: 50}}
	tests := []struct {
		name  string
		asked Holding
		held  []Holding
		want  *ExceededError
	}{
		{name: "nothing", asked: of("a"), held: []Holding{of("a", memory(1000))}},
		{name: "the last bit", asked: of("a", memory(10)), held: []Holding{of("a", memory(30)), of("b", memory(40))}},
		{
			name: "the namespace's share", asked: of("a", memory(11)), held: []Holding{of("a", memory(20), memory(10)), of("b", memory(40))},
			want: &ExceededError{Resource: Memory, Namespace: "a", Asked: 11, Held: 30, Limit: 40},
		},
		{
			name: "the node's", asked: of("a", memory(21)), held: []Holding{of("b", memory(40)), of("c", memory(40))},
			want: &ExceededError{Resource: Memory, Namespace: "a", Asked: 21, Limit: 40, OfNode: true},
		},
		{
			name: "more than a namespace may have", asked: of("a", memory(41)),
			want: &ExceededError{Resource: Memory, Namespace: "a", Asked: 41, Limit: 40, Never: true},
		},
		{
			name: "more than the node has", asked: of("a", entries(11)),
			want: &ExceededError{Resource: SeedEntries, Namespace: "a", Asked: 11, Limit: 10, Never: true},
		},
		{name: "what others hold of something else", asked: of("a", entries(10)), held: []Holding{of("a", memory(1000))}},
		{name: "a file that the namespace has already", asked: of("a", tree("x", 50)), held: []Holding{of("a", tree("x", 50))}},
		{
			name: "another file", asked: of("a", tree("y", 1)), held: []Holding{of("a", tree("x", 50)), of("a", tree("x", 50))},
			want: &ExceededError{Resource: PinnedBytes, Namespace: "a", Asked: 1, Held: 50, Limit: 50},
		},
		{name: "no limit", asked: of("a", Need{Resource: Pins, Amount: 1 << 40})},
		{
			name: "sums that overflow", asked: of("a", memory(1)), held: []Holding{of("b", memory(math.MaxInt64)), of("b", memory(math.MaxInt64))},
			want: &ExceededError{Resource: Memory, Namespace: "a", Asked: 1, Limit: 40, OfNode: true},
		},
		{name: "negative amounts", asked: of("a", memory(40)), held: []Holding{of("a", memory(-100))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := limits.Check(tt.asked, tt.held)
			if tt.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			got, ok := errors.AsType[*ExceededError](err)
			if !ok || *got != *tt.want {
				t.Errorf("got %+v, want %+v", err, tt.want)
			}
		})
	}
}

// TestMessages: a message says what to do, and tells nothing about other namespaces.
func TestMessages(t *testing.T) {
	limits := Limits{Memory: {Node: 1000, Namespace: 400}}
	held := []Holding{of("secret", memory(333)), of("secret", memory(345)), of("a", memory(222))}
	for want, asked := range map[string]int64{
		"claims of namespace a have 222 of at most 400": 179,
		"the 222 that claims of namespace a have":       101,
		"at most 400: ask for less":                     401,
	} {
		err := limits.Check(of("a", memory(asked)), held)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v, want %q", asked, err, want)
			continue
		}
		for _, foreign := range []string{"secret", "333", "345", "678", "900", "1000"} {
			if strings.Contains(err.Error(), foreign) {
				t.Errorf("%q tells %s", err, foreign)
			}
		}
	}
}

// TestMountsMessage: no value of the chart limits mounts, so none is named.
func TestMountsMessage(t *testing.T) {
	err := Limits{Mounts: {Node: 5}}.Check(of("a", Need{Resource: Mounts, Amount: 6}), nil)
	if err == nil || !strings.Contains(err.Error(), "6 mounts of its own") || strings.Contains(err.Error(), "chart") {
		t.Errorf("got %v", err)
	}
}

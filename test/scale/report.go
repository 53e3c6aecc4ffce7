// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
)

// figure is a line of the output.
type figure struct {
	Phase  string   `json:"phase"`
	Name   string   `json:"name"`
	Nodes  int      `json:"nodes"`
	Unit   string   `json:"unit"`
	Value  float64  `json:"value"`
	Target *float64 `json:"target,omitempty"`
	Met    *bool    `json:"met,omitempty"`
}

// report writes figures.
type report struct {
	out    io.Writer
	nodes  int
	phase  string
	missed int
}

// say writes a figure that nothing is expected of.
func (r *report) say(name, unit string, value float64) error {
	return json.NewEncoder(r.out).Encode(figure{Phase: r.phase, Name: name, Nodes: r.nodes, Unit: unit, Value: value})
}

// want writes a figure that should be at most the target.
func (r *report) want(name, unit string, value, target float64) error {
	met := value <= target
	if !met {
		r.missed++
	}
	return json.NewEncoder(r.out).Encode(figure{
		Phase: r.phase, Name: name, Nodes: r.nodes, Unit: unit, Value: value, Target: &target, Met: &met,
	})
}

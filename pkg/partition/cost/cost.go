// SPDX-License-Identifier: Apache-2.0

// Package cost says what the profiles of divided devices cost the API server and the scheduler, and which of them no claim has.
package cost

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// heapPerByte is how many bytes a device takes in memory for each that it has in protobuf. The API server keeps slices in memory, and so
// does each scheduler.
const heapPerByte = 7

// Whole is the profile of a device that is not divided.
const Whole = "whole"

// Report is what devices cost by product and profile.
type Report struct {
	Profiles []Profile `json:"profiles"`
	// Advice is about the products of which some profiles are held and some are not.
	Advice []Advice `json:"advice,omitempty"`
}

// Profile is a sort of parts of a product, or the whole device.
type Profile struct {
	Product string `json:"product"`
	Name    string `json:"profile"`
	Nodes   int    `json:"nodes"`
	Devices int    `json:"devices"`
	// Held is how many of them claims have.
	Held int `json:"held"`
	// Bytes is what the devices take in protobuf: in etcd, and in each list of them. Memory is about what they take in the API server and in
	// each scheduler.
	Bytes  int64 `json:"bytes"`
	Memory int64 `json:"memory"`
}

// Advice says what a product would cost with the profiles alone that claims have, and the whole device.
type Advice struct {
	Product  string   `json:"product"`
	Profiles []string `json:"profiles"`
	Bytes    int64    `json:"bytes"`
	Memory   int64    `json:"memory"`
}

// Counter counts slice by slice, and keeps none of them.
type Counter struct {
	driver string
	held   map[[2]string]bool
	rows   map[[2]string]*row
}

type row struct {
	Profile
	nodes map[string]bool
}

// New returns a counter that knows which devices claims have.
func New(driver string, claims []*resourceapi.ResourceClaim) *Counter {
	c := &Counter{driver: driver, held: map[[2]string]bool{}, rows: map[[2]string]*row{}}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == driver {
				c.held[[2]string{r.Pool, r.Device}] = true
			}
		}
	}
	return c
}

// Add counts the devices of a slice. Those without a product are no cards.
func (c *Counter) Add(slice *resourceapi.ResourceSlice) {
	if slice.Spec.Driver != c.driver {
		return
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		product := device.StringOf(d.Attributes[device.AttributeProductName])
		if product == "" {
			continue
		}
		profile := cmp.Or(device.StringOf(d.Attributes[device.AttributeProfile]), Whole)
		key := [2]string{product, profile}
		r := c.rows[key]
		if r == nil {
			r = &row{Profile: Profile{Product: product, Name: profile}, nodes: map[string]bool{}}
			c.rows[key] = r
		}
		r.Devices++
		r.Bytes += int64(d.Size())
		if c.held[[2]string{slice.Spec.Pool.Name, d.Name}] {
			r.Held++
		}
		if slice.Spec.NodeName != nil {
			r.nodes[*slice.Spec.NodeName] = true
		}
	}
}

// Report returns what was counted, by product and profile.
func (c *Counter) Report() Report {
	out := Report{Profiles: []Profile{}}
	for _, key := range slices.SortedFunc(maps.Keys(c.rows), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		r := c.rows[key]
		r.Nodes, r.Memory = len(r.nodes), r.Bytes*heapPerByte
		out.Profiles = append(out.Profiles, r.Profile)
	}
	for rest := out.Profiles; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(p Profile) bool { return p.Product != rest[0].Product })
		if n < 0 {
			n = len(rest)
		}
		if advice := adviceOn(rest[:n]); len(advice.Profiles) > 0 {
			out.Advice = append(out.Advice, advice)
		}
		rest = rest[n:]
	}
	return out
}

// adviceOn keeps the profiles of a product that claims have. It has no profiles if that are none or all.
func adviceOn(of []Profile) Advice {
	out := Advice{Product: of[0].Product}
	unused := false
	for _, p := range of {
		switch {
		case p.Name != Whole && p.Held > 0:
			out.Profiles = append(out.Profiles, p.Name)
		case p.Name != Whole:
			unused = true
			continue
		}
		out.Bytes, out.Memory = out.Bytes+p.Bytes, out.Memory+p.Memory
	}
	if !unused {
		out.Profiles = nil
	}
	return out
}

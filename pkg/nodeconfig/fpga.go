// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/fpga"
)

// FPGA is how FPGAs are programmed.
type FPGA struct {
	// Programming lets claims program regions. Without it regions are given out as they are, and nothing is ever written to one.
	Programming bool `json:"programming,omitempty"`
	// Backends are the kinds of region that are programmed then: dfl, fpga_manager, xrt. Regions of other kinds are given out as they
	// are. Default dfl.
	Backends []string `json:"backends,omitempty"`
	// XRT is where XRT's own program is found.
	XRT XRT `json:"xrt,omitempty"`
	// SimulatedNodes is a directory of plain files that stand for FPGAs' device nodes, relative to the host's tree, as a simulator
	// serves them. It is refused where that tree is /.
	SimulatedNodes string `json:"simulatedNodes,omitempty"`
	// BindingConditions has the scheduler wait, before it binds a pod to this node, until the plugin has done what the policies of the
	// pod's classes ask in bindAfter.
	BindingConditions bool `json:"bindingConditions,omitempty"`
	// FetchAhead brings the bitstreams that fit the node's regions into its store before a claim asks for them.
	FetchAhead bool `json:"fetchAhead,omitempty"`
	// MaxFailedProgrammings is how many programmings of one namespace may fail on this node within an hour, 1 to 100. Beyond it the
	// namespace's claims wait. Default 3.
	MaxFailedProgrammings int `json:"maxFailedProgrammings,omitempty"`
}

const (
	defaultFailedProgrammings = 3
	mostFailedProgrammings    = 100
)

func (c *FPGA) validate() []error {
	var errs []error
	if c.BindingConditions && !c.Programming {
		errs = append(errs, errors.New("fpga.bindingConditions: needs fpga.programming: true"))
	}
	if c.FetchAhead && !c.Programming {
		errs = append(errs, errors.New("fpga.fetchAhead: needs fpga.programming: true"))
	}
	if n := c.MaxFailedProgrammings; n < 1 || n > mostFailedProgrammings {
		errs = append(errs, fmt.Errorf("fpga.maxFailedProgrammings: is %d, want 1 to %d", n, mostFailedProgrammings))
	}
	for i, name := range c.Backends {
		if known := backendNames(); !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("fpga.backends[%d]: %q, want one of %s", i, name, strings.Join(known, ", ")))
		}
		if slices.Contains(c.Backends[:i], name) {
			errs = append(errs, fmt.Errorf("fpga.backends[%d]: %q appears twice", i, name))
		}
	}
	if root := c.XRT.DriverRoot; !filepath.IsAbs(root) || filepath.Clean(root) != root {
		errs = append(errs, fmt.Errorf("fpga.xrt.driverRoot: must be a clean absolute path, is %q", root))
	}
	return errs
}

// XRT is where XRT is installed.
type XRT struct {
	// DriverRoot is the directory of the host's tree with opt/xilinx/xrt in it. XRT's program is run with it as its root directory, so it
	// must hold the state directory, dev and sys by the same paths as the plugin sees them. Default /.
	DriverRoot string `json:"driverRoot,omitempty"`
}

// backendNames are the kinds of region that this plugin can program.
func backendNames() []string {
	return []string{fpga.BackendDFL, fpga.BackendFPGAManager, fpga.BackendXRT}
}

// except are the kinds of region that are not programmed, whatever programming says.
func (c *FPGA) Except() []string {
	programmed := c.Backends
	if programmed == nil {
		programmed = []string{fpga.BackendDFL}
	}
	return slices.DeleteFunc(backendNames(), func(name string) bool { return slices.Contains(programmed, name) })
}

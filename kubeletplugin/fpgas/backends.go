// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/fpgamgr"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/fpga/xrt"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// xclbinsDir is the directory, below the state directory, of the copies of images that XRT's program reads.
const xclbinsDir = "xclbins"

// backends returns the ways of programming regions, by kind of region; locks is the directory of their locks. Disabled kinds are included,
// since a region that was programmed before its kind was disabled must still be released.
func (f *Feature) backends(locks string) map[string]region.Backend {
	return map[string]region.Backend{
		fpga.BackendDFL: region.DFL(func() (*dfl.Host, error) {
			simulated := f.File.SimulatedNodes
			return dfl.Open(f.HostRoot, dfl.Options{PlainNodes: simulated != "", Nodes: simulated})
		}, locks),
		fpga.BackendFPGAManager: region.FPGAManager(func() (*fpgamgr.Host, error) {
			return fpgamgr.Open(f.HostRoot, fpgamgr.Options{})
		}, locks),
		fpga.BackendXRT: region.XRT(f.openXRT, locks),
	}
}

func (f *Feature) xclbins() string { return filepath.Join(f.StateDir, xclbinsDir) }

// openXRT opens XRT's program with its driver root as root directory, so that it finds its libraries and the machine as on the host.
func (f *Feature) openXRT() (*xrt.Host, error) {
	copies := f.xclbins()
	if err := os.MkdirAll(copies, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of images: %w", err)
	}
	root := f.File.XRT.DriverRoot
	reach := func() *confine.Paths { return xrt.Reach(root, copies) }
	return xrt.Open(f.HostRoot, xrt.Options{Tools: tool.Root{Dir: root, Chroot: true, Reach: reach}, StateDir: copies})
}

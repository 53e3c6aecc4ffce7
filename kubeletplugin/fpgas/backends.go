// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/fpgamgr"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/fpga/tool"
	"github.com/fettle-dev/fettle/pkg/fpga/xrt"
)

// xclbinsDir is the directory below the state directory of the copies of images that XRT's program reads.
const xclbinsDir = "xclbins"

// backends are the ways of programming regions, by the regions' kind; locks is the directory of their locks. All are there whatever is
// switched on: what was done to a region before somebody switched its kind off must still be undone.
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

// openXRT runs XRT's program where it is installed, with that directory as its root: so it finds its libraries and the machine as on
// the host.
func (f *Feature) openXRT() (*xrt.Host, error) {
	copies := f.xclbins()
	if err := os.MkdirAll(copies, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of images: %w", err)
	}
	return xrt.Open(f.HostRoot, xrt.Options{Tools: tool.Root{Dir: f.File.XRT.DriverRoot, Chroot: true}, StateDir: copies})
}

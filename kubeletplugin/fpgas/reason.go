// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"errors"
	"slices"

	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
)

// The reasons of Events and of refused claims.
const (
	ReasonProgrammed    = "Programmed"
	ReasonProgramFailed = "ProgramFailed"
	reasonBitstream     = "BitstreamUnusable"
	reasonRegion        = "RegionUnusable"
)

// Reason is the stable reason of an error of this package or of the regions', empty for any other.
func Reason(err error) string {
	_, driver := errors.AsType[*backend.Error](err)
	among := func(causes ...error) bool {
		return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
	}
	switch {
	case among(errNotThere, errNotResolved, errNoFit, errNotStaged, artifacts.ErrNotFetched, pin.ErrEvicted, region.ErrImage):
		return reasonBitstream
	case driver && backend.KindOf(err) == backend.Unknown:
		return ReasonProgramFailed
	case driver, among(region.ErrGone, region.ErrOther, region.ErrTraces, region.ErrUnknownState):
		return reasonRegion
	}
	return ""
}

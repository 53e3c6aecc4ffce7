// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kubeletstate"
)

// kubeletHolds writes kubelet's state as kubelet of this release does: the claims that its pods need.
func (s *site) kubeletHolds(uids ...string) {
	s.t.Helper()
	check.Must(s.t, os.WriteFile(s.KubeletState, kubeletstate.File(s.t, kubeletstate.Version, uids...), 0o600))
}

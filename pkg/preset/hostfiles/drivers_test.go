// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
)

// TestMountIsAbsentWhereTheDriverIs: that the plugin has the directory of NVIDIA's driver at a path of its own, which by default is all of
// the host's root, makes nothing be there that a preset mounts.
func TestMountIsAbsentWhereTheDriverIs(t *testing.T) {
	f := Finder{Root: t.TempDir(), Drivers: &Drivers{Host: "/", Seen: "/driver-root"}}
	absent := clusterMount("/absent")
	_, err := f.Find("claim-1", preset.Request{Mounts: []preset.Mount{absent}})
	check.WantErr(t, err, nil, "/absent is not on this node", "say optional")
	absent.Optional = true
	found, err := f.Find("claim-1", preset.Request{Mounts: []preset.Mount{absent}})
	check.Must(t, err)
	if len(found.Shared.Mounts) > 0 {
		t.Errorf("mounts %+v, which no container can start with", found.Shared.Mounts)
	}
}

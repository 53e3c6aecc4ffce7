// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/nvml"
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

// TestHangingDriver: a root that does not answer, such as one of a server, keeps no claim from the files of another.
func TestHangingDriver(t *testing.T) {
	f := Finder{Root: t.TempDir()}
	check.Must(t, os.MkdirAll(filepath.Join(f.Root, "remote"), 0o755), os.MkdirAll(filepath.Join(f.Root, "local"), 0o755))
	asked, back := make(chan struct{}), make(chan struct{})
	f.Drivers = &Drivers{
		Host: "/local", Now: time.Now, Version: func() string { return "570.86.15" },
		Ask: func(_ context.Context, root, _ string) (nvml.Driver, error) {
			if filepath.Base(root) == "remote" {
				close(asked)
				<-back
			}
			return nvml.Driver{}, nil
		},
	}
	find := func(root string) error {
		_, err := f.Find("claim-1", preset.Request{Drivers: []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Root: root}}}})
		return err
	}
	var late error
	done := make(chan struct{})
	go func() {
		defer close(done)
		late = find("/remote")
	}()
	<-asked
	check.Ends(t, "the look at another root", func() {
		if err := find("/local"); err != nil {
			t.Error(err)
		}
	})
	close(back)
	<-done
	check.Must(t, late)
}

// TestManyRootsWithoutDriver: of directories that no driver is in nothing is kept, however many presets name.
func TestManyRootsWithoutDriver(t *testing.T) {
	f := Finder{Root: t.TempDir()}
	f.Drivers = &Drivers{
		Host: "/", Now: time.Now, Version: func() string { return "570.86.15" },
		Ask: func(context.Context, string, string) (nvml.Driver, error) { return nvml.Driver{}, nvml.ErrNoDriver },
	}
	for i := range 100 {
		root := fmt.Sprintf("/driver-%d", i)
		check.Must(t, os.Mkdir(filepath.Join(f.Root, root), 0o755))
		wanted := []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Root: root, Optional: true}}}
		_, err := f.Find("claim-1", preset.Request{Drivers: wanted})
		check.Must(t, err)
	}
	if n := len(f.Drivers.known); n > 0 {
		t.Errorf("%d roots are kept", n)
	}
}

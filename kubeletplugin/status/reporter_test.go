// SPDX-License-Identifier: Apache-2.0

package status

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestClaimsHeld: a claim whose record cannot be read holds its devices, so the node is not emptied while there is one.
func TestClaimsHeld(t *testing.T) {
	sound := func(t *testing.T, p *Plugin, uid string) {
		must(t, p.store.Create(&record.Record{Namespace: "team-a", Name: uid, UID: uid, Phase: record.Prepared}))
	}
	damaged := func(t *testing.T, p *Plugin, uid string) {
		must(t, os.WriteFile(filepath.Join(p.config.StateDir, "claims", uid+".json"), []byte("garbage"), 0o600))
		must(t, p.store.SetAside(uid))
	}
	tests := map[string]struct {
		leave func(t *testing.T, p *Plugin)
		want  []string
	}{
		"none":          {func(*testing.T, *Plugin) {}, nil},
		"a record":      {func(t *testing.T, p *Plugin) { sound(t, p, "u1") }, []string{"u1"}},
		"a damaged one": {func(t *testing.T, p *Plugin) { damaged(t, p, "u1") }, []string{"u1"}},
		"both": {func(t *testing.T, p *Plugin) {
			damaged(t, p, "u1")
			damaged(t, p, "u3")
			sound(t, p, "u2")
		}, []string{"u1", "u2", "u3"}},
		"prepared again, and not settled yet": {func(t *testing.T, p *Plugin) {
			damaged(t, p, "u1")
			sound(t, p, "u1")
		}, []string{"u1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, "empty", nil)
			store, err := record.Open(disk.OS{}, w.config.StateDir)
			must(t, err)
			dir, err := cdi.Open(disk.OS{}, filepath.Join(t.TempDir(), "cdi"))
			must(t, err)
			p := &Plugin{
				config: *w.config, store: store, specs: &specKeeper{dir: dir}, health: w.healthKeeper,
				mounts: hostmount.In(filepath.Join(t.TempDir(), "mounts"), "/"),
			}
			p.fpgas, err = p.newFPGAs("boot")
			must(t, err)
			p.caches = p.newCaches()
			p.engine = engine.New(engine.Config{Store: store})
			tt.leave(t, p)
			got, err := p.claimsHeld()
			must(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			emptied, err := p.removeFiles(t.Context())
			must(t, err)
			if want := len(tt.want) == 0; emptied != want {
				t.Errorf("emptied: %v, want %v", emptied, want)
			}
			for _, uid := range tt.want {
				if !p.engine.Knows(uid) {
					t.Errorf("claim %s is forgotten", uid)
				}
			}
		})
	}
}

// TestClaimsHeldIsUnknown: where that cannot be told, nothing is removed.
func TestClaimsHeldIsUnknown(t *testing.T) {
	for _, name := range []string{"claims", "damaged"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := record.Open(disk.OS{}, dir)
			must(t, err)
			must(t, os.Remove(filepath.Join(dir, name)))
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			p := &Plugin{config: Config{StateDir: dir}, store: store}
			if _, err := p.claimsHeld(); err == nil {
				t.Error("no error of claimsHeld")
			}
			if emptied, err := p.removeFiles(t.Context()); err == nil || emptied {
				t.Errorf("emptied: %v, error %v", emptied, err)
			}
		})
	}
}

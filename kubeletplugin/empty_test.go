// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestClaimsHeld: a claim whose record cannot be read holds its devices, so the node is not emptied while there is one.
func TestClaimsHeld(t *testing.T) {
	sound := func(t *testing.T, p *Plugin, uid string) {
		check.Must(t, p.records.Create(&record.Record{Namespace: "team-a", Name: uid, UID: uid, Phase: record.Prepared}))
	}
	damaged := func(t *testing.T, p *Plugin, uid string) {
		check.Must(t, os.WriteFile(filepath.Join(p.config.StateDir, "claims", uid+".json"), []byte("garbage"), 0o600))
		check.Must(t, p.records.SetAside(uid))
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
			p := newPlugin(t, t.TempDir())
			tt.leave(t, p)
			got, err := p.records.Claims()
			check.Must(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			emptied, err := p.removeNodeFiles(t.Context())
			check.Must(t, err)
			if want := len(tt.want) == 0; emptied != want {
				t.Errorf("emptied: %v, want %v", emptied, want)
			}
			for _, uid := range tt.want {
				if !p.engine.HasRecord(uid) {
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
			check.Must(t, err)
			check.Must(t, os.Remove(filepath.Join(dir, name)))
			check.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			p := &Plugin{config: Config{StateDir: dir}, records: store}
			if _, err := p.records.Claims(); err == nil {
				t.Error("no error of Claims")
			}
			if emptied, err := p.removeNodeFiles(t.Context()); err == nil || emptied {
				t.Errorf("emptied: %v, error %v", emptied, err)
			}
		})
	}
}

// newPlugin is a plugin on an empty machine, which does not run.
func newPlugin(t *testing.T, state string) *Plugin {
	t.Helper()
	dir := t.TempDir()
	p, err := New(t.Context(), Config{
		Node: testNode, Namespace: "fettle-system", HostRoot: nodefixture.Expand(t, "empty"), PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(dir, "cdi"), StateDir: state, HTTPAddress: "127.0.0.1:0",
		File: nodeconfig.File{}.WithDefaults(),
	}, Clients{Kube: fake.NewClientset(), Dynamic: noObjects(t), Events: events.NewFakeRecorder(10)}, "boot-1")
	check.Must(t, err)
	t.Cleanup(p.engine.Stop)
	return p
}

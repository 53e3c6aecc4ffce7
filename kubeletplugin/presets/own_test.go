// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// teamPreset is a namespace's, for all claims of class gpu.
func teamPreset(change func(*v1alpha1.PresetRules)) *v1alpha1.DevicePreset {
	p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "own", Generation: 2}}
	p.APIVersion, p.Kind = v1alpha1.GroupVersion.String(), v1alpha1.KindDevicePreset
	p.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{"gpu"}}
	change(&p.Spec.PresetRules)
	return p
}

// newTeamWorld is a node on which namespaces may have /data, and write below /data/write.
func newTeamWorld(t *testing.T, presets ...runtime.Object) *presetWorld {
	t.Helper()
	w := newPresetWorld(t, presets...)
	w.Mounts = hostmount.In("/mounts", w.root)
	w.files = &hostfiles.Finder{
		Root: w.root, Hook: func() (string, error) { return "/hooks/fettle-hook-1", nil },
		Allowed: []preset.AllowedHostPath{{Path: "/data"}, {Path: "/data/write", Writable: true}}, Scratch: true,
		Mounts: w.Mounts,
	}
	w.file("data/team/file", nil, 0o644)
	w.file("data/write/file", nil, 0o644)
	w.file("etc/secret", nil, 0o644)
	return w
}

// TestPresetOwnMounts: what a DevicePreset names, and memory, are mounts that the claim alone has; nothing of them is in what other claims
// may share.
func TestPresetOwnMounts(t *testing.T) {
	library := []v1alpha1.PresetFiles{{Names: []string{"liba.so.1"}, Root: "/data/driver"}}
	w := newTeamWorld(t, teamPreset(func(r *v1alpha1.PresetRules) {
		r.Env = []v1alpha1.PresetEnv{{Name: v1alpha1.EnvPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/team/bin")}}
		r.Mounts = []v1alpha1.PresetMount{
			{HostPath: "/data/team", ContainerPath: "/opt/team", Recursive: true},
			{HostPath: "/data/write/file", ContainerPath: "/opt/write", ReadOnly: new(false)},
			{HostPath: "/data/absent", ContainerPath: "/opt/absent", Optional: true},
			{ContainerPath: "/opt/scratch", Scratch: &v1alpha1.PresetScratch{SizeLimit: "1Mi"}},
		}
		r.Libraries = library
	}))
	w.file("data/driver/usr/lib/liba.so.1", elffile.File{Soname: "liba.so.1"}.Bytes(), 0o644)
	w.file("data/team/bin/tool", nil, 0o755)
	c := claimOfClass("u1", ofGPU("main", "gpu0"))
	plan := w.gives(c)
	given := plan.Edits["main"]
	for i, want := range []hostmount.Mount{
		{Scratch: &hostmount.Scratch{Bytes: 1 << 20}},
		{Copy: &hostmount.Copy{Below: "/data", Path: "team", ReadOnly: true, Recursive: true}},
		{Copy: &hostmount.Copy{Below: "/data/write", Path: "file"}},
		{Copy: &hostmount.Copy{Below: "/data", Path: "driver/usr/lib/liba.so.1", ReadOnly: true}},
	} {
		if i >= len(plan.Steps) {
			t.Fatalf("steps %v", plan.Steps)
		}
		var got hostmount.Mount
		check.Must(t, json.Unmarshal(plan.Steps[i].Params, &got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("mount %d (-want +got):\n%s", i, diff)
		}
		if at := given.Own.Mounts[i].HostPath; at != "/mounts/"+plan.Steps[i].Target || !strings.HasPrefix(at, "/mounts/u1/") {
			t.Errorf("mount %d is of %s, and the step for %s", i, at, plan.Steps[i].Target)
		}
	}
	if len(plan.Steps) != 4 || len(given.Shared.Mounts) > 0 {
		t.Errorf("steps %v, shared mounts %v", plan.Steps, given.Shared.Mounts)
	}
	hooks := []container.Hook{
		{Path: "/hooks/fettle-hook-1", Args: []string{
			"fettle-hook-1", "links", "--yielding-link", "/opt/team/bin/tool::/usr/bin/tool",
		}},
		{Path: "/hooks/fettle-hook-1", Args: []string{"fettle-hook-1", "ldconfig", "--dir", "/usr/local/fettle/lib"}},
	}
	if diff := cmp.Diff(hooks, given.Shared.Hooks); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	again, err := w.again(c, plan.Decision)
	check.Must(t, err)
	if diff := cmp.Diff(given.Own, again.Edits["main"].Own); diff != "" {
		t.Errorf("after a reboot (-before +then):\n%s", diff)
	}
	if _, known := w.Kinds()[plan.Steps[0].Kind]; !known {
		t.Errorf("the feature does not own step %s", plan.Steps[0])
	}
	other := w.gives(claimOfClass("u2", ofGPU("main", "gpu0"))).Edits["main"]
	if diff := cmp.Diff(given.Shared, other.Shared); diff != "" || slices.Equal(given.Own.Mounts, other.Own.Mounts) {
		t.Errorf("another claim shares %v (-this +that):\n%s", other.Own.Mounts, diff)
	}
}

// TestPresetRefusesPaths: a namespace has nothing of a node but what an administrator let it have, by whatever way it names it.
func TestPresetRefusesPaths(t *testing.T) {
	mount := func(m v1alpha1.PresetMount) func(*v1alpha1.PresetRules) {
		m.ContainerPath = "/opt/x"
		return func(r *v1alpha1.PresetRules) { r.Mounts = []v1alpha1.PresetMount{m} }
	}
	path := func(name string) func(*v1alpha1.PresetRules) { return mount(v1alpha1.PresetMount{HostPath: name}) }
	for name, tc := range map[string]struct {
		change func(*v1alpha1.PresetRules)
		says   string
	}{
		"root":            {path("/"), ""},
		"elsewhere":       {path("/etc"), "/etc is not below a directory of the driver's allowedHostPaths (/data, /data/write)"},
		"kubelet":         {path("/var/lib/kubelet"), "allowedHostPaths"},
		"up":              {path("/data/../etc"), ""},
		"a name's prefix": {path("/database"), "allowedHostPaths"},
		"link out":        {path("/data/out"), "symbolic link"},
		"through a link":  {path("/data/out/secret"), "symbolic link"},
		"absent":          {path("/data/absent"), "is not on this node"},
		"written":         {mount(v1alpha1.PresetMount{HostPath: "/data/team", ReadOnly: new(false)}), "for reading"},
		"libraries":       {func(r *v1alpha1.PresetRules) { r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"x"}}} }, "root: / is not"},
		"linked libraries": {func(r *v1alpha1.PresetRules) {
			r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"x"}, Root: "/data/out"}}
		}, "symbolic link"},
		"tools": {func(r *v1alpha1.PresetRules) {
			r.Tools = []v1alpha1.PresetFiles{{Names: []string{"x"}, Root: "/data/team/file"}}
		}, "is no directory"},
		"programs": {func(r *v1alpha1.PresetRules) {
			mount(v1alpha1.PresetMount{HostPath: "/data/team"})(r)
			r.Env = []v1alpha1.PresetEnv{{Name: v1alpha1.EnvPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/x/out")}}
		}, "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTeamWorld(t, teamPreset(tc.change))
			check.Must(t, os.Symlink("/etc", filepath.Join(w.root, "data/out")))
			check.Must(t, os.Symlink("/etc", filepath.Join(w.root, "data/team/out")))
			given, err := w.plan(claimOfClass("u1", ofGPU("main", "gpu0")))
			if tc.says == "" { // the API server has refused it, and whoever got it past that is told of, and given nothing
				if err != nil || len(given.Edits) > 0 || len(given.Steps) > 0 || len(w.told) == 0 {
					t.Errorf("got %v, %v, told %v", given, err, w.told)
				}
				return
			}
			if !errors.Is(err, errUnmet) {
				t.Fatalf("got %v, want that a preset is unmet", err)
			}
			for _, words := range []string{tc.says, "DevicePreset team-a/own"} {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
		})
	}
}

// TestPresetNoScratch: memory that nobody mounts is refused.
func TestPresetNoScratch(t *testing.T) {
	w := newPresetWorld(t, teamPreset(func(r *v1alpha1.PresetRules) {
		r.Mounts = []v1alpha1.PresetMount{{ContainerPath: "/opt/x", Scratch: &v1alpha1.PresetScratch{SizeLimit: "1Mi"}}}
	}))
	_, err := w.plan(claimOfClass("u1", ofGPU("main", "gpu0")))
	check.WantErr(t, err, errUnmet, "presets.scratch")
}

// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPreview: a command shows what a node would do without making anything, what the claim alone has by what that is made of. The files of
// a vendor's driver are left out.
func TestPreview(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"opt/v1/bin/tool", "data/team/file"} {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/opt/v1", filepath.Join(root, "opt/current")); err != nil {
		t.Fatal(err)
	}
	admin, team := preset.Origin{Name: "site"}, preset.Origin{Namespace: "team-a", Name: "own"}
	request := preset.Request{
		Claim: "c", Request: "main",
		Env: []preset.Variable{{Name: "A", Value: "1", From: []preset.Origin{admin}}},
		Mounts: []preset.Mount{
			{PresetMount: v1alpha1.PresetMount{HostPath: "/opt/current", ContainerPath: "/opt/site"}, From: admin},
			{PresetMount: v1alpha1.PresetMount{HostPath: "/data/team", ContainerPath: "/team"}, From: team},
			{PresetMount: v1alpha1.PresetMount{ContainerPath: "/scratch", Scratch: &v1alpha1.PresetScratch{SizeLimit: "1Mi"}}, From: team},
		},
		ToolDirs: []preset.Directory{{Path: "/opt/site/bin", From: admin}},
		Drivers:  []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}, From: admin}},
	}
	preview := Preview{Root: root, Hook: "fettle-hook", AllowedHostPaths: []preset.AllowedHostPath{{Path: "/data"}}}
	got, err := preview.Edits(request)
	want := container.Edits{
		Env: []string{"A=1"},
		Mounts: []container.Mount{
			{HostPath: "/opt/v1", ContainerPath: "/opt/site", ReadOnly: true, NonRecursive: true},
			{HostPath: "/data/team", ContainerPath: "/team", ReadOnly: true, NonRecursive: true},
			{HostPath: "tmpfs", ContainerPath: "/scratch", NonRecursive: true},
		},
		Hooks: []container.Hook{{Path: "fettle-hook", Args: []string{
			"fettle-hook", "links", "--yielding-link", "/opt/site/bin/tool::/usr/bin/tool",
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	request.Mounts[0].HostPath = "/opt/absent"
	preview.AllowedHostPaths = nil
	got, err = preview.Edits(request)
	for _, words := range []string{
		"ClusterDevicePreset site, mount /opt/site: /opt/absent is not on this node", "DevicePreset team-a/own, mount /team", "allowedHostPaths",
	} {
		check.WantErr(t, err, nil, words)
	}
	if diff := cmp.Diff(container.Edits{Env: want.Env, Mounts: want.Mounts[2:]}, got); diff != "" {
		t.Errorf("beside what is about errors (-want +got):\n%s", diff)
	}
	if names, err := filepath.Glob(filepath.Join(root, "*")); err != nil || len(names) != 2 {
		t.Errorf("in the tree there are %v, %v", names, err)
	}
	if _, err := (Preview{Root: filepath.Join(root, "absent")}).Edits(request); err == nil {
		t.Error("a tree that is not there has everything")
	}
}

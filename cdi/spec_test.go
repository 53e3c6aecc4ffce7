// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/test/check"
)

// cases are the sorts of edits that discovery makes, by the name of their golden file.
func cases() map[string]container.Edits {
	return map[string]container.Edits{
		"nvidia": {Nodes: []container.Node{
			{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"},
			{Path: "/dev/nvidiactl", Major: 195, Minor: 255, Permissions: "rw"},
			{Path: "/dev/nvidia-uvm", Major: 511, Minor: 0, Permissions: "rw"},
		}},
		"look":  {Nodes: []container.Node{{Path: "/dev/dri/renderD128", Major: 226, Minor: 128, Permissions: "r"}}},
		"mount": {Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/localssd/ssd0"}}},
		"mount-read-only": {Mounts: []container.Mount{
			{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/localssd/ssd0", ReadOnly: true},
		}},
		"both": {
			Nodes:  []container.Node{{Path: "/dev/kfd", Major: 234, Minor: 0, Permissions: "rw"}},
			Mounts: []container.Mount{{HostPath: "/opt/rocm", ContainerPath: "/opt/rocm", ReadOnly: true}},
		},
		"preset": {
			Mounts: []container.Mount{
				{HostPath: "/mnt/shared", ContainerPath: "/mnt/shared", ReadOnly: true, HostToContainer: true},
				{HostPath: "/usr/lib64/libcuda.so.550.54", ContainerPath: "/usr/local/fettle/lib/libcuda.so.1", ReadOnly: true, NonRecursive: true},
			},
			Env:   []string{"CUDA_CACHE_MAXSIZE=4294967296", "GREETING=a \"b\" = $c\n\td: [e] # f"},
			Hooks: []container.Hook{{Path: "/opt/fettle/fettle-hook", Args: []string{"fettle-hook", "ldconfig", "--dir", "/usr/local/fettle/lib"}}},
		},
	}
}

func TestGolden(t *testing.T) {
	for name, edits := range cases() {
		t.Run(name, func(t *testing.T) {
			spec, err := testNames().Common(edits)
			if err != nil {
				t.Fatal(err)
			}
			check.Golden(t, filepath.Join("testdata", name+".golden.json"), spec.Content)
			vendor, class, device, err := parser.ParseQualifiedName(spec.Device)
			if err != nil || vendor+"/"+class != CommonKind {
				t.Errorf("device name %q: %v", spec.Device, err)
			}
			if want := vendor + "-" + class + "-" + device + ".json"; spec.File != want {
				t.Errorf("file %q, want %q", spec.File, want)
			}
		})
	}
}

// TestMinimumVersion: a runtime refuses a spec of a version that it does not know, so a spec never claims more than it needs. What
// Fettle uses is in the oldest version that the library still names.
func TestMinimumVersion(t *testing.T) {
	for name, edits := range cases() {
		spec, err := testNames().Common(edits)
		if err != nil {
			t.Fatal(err)
		}
		var head struct {
			Version string `json:"cdiVersion"`
		}
		if err := json.Unmarshal(spec.Content, &head); err != nil {
			t.Fatal(err)
		}
		if head.Version != "0.3.0" {
			t.Errorf("%s: version %s, want 0.3.0", name, head.Version)
		}
	}
}

// TestHash: equal edits have one name in every process and release, and any difference makes another.
func TestHash(t *testing.T) {
	seen := map[string]string{}
	for name, edits := range cases() {
		first, err := testNames().Common(edits)
		second, err2 := testNames().Common(edits)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s twice (-first +second):\n%s", name, diff)
		}
		if other, ok := seen[first.Device]; ok {
			t.Errorf("%s and %s are both %s", name, other, first.Device)
		}
		seen[first.Device] = name
	}
	changed := cases()["nvidia"]
	changed.Nodes[0].Minor++
	spec, err := testNames().Common(changed)
	if err != nil {
		t.Fatal(err)
	}
	if seen[spec.Device] != "" {
		t.Error("another minor number has the same name")
	}
}

// TestRefused: a spec that the runtime would refuse breaks every container of the node that names it, so it is never made.
func TestRefused(t *testing.T) {
	tests := map[string]container.Edits{
		"nothing":             {},
		"node without path":   {Nodes: []container.Node{{Major: 1, Minor: 1, Permissions: "rw"}}},
		"unknown permissions": {Nodes: []container.Node{{Path: "/dev/x", Major: 1, Minor: 1, Permissions: "rx"}}},
		"mount from nowhere":  {Mounts: []container.Mount{{ContainerPath: "/x"}}},
		"relative mount":      {Mounts: []container.Mount{{HostPath: "mnt", ContainerPath: "/x"}}},
		"control character":   {Mounts: []container.Mount{{HostPath: "/mnt/a\x7fb", ContainerPath: "/x"}}},
		"not UTF-8":           {Mounts: []container.Mount{{HostPath: "/mnt/\xff", ContainerPath: "/x"}}},
		"mount to nowhere":    {Mounts: []container.Mount{{HostPath: "/x"}}},
		"no name":             {Env: []string{"=value"}},
		"no value":            {Env: []string{"NAME"}},
		"odd value":           {Env: []string{"NAME=a\x00b"}},
		"relative hook":       {Hooks: []container.Hook{{Path: "fettle-hook", Args: []string{"fettle-hook"}}}},
		"odd argument":        {Hooks: []container.Hook{{Path: "/fettle-hook", Args: []string{"fettle-hook", "a\nb"}}}},
	}
	for name, edits := range tests {
		t.Run(name, func(t *testing.T) {
			spec, err := testNames().Common(edits)
			if err == nil {
				t.Errorf("made %s", spec.Content)
			}
		})
	}
}

// TestLibraryReads lets the runtime's own library read every spec from the directory and edit a container with it.
func TestLibraryReads(t *testing.T) {
	dir := open(t)
	for _, edits := range cases() {
		ensure(t, dir, edits)
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(dir.path), cdiapi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("the library refuses: %v", errs)
	}
	for name, edits := range cases() {
		spec, err := testNames().Common(edits)
		if err != nil {
			t.Fatal(err)
		}
		container := &oci.Spec{Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
		if missing, err := cache.InjectDevices(container, spec.Device); err != nil {
			t.Errorf("%s: %v, missing %v", name, err, missing)
			continue
		}
		checkInjected(t, name, edits, container)
	}
}

func checkInjected(t *testing.T, name string, edits container.Edits, spec *oci.Spec) {
	t.Helper()
	var got container.Edits
	for _, d := range spec.Linux.Devices {
		got.Nodes = append(got.Nodes, container.Node{Path: d.Path, Major: d.Major, Minor: d.Minor})
	}
	for i, rule := range spec.Linux.Resources.Devices {
		if !rule.Allow || rule.Type != "c" || *rule.Major != got.Nodes[i].Major || *rule.Minor != got.Nodes[i].Minor {
			t.Errorf("%s: rule %+v does not fit node %+v", name, rule, got.Nodes[i])
		}
		got.Nodes[i].Permissions = rule.Access
	}
	for _, m := range spec.Mounts {
		got.Mounts = append(got.Mounts, container.Mount{
			HostPath: m.Source, ContainerPath: m.Destination, ReadOnly: slices.Contains(m.Options, "ro"),
			NonRecursive: slices.Contains(m.Options, "bind"), HostToContainer: slices.Contains(m.Options, "rslave"),
		})
	}
	if spec.Process != nil {
		got.Env = spec.Process.Env
	}
	if spec.Hooks != nil {
		for _, h := range spec.Hooks.CreateContainer {
			got.Hooks = append(got.Hooks, container.Hook{Path: h.Path, Args: h.Args})
		}
	}
	if diff := cmp.Diff(edits, got); diff != "" {
		t.Errorf("%s: container (-want +got):\n%s", name, diff)
	}
}

// FuzzCommon: whatever the paths are, a spec is refused or its file name is safe and the runtime's library can read it.
func FuzzCommon(f *testing.F) {
	f.Add("/dev/nvidia0", int64(195), int64(0), "rw", "/mnt/disks/ssd0", "/mnt/localssd/ssd0", false, "A=b", "--dir")
	f.Add("", int64(-1), int64(1<<40), "", "relative", "../..", true, "A", "")
	f.Add("/dev/\xff\n", int64(0), int64(0), "m", "/\x00", "/dev", true, "A=\n: #", "\u2028")
	f.Fuzz(func(t *testing.T, path string, major, minor int64, permissions, from, to string, readOnly bool, env, arg string) {
		spec, err := testNames().Common(container.Edits{
			Nodes:  []container.Node{{Path: path, Major: major, Minor: minor, Permissions: permissions}},
			Mounts: []container.Mount{{HostPath: from, ContainerPath: to, ReadOnly: readOnly}},
			Env:    []string{env},
			Hooks:  []container.Hook{{Path: from, Args: []string{arg}}},
		})
		if err != nil {
			return
		}
		if filepath.Base(spec.File) != spec.File {
			t.Errorf("file %q is a path", spec.File)
		}
		if back, err := fileOf(spec.Device); err != nil || back != spec.File {
			t.Errorf("%s is in file %q (%v), want %q", spec.Device, back, err, spec.File)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, spec.File)
		if err := os.WriteFile(file, spec.Content, 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := cdiapi.ReadSpec(file, 0)
		if err != nil {
			t.Fatalf("the library refuses %s: %v", spec.Content, err)
		}
		if got := read.Devices[0].ContainerEdits; got.Env[0] != env || got.Hooks[0].Args[0] != arg || got.Mounts[0].HostPath != from {
			t.Errorf("the library reads %q, %q and %q of %s", got.Env[0], got.Hooks[0].Args[0], got.Mounts[0].HostPath, spec.Content)
		}
	})
}

// FuzzFileOf: a qualified name comes from a record; whatever it is, it names no file outside the directory.
func FuzzFileOf(f *testing.F) {
	f.Add("fettle.dev/common=0123")
	f.Add("fettle.dev/../x=..")
	f.Add("vendor/class=../../etc/passwd")
	f.Fuzz(func(t *testing.T, qualified string) {
		file, err := fileOf(qualified)
		if err == nil && filepath.Base(file) != file {
			t.Errorf("%q is in %q", qualified, file)
		}
	})
}

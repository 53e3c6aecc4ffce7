// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

const claimUID = "0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11"

// owned are the edits of a claim with four devices, two of which need the same.
func owned() []container.Edits {
	return []container.Edits{cases()["look"], cases()["mount"], cases()["look"], cases()["both"]}
}

// unnamed are edits without a name yet.
func unnamed(all []container.Edits) []Own {
	var own []Own
	for _, edits := range all {
		own = append(own, Own{Edits: edits})
	}
	return own
}

func ofClaim(t testing.TB, uid string, all ...container.Edits) (Spec, []string) {
	t.Helper()
	spec, names, err := testNames().OfClaim(uid, unnamed(all))
	check.Must(t, err)
	return spec, names
}

func TestOfClaimGolden(t *testing.T) {
	spec, names := ofClaim(t, claimUID, owned()...)
	if want := "fettle.dev-claim-" + claimUID + ".json"; spec.File != want {
		t.Errorf("file %q, want %q", spec.File, want)
	}
	got := append([]byte(strings.Join(names, "\n")+"\n"), spec.Content...)
	check.Golden(t, filepath.Join("testdata", "claim.golden"), got)
	if len(names) != 4 || names[0] != names[2] {
		t.Errorf("names %v: expected one a device, and equal edits to share one", names)
	}
	if uid, ok := ClaimOf(spec.File); !ok || uid != claimUID {
		t.Errorf("the file is claim %q's, %v", uid, ok)
	}
	var file struct {
		Version string            `json:"cdiVersion"`
		Devices []json.RawMessage `json:"devices"`
	}
	check.Must(t, json.Unmarshal(spec.Content, &file))
	if file.Version != "0.3.0" || len(file.Devices) != 3 {
		t.Errorf("version %s with %d devices, want 0.3.0 with 3", file.Version, len(file.Devices))
	}
}

// TestOfClaimNames: a name means one set of edits of one claim, for as long as the claim has it.
func TestOfClaimNames(t *testing.T) {
	spec, names := ofClaim(t, "u1", owned()...)
	again, namesAgain := ofClaim(t, "u1", owned()...)
	if diff := cmp.Diff([]any{spec, names}, []any{again, namesAgain}); diff != "" {
		t.Errorf("twice (-first +second):\n%s", diff)
	}
	seen := map[string]string{}
	for name, edits := range cases() {
		common, err := testNames().Common(edits)
		check.Must(t, err)
		changed := edits
		changed.Mounts = append(changed.Mounts, container.Mount{HostPath: "/opt/x", ContainerPath: "/opt/y"})
		for what, made := range map[string]struct {
			uid   string
			edits container.Edits
		}{
			name + " of u1": {"u1", edits}, name + " of u2": {"u2", edits}, name + " with more": {"u1", changed},
		} {
			_, names := ofClaim(t, made.uid, made.edits)
			if other, taken := seen[names[0]]; taken {
				t.Errorf("%s and %s are both %s", what, other, names[0])
			}
			seen[names[0]] = what
			vendor, class, device, err := parser.ParseQualifiedName(names[0])
			if err != nil || vendor+"/"+class != ClaimKind || CommonKind+"="+device == common.Device {
				t.Errorf("%s: name %s: %v", what, names[0], err)
			}
		}
	}
	// What a device's edits are called does not depend on the claim's others.
	_, alone := ofClaim(t, "u1", owned()[3])
	if alone[0] != names[3] {
		t.Errorf("alone it is %s, beside others %s", alone[0], names[3])
	}
}

func TestOfClaimRefuses(t *testing.T) {
	good := cases()["look"]
	tests := map[string]struct {
		uid string
		all []container.Edits
	}{
		"no UID":           {"", []container.Edits{good}},
		"a path":           {"../../etc/x", []container.Edits{good}},
		"a NUL":            {"u\x00", []container.Edits{good}},
		"nothing at all":   {"u1", nil},
		"one with nothing": {"u1", []container.Edits{good, {}}},
		"a relative mount": {"u1", []container.Edits{good, {Mounts: []container.Mount{{HostPath: "mnt", ContainerPath: "/x"}}}}},
	}
	for name, tt := range tests {
		if spec, names, err := testNames().OfClaim(tt.uid, unnamed(tt.all)); err == nil {
			t.Errorf("%s: made %s with %v", name, spec.Content, names)
		}
	}
}

// TestLibraryReadsClaims lets the runtime's own library read the specs of claims beside those of devices, and edit containers.
func TestLibraryReadsClaims(t *testing.T) {
	d := open(t)
	kinds := step.Kinds{StepKind: d.Kind(nil)}
	byName := map[string]container.Edits{}
	for _, edits := range cases() {
		byName[ensure(t, d, edits).Device] = edits
	}
	for _, uid := range []string{"u1", claimUID} {
		spec, names := ofClaim(t, uid, owned()...)
		s, err := Step(spec)
		check.Must(t, err)
		check.Must(t, kinds.Apply(t.Context(), s))
		for i, name := range names {
			byName[name] = owned()[i]
		}
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(d.path), cdiapi.WithAutoRefresh(false))
	check.Must(t, err)
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("the library refuses: %v", errs)
	}
	if got, want := len(cache.ListDevices()), len(byName); got != want {
		t.Errorf("the library sees %d devices, want %d", got, want)
	}
	for name, edits := range byName {
		container := &oci.Spec{Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
		if missing, err := cache.InjectDevices(container, name); err != nil {
			t.Errorf("%s: %v, missing %v", name, err, missing)
			continue
		}
		checkInjected(t, name, edits, container)
	}
}

func TestStep(t *testing.T) {
	d := open(t)
	kinds := step.Kinds{StepKind: d.Kind(nil)}
	other := ensure(t, d, cases()["nvidia"])
	spec, _ := ofClaim(t, "u1", owned()...)
	s, err := Step(spec)
	check.Must(t, err)
	if s.Kind != StepKind || s.Target != spec.File {
		t.Errorf("step %s, want %s on %s", s, StepKind, spec.File)
	}
	path := filepath.Join(d.path, spec.File)
	there := func(what string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != string(spec.Content) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	check.Must(t, kinds.Undo(t.Context(), s)) // of what was never applied
	check.Must(t, kinds.Apply(t.Context(), s))
	there("applied")
	before := identity(t, path)
	check.Must(t, kinds.Apply(t.Context(), s))
	check.Must(t, kinds.Verify(t.Context(), s))
	if after := identity(t, path); after != before {
		t.Error("the file was written again: the runtime reads the whole directory after each change")
	}
	for what, damage := range map[string]func() error{
		"removed":     func() error { return os.Remove(path) },
		"truncated":   func() error { return os.Truncate(path, 9) },
		"overwritten": func() error { return os.WriteFile(path, []byte("{}"), 0o600) },
		"wiped":       func() error { return os.RemoveAll(d.path) },
	} {
		check.Must(t, damage())
		check.Must(t, kinds.Verify(t.Context(), s))
		there(what)
	}
	check.Must(t, d.Ensure(other)) // which was wiped, too
	for range 2 {
		check.Must(t, kinds.Undo(t.Context(), s))
	}
	if diff := cmp.Diff([]string{other.File}, names(t, d)); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
}

// TestStepRefuses: the parameters come from a file on disk, and a step touches the file of a claim and no other.
func TestStepRefuses(t *testing.T) {
	d := open(t)
	common := ensure(t, d, cases()["nvidia"])
	outside := filepath.Join(filepath.Dir(d.path), "outside.json")
	check.Must(t, os.WriteFile(outside, []byte("kept"), 0o600))
	check.Must(t, os.Mkdir(filepath.Join(d.path, "fettle.dev-claim-dir"), 0o755))
	put(t, d, "nvidia.com-gpu.json", "fettle.dev-claim-dir/x.json")
	before := names(t, d)
	var raws []string
	for _, file := range []string{
		"", ".", "..", "/", "../outside.json", outside, common.File, "nvidia.com-gpu.json", "fettle.dev-claim-", "fettle.dev-claim-.json",
		"fettle.dev-claim-u1", "fettle.dev-claim-u1.yaml", "fettle.dev-claim-dir/x.json", "fettle.dev-claim-dir/../../outside.json",
		"fettle.dev-claim-\x00.json", " fettle.dev-claim-u1.json", "FETTLE.DEV-claim-u1.json",
	} {
		raw, err := json.Marshal(stepParams{File: file, Content: "{}"})
		check.Must(t, err)
		raws = append(raws, string(raw))
	}
	for _, raw := range append(raws, "", "{", "[]", `{"file":1}`, "null") {
		for what, do := range map[string]error{
			"apply": d.Kind(nil).Apply(t.Context(), json.RawMessage(raw)),
			"undo":  d.Kind(nil).Undo(t.Context(), json.RawMessage(raw)),
		} {
			if do == nil || errors.Is(do, fs.ErrNotExist) {
				t.Errorf("%s %s: %v, want a refusal", what, raw, do)
			}
		}
	}
	if diff := cmp.Diff(before, names(t, d)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	for _, path := range []string{outside, filepath.Join(d.path, "fettle.dev-claim-dir", "x.json")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestClaimOf(t *testing.T) {
	for file, want := range map[string]string{
		"fettle.dev-claim-u1.json": "u1", "fettle.dev-claim-.json": "", "fettle.dev-common-x1.json": "", "fettle.dev-claim-u1": "",
		"fettle.dev-claim-u1.json.json": "u1.json", ".tmp-fettle.dev-claim-u1.json-0": "", "": "",
	} {
		if got, ok := ClaimOf(file); ok != (want != "") || ok && got != want {
			t.Errorf("ClaimOf(%q) = %q, %v, want %q", file, got, ok, want)
		}
	}
}

// FuzzStepParams: whatever a record holds, a step names a claim's file in the directory or is refused.
func FuzzStepParams(f *testing.F) {
	spec, _ := ofClaim(f, "u1", owned()...)
	s, err := Step(spec)
	check.Must(f, err)
	f.Add([]byte(s.Params))
	f.Add([]byte(`{"file":"fettle.dev-claim-../../x.json"}`))
	f.Add([]byte(`{"file":"fettle.dev-claim-\u0000.json","FILE":"/etc/passwd"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		params, err := step.Decode[stepParams](raw)
		if err != nil {
			return
		}
		spec, err := params.spec()
		if err != nil {
			return
		}
		uid, ok := ClaimOf(spec.File)
		if !ok || uid == "" || filepath.Base(spec.File) != spec.File || strings.ContainsRune(spec.File, 0) {
			t.Errorf("%s names %q", raw, spec.File)
		}
	})
}

// TestMade: what a step of the claim makes is asked for each time the file is written, and the names that kubelet has stay.
func TestMade(t *testing.T) {
	d := open(t)
	whole := container.Edits{Nodes: []container.Node{{Path: "/dev/card0", Major: 195, Minor: 0, Permissions: "rw"}}}
	part := whole
	part.Made = []string{"card0-part-s4"}
	minor := int64(7)
	kinds := step.Kinds{StepKind: d.Kind(func(name string) (container.Edits, error) {
		if name != "card0-part-s4" {
			t.Errorf("asked for %s", name)
		}
		if minor == 0 {
			return container.Edits{}, fs.ErrNotExist
		}
		return container.Edits{
			Nodes: []container.Node{{Path: "/dev/caps/cap7", Major: 236, Minor: minor, Permissions: "rw"}}, Env: []string{"PART=MIG-1"},
		}, nil
	})}
	spec, names := ofClaim(t, claimUID, whole, part)
	if names[0] == names[1] {
		t.Fatalf("the whole and a part of it have the name %s", names[0])
	}
	s, err := Step(spec)
	check.Must(t, err)
	nodes := func(name string) (out []string) {
		t.Helper()
		cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(d.path), cdiapi.WithAutoRefresh(false))
		check.Must(t, err)
		into := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
		_, err = cache.InjectDevices(into, name)
		check.Must(t, err)
		for _, n := range into.Linux.Devices {
			out = append(out, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
		}
		return append(out, into.Process.Env...)
	}
	for _, minor = range []int64{7, 9} {
		check.Must(t, kinds.Apply(t.Context(), s))
		check.Must(t, kinds.Verify(t.Context(), s))
		want := []string{"/dev/card0 195:0", fmt.Sprintf("/dev/caps/cap7 236:%d", minor), "PART=MIG-1"}
		if diff := cmp.Diff(want, nodes(names[1])); diff != "" {
			t.Errorf("the part (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"/dev/card0 195:0"}, nodes(names[0])[:1]); diff != "" {
			t.Errorf("the whole (-want +got):\n%s", diff)
		}
	}
	minor = 0
	if err := kinds.Apply(t.Context(), s); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "card0-part-s4") {
		t.Errorf("nothing was made: %v", err)
	}
	check.Must(t, kinds.Undo(t.Context(), s))
}

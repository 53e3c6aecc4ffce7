// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func TestAllowedHostPath(t *testing.T) {
	for path, want := range map[string]string{
		"/data": "", "/usr/share": "", "/var/lib/models": "", "/mnt/etc": "", "/home": "",
		"data": "absolute", "/data/": "clean", "/data/../etc": "clean", "": "absolute",
		"/": "/boot", "/etc": "/etc", "/etc/ssl": "/etc", "/var": "/var/lib/containerd", "/var/lib": "/var/lib/containerd",
		"/var/lib/kubelet/pods": "/var/lib/kubelet", "/run/user": "/run", "/var/run": "/var/run",
	} {
		err := AllowedHostPath{Path: path}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", path, err, want)
		}
	}
	for path, want := range map[string]bool{"/data": true, "/usr/share": false, "/lib": false, "/srv": true} {
		if err := (AllowedHostPath{Path: path, Writable: true}).Validate(); (err == nil) != want {
			t.Errorf("%s to write: %v", path, err)
		}
	}
}

func TestAllowedFor(t *testing.T) {
	all := []AllowedHostPath{{Path: "/data"}, {Path: "/data/write", Writable: true}, {Path: "/data/write/not"}}
	for name, want := range map[string][2]string{ // to read, to write
		"/data": {"/data", ""}, "/data/a/b": {"/data", ""}, "/data/write": {"/data/write", "/data/write"},
		"/data/write/a": {"/data/write", "/data/write"}, "/data/write/not/a": {"/data/write/not", ""},
		"/database": {"", ""}, "/": {"", ""}, "/etc": {"", ""},
	} {
		for i, readOnly := range []bool{true, false} {
			got, err := AllowedFor(all, name, readOnly)
			if got != want[i] || (err == nil) != (want[i] != "") {
				t.Errorf("%s, readOnly %v: %q, %v, want %q", name, readOnly, got, err, want[i])
			}
		}
	}
	if _, err := AllowedFor(nil, "/data", true); !errors.Is(err, ErrOutside) || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("where nothing is allowed: %v", err)
	}
}

// TestOutside: what a namespace may not name is told by its field; an administrator may name anything.
func TestOutside(t *testing.T) {
	rules := v1alpha1.PresetRules{
		Mounts: []v1alpha1.PresetMount{
			{HostPath: "/data/a", ContainerPath: "/a"},
			{HostPath: "/etc", ContainerPath: "/b"},
			{ContainerPath: "/c", Scratch: &v1alpha1.PresetScratch{SizeLimit: "1Mi"}},
			{HostPath: "/data/a", ContainerPath: "/d", ReadOnly: new(false)},
		},
		Libraries: []v1alpha1.PresetFiles{{Names: []string{"x"}, Root: "/data/driver"}, {Names: []string{"x"}}},
		Tools:     []v1alpha1.PresetFiles{{Names: []string{"x"}, Root: "/opt"}},
	}
	allowed := []AllowedHostPath{{Path: "/data"}}
	var got []string
	for _, fault := range (&Preset{Namespace: "team", Rules: rules}).NotAllowed(allowed) {
		got = append(got, fault.Field)
	}
	want := []string{"spec.mounts[1].hostPath", "spec.mounts[3].hostPath", "spec.libraries[1].root", "spec.tools[0].root"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if faults := (&Preset{Rules: rules}).NotAllowed(allowed); len(faults) > 0 {
		t.Errorf("an administrator's: %v", faults)
	}
}

// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func TestAllowedHostPath(t *testing.T) {
	for path, want := range map[string]string{
		"/data": "", "/usr/share": "", "/var/lib/models": "", "/mnt/etc": "", "/home": "",
		"data": "absolute", "/data/": "clean", "/data/../etc": "clean", "": "absolute",
		"/": "/boot", "/etc": "/etc", "/etc/ssl": "/etc", "/var": "/var/lib/containers", "/var/lib": "/var/lib/containers",
		"/mnt/docker-images": "", "/home/team": "", "/opt/vendor": "", "/var/log/jobs": "", "/mnt/disk/docker/x": "/mnt/disk/docker",
		"/var/lib/kubelet/pods": "/var/lib/kubelet", "/run/user": "/run", "/var/run": "/var/run",
	} {
		err := AllowedHostPath{Path: path}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", path, err, want)
		}
	}
	for path, want := range map[string]bool{
		"/data": true, "/srv": true, "/mnt/results": true, "/var/mnt/x": true, "/home/team/results": true, "/scratch": true,
		"/usr/share": false, "/lib": false, "/home": false, "/home/team": false, "/var/log/jobs": false, "/opt/vendor": false,
	} {
		if err := (AllowedHostPath{Path: path, Writable: true}).Validate(); (err == nil) != want {
			t.Errorf("%s to write: %v", path, err)
		}
	}
}

// TestNoNodeIsGivenAway: what some distribution keeps its programs and keys in may not be written to, nor may anything above or below it;
// where keys are, it may not be read either.
func TestNoNodeIsGivenAway(t *testing.T) {
	for place, keys := range map[string]bool{
		"/etc/kubernetes/pki": true, "/var/lib/kubelet/pki": true, "/var/lib/etcd": true, "/var/lib/containerd": true, "/var/lib/docker": true,
		"/var/lib/rancher/k3s/server/tls": true, "/var/lib/rancher/rke2/agent": true, "/var/lib/k0s/pki": true, "/var/lib/fettle": true,
		"/var/snap/microk8s/current/certs": true, "/var/lib/minikube/certs": true, "/var/lib/containers/storage": true, "/root/.ssh": true,
		"/run/containerd": true, "/var/run/crio": true, "/home/core/.ssh": false, "/mnt/disk1/kubelet/pods": false, "/home/kubernetes/bin": false,
		"/opt/cni/bin": false, "/opt/containerd/bin": false, "/usr/local/bin": false, "/var/lib/cloud/scripts": false, "/var/lib/systemd": false,
		"/var/opt/app": false, "/nix/store": false, "/ostree/deploy": false, "/snap/bin": false, "/var/log/pods": true,
		"/var/log/containers": true, "/var/lib/cni": true, "/mnt/podman/storage": true, "/mnt/rancher/k3s": true, "/var/spool/cron": false,
	} {
		for name := place + "/x"; name != "/"; name = path.Dir(name) {
			if name == "/mnt" || name == "/mnt/disk1" {
				continue // only a node knows what is in it
			}
			if (AllowedHostPath{Path: name, Writable: true}).Validate() == nil {
				t.Errorf("%s may be written to, which gives away %s", name, place)
			}
			if keys && (AllowedHostPath{Path: name}).Validate() == nil {
				t.Errorf("%s may be read, which gives away %s", name, place)
			}
		}
	}
}

func TestAllowedFor(t *testing.T) {
	all := []AllowedHostPath{{Path: "/data"}, {Path: "/data/write", Writable: true}, {Path: "/data/write/not"}}
	for name, want := range map[string][2]string{ // to read, to write
		"/data": {"/data", ""}, "/data/a/b": {"/data", ""}, "/data/write": {"/data/write", ""}, // not to write: it holds write/not
		"/data/write/a": {"/data/write", "/data/write"}, "/data/write/not/a": {"/data/write/not", ""},
		"/database": {"", ""}, "/": {"", ""}, "/etc": {"", ""},
	} {
		for i, readOnly := range []bool{true, false} {
			got, err := AllowedFor(all, "team", name, readOnly)
			if got != want[i] || (err == nil) != (want[i] != "") {
				t.Errorf("%s, readOnly %v: %q, %v, want %q", name, readOnly, got, err, want[i])
			}
		}
	}
	if _, err := AllowedFor(nil, "team", "/data", true); !errors.Is(err, ErrOutside) || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("where nothing is allowed: %v", err)
	}
}

// TestAllowedForNamespaces: an entry for some namespaces is for no other, also by way of a directory above it, and no error names it.
func TestAllowedForNamespaces(t *testing.T) {
	all := []AllowedHostPath{
		{Path: "/data"},
		{Path: "/data/alice", Writable: true, Namespaces: []string{"alice"}},
		{Path: "/only", Namespaces: []string{"alice", "bob"}},
		{Path: "/data/alice", Namespaces: []string{"bob"}},
	}
	for _, tt := range []struct {
		namespace, name string
		read, write     bool
	}{
		{"alice", "/data/alice/x", true, true},
		{"bob", "/data/alice/x", true, false},
		{"mallory", "/data/alice/x", false, false},
		{"alice", "/data", true, false},
		{"bob", "/data", true, false},
		{"mallory", "/data", false, false},
		{"mallory", "/data/other", true, false},
		{"bob", "/only/x", true, false},
		{"mallory", "/only/x", false, false},
		{"mallory", "/only", false, false},
	} {
		for readOnly, want := range map[bool]bool{true: tt.read, false: tt.write} {
			_, err := AllowedFor(all, tt.namespace, tt.name, readOnly)
			if (err == nil) != want {
				t.Errorf("%s names %s, readOnly %t: %v", tt.namespace, tt.name, readOnly, err)
			}
			if err != nil && tt.namespace == "mallory" && strings.Contains(strings.TrimPrefix(err.Error(), tt.name), "alice") {
				t.Errorf("mallory is told %q", err)
			}
		}
	}
}

func TestParseAllowedHostPath(t *testing.T) {
	for text, want := range map[string]AllowedHostPath{
		"/data":          {Path: "/data"},
		"/data:rw":       {Path: "/data", Writable: true},
		"/data:a,b":      {Path: "/data", Namespaces: []string{"a", "b"}},
		"/data:rw:a,b":   {Path: "/data", Writable: true, Namespaces: []string{"a", "b"}},
		"/data:rw:a:b,c": {Path: "/data", Writable: true, Namespaces: []string{"a:b", "c"}}, // Validate refuses it
	} {
		if diff := cmp.Diff(want, ParseAllowedHostPath(text)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
	if err := (AllowedHostPath{Path: "/data", Namespaces: []string{"a:b"}}).Validate(); err == nil {
		t.Error("a namespace may have a colon")
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

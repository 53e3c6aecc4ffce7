// SPDX-License-Identifier: Apache-2.0

package features

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

const schemaText = `{"$defs": {"absolutePath": {"type": "string"}}, "properties": {
	"alone": {"type": "boolean"},
	"part": {"properties": {
		"enabled": {"type": "boolean"}, "deep": {"type": "boolean"}, "kind": {"enum": ["a", "b", true]}, "some": {"type": ["array", "null"],
		"items": {"enum": ["x"]}}, "count": {"type": "integer"}, "pullPolicy": {"enum": ["Always", "Never"]}}},
	"list": {"type": "array", "items": {"type": "string"}},
	"root": {"$ref": "#/$defs/absolutePath"}
}}`

// TestRead: every kind of value becomes features, with what they need, and a list or a directory without a sample is a fault.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"values.schema.json": schemaText, "values.yaml": "{alone: true, part: {kind: a, deep: true}}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Read(dir, map[string]any{"list": []string{"l"}, "root": "/r"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, f := range all {
		got[f.Name] = []map[string]any{f.Needs, f.Values}
	}
	type values = map[string]any
	on := values{"part": values{"enabled": true}}
	want := map[string]any{
		"list":            []values{{}, {"list": []string{"l"}}},
		"alone=false":     []values{{}, {"alone": false}},
		"part.enabled":    []values{{}, on},
		"part.deep=false": []values{on, {"part": values{"enabled": true, "deep": false}}},
		"part.kind=b":     []values{on, {"part": values{"enabled": true, "kind": "b"}}},
		"part.kind=true":  []values{on, {"part": values{"enabled": true, "kind": true}}},
		"part.some=x":     []values{on, {"part": values{"enabled": true, "some": []any{"x"}}}},
		"root":            []values{{}, {"root": "/r"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(values{"list": []string{"l"}, "root": "/r", "part": values{"enabled": true}}, All(all)); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	_, err = Read(dir, map[string]any{"list": nil, "gone": 1})
	for _, text := range []string{"root is a list or a directory without a sample", "gone has a sample"} {
		check.WantErr(t, err, nil, text)
	}
}

// TestPrograms: every container of every kind of workload is found, init containers too, and nothing else.
func TestPrograms(t *testing.T) {
	const pod = `{serviceAccountName: s, hostPID: true, volumes: [{name: v, hostPath: {path: /h}}],
		initContainers: [{name: i}], containers: [{name: c, volumeMounts: [{name: v, mountPath: /m}], securityContext: {privileged: true}}]}`
	var manifests strings.Builder
	for kind, spec := range map[string]string{
		"Pod": pod, "Job": "{template: {spec: " + pod + "}}", "DaemonSet": "{template: {spec: " + pod + "}}",
		"CronJob": "{jobTemplate: {spec: {template: {spec: " + pod + "}}}}", "Service": "{ports: []}",
	} {
		manifests.WriteString("---\nkind: " + kind + "\nmetadata: {labels: {app.kubernetes.io/component: " + kind + "}}\nspec: " + spec + "\n")
	}
	programs, err := Programs([]byte(manifests.String()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range programs {
		got = append(got, p.Kind+" "+p.Component+"/"+p.Container.Name)
	}
	want := []string{
		"CronJob CronJob/i", "CronJob CronJob/c", "DaemonSet DaemonSet/i", "DaemonSet DaemonSet/c", "Job Job/i", "Job Job/c",
		"Pod Pod/i", "Pod Pod/c",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("programs (-want +got):\n%s", diff)
	}
	rights := []string{
		"account s, token default", "mount /m rw of the host's /h", "privileged true, escalation default, read-only root default",
		"the host's processes", "user default, not root default, seccomp default",
	}
	if diff := cmp.Diff(rights, programs[1].Rights()); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}

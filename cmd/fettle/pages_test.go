// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPageIsExact: the page comes out of the command as the package made it, since its policy has the hash of its style sheet.
func TestPageIsExact(t *testing.T) {
	const slices = `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: a}, spec: {driver: gpu.example.com, nodeName: n1,
  pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0, attributes: {productName: {string: "Größe · 80 GB"}}}]}}`
	file := filepath.Join(t.TempDir(), "slices.yaml")
	const node = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}}\n"
	check.Must(t, os.WriteFile(file, []byte(slices+"\n"+node), 0o600))
	status, got, stderr := call(t, "plan", "-f", file, "-o", "html")
	if status != 0 {
		t.Fatalf("exit status %d, %s", status, stderr)
	}
	snapshot, _, err := readSnapshot([]string{file}, "default")
	check.Must(t, err)
	cluster, _, err := plan.NewCluster(snapshot)
	check.Must(t, err)
	var want bytes.Buffer
	check.Must(t, page.Write(&want, planPage(cluster, nil, plan.Report{})))
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("the page (-made +printed):\n%s", diff)
	}
}

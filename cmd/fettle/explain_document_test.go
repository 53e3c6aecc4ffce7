// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// TestExplainDocument explains the pod that the page about explanations begins with, and compares what is printed with the page.
func TestExplainDocument(t *testing.T) {
	page, examples := examplesOf(t, "explain.md")
	const command = "fettle explain pod train -f cluster.yaml -f pod.yaml -v"
	printed := regexp.MustCompile("(?s)```\n\\$ " + command + "\n(.*?)```").FindStringSubmatch(page)
	if len(examples) != 2 || printed == nil {
		t.Fatalf("the page has %d examples and prints %q, want a cluster, a pod and its explanation", len(examples), printed)
	}
	dir := t.TempDir()
	cluster, pod := filepath.Join(dir, "cluster.yaml"), filepath.Join(dir, "pod.yaml")
	check.Must(t, os.WriteFile(cluster, []byte(examples[0]), 0o600))
	check.Must(t, os.WriteFile(pod, []byte(examples[1]), 0o600))
	status, stdout, stderr := call(t, "explain", "pod", "train", "-f", cluster, "-f", pod, "-v")
	if status != 0 || stderr != "" {
		t.Errorf("exit status %d, stderr %s", status, stderr)
	}
	if diff := cmp.Diff(printed[1], stdout); diff != "" {
		t.Errorf("explained (-page +got):\n%s", diff)
	}
}

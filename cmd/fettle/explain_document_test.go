// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExplainDocument explains the pod that the page about explanations begins with, and compares what is printed with the page.
func TestExplainDocument(t *testing.T) {
	const command = "fettle explain pod train -f cluster.yaml -f pod.yaml -v"
	page, _ := examplesOf(t, "explain.md")
	printed := regexp.MustCompile("(?s)```\n\\$ " + command + "\n(.*?)```").FindStringSubmatch(page)
	if printed == nil {
		t.Fatalf("the page does not show what %s prints", command)
	}
	cluster, pod := example(t, page, "explain/cluster.yaml"), example(t, page, "explain/pod.yaml")
	status, stdout, stderr := call(t, "explain", "pod", "train", "-f", cluster, "-f", pod, "-v")
	if status != 0 || stderr != "" {
		t.Errorf("exit status %d, stderr %s", status, stderr)
	}
	if diff := cmp.Diff(printed[1], stdout); diff != "" {
		t.Errorf("explained (-page +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlanDocument plans the cluster and the pods that the page about planning begins with, and compares the plan with the page's.
func TestPlanDocument(t *testing.T) {
	page, _ := examplesOf(t, "planning.md")
	printed := regexp.MustCompile("(?s)```\n\\$ fettle plan -f cluster.yaml -f pods.yaml\n(.*?)```").FindStringSubmatch(page)
	if printed == nil {
		t.Fatal("the page shows no plan")
	}
	cluster, pods := example(t, page, "plan/cluster.yaml"), example(t, page, "plan/pods.yaml")
	status, stdout, stderr := call(t, "plan", "-f", cluster, "-f", pods)
	if status != 0 || stderr != "" {
		t.Errorf("exit status %d, stderr %s", status, stderr)
	}
	if diff := cmp.Diff(printed[1], stdout); diff != "" {
		t.Errorf("planned (-page +got):\n%s", diff)
	}
	for line := range strings.Lines(page) {
		command, _, _ := strings.Cut(strings.TrimSpace(line), "#")
		if !strings.HasPrefix(command, "fettle plan -f cluster.yaml -f pods.yaml --") {
			continue
		}
		args := strings.Fields(strings.NewReplacer("cluster.yaml", cluster, "pods.yaml", pods).Replace(command))
		if status, _, stderr := call(t, args[1:]...); status != 0 {
			t.Errorf("%s: exit status %d, %s", command, status, stderr)
		}
	}
}

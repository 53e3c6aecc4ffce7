// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/vm/internal/guest"
	"github.com/fettle-dev/fettle/test/vm/internal/kernel"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "want a command"},
		{[]string{"boot"}, exitUsage, `unknown command ["boot"]`},
		{[]string{"run"}, exitUsage, "run needs a program"},
		{[]string{"run", "-memory", "much", "--", "true"}, exitUsage, "invalid value"},
		{[]string{"run", "-help"}, 0, "memory in MiB"},
		{[]string{"help"}, 0, "Usage: vm check"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), tt.args, &out, &out); code != tt.code || !strings.Contains(out.String(), tt.want) {
			t.Errorf("vm %q: exit status %d, want %d with %q:\n%s", tt.args, code, tt.code, tt.want, out.String())
		}
	}
}

func TestJob(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("FETTLE_CACHE", "/repository/.cache")
	t.Setenv("GIVEN", "from here")
	args := []string{"-cluster", "-env", "GIVEN", "-env", "OWN=a=b", "-env", "PATH=/opt/bin", "--", "sh", "-c", "true"}
	o, err := parse(args, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := o.job(kernel.Kernel{Dir: "/kernel", Release: "6"})
	if err != nil {
		t.Fatal(err)
	}
	want := guest.Job{
		Args: []string{"sh", "-c", "true"}, Dir: dir, Cache: "/repository/.cache",
		Modules: "/kernel/lib/modules", Load: append(deviceModules(), clusterModules()...),
		Env:     []string{"HOME=/root", "TMPDIR=/var/tmp", "GIVEN=from here", "OWN=a=b", "PATH=/opt/bin"},
		Results: []string{"/repository/.cache/demo-failed", "/repository/.cache/e2e-failed"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// TestOtherKernel: only kubelet sees another release, and only until the node is given its own again.
func TestOtherKernel(t *testing.T) {
	n := plan.Node{Dirs: plan.Dirs{Config: t.TempDir()}}
	release := func(component string) string {
		t.Helper()
		args, err := UnderKernel(n, component, []string{"uname", "-r"})
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).Output()
		if err != nil {
			t.Fatal(args, err)
		}
		return strings.TrimSpace(string(out))
	}
	own := release(Kubelet)
	var got []string
	for _, other := range []bool{true, true, false, false} {
		if err := ChooseKernel(n, other); err != nil {
			t.Fatal(err)
		}
		if r := release(Containerd); r != own {
			t.Errorf("containerd has kernel %s, want %s", r, own)
		}
		got = append(got, release(Kubelet))
	}
	if got[0] == own || !strings.HasPrefix(got[0], "2.6.") || !slices.Equal(got, []string{got[0], got[0], own, own}) {
		t.Errorf("kubelet has kernels %q, and the machine %s", got, own)
	}
}

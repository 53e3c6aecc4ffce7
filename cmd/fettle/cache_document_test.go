// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/test/check"
)

// TestCacheDocument runs the commands of the document in their order, in a directory with a cache for AMD's GPUs and the tree of a host
// that has some, against a registry in the place of the example's. The image is signed as soon as it is in a directory.
func TestCacheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/user/cli.md")
	check.Must(t, err)
	machine, err := filepath.Abs("../../test/machines/8xmi300x.txtar")
	check.Must(t, err)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	t.Chdir(t.TempDir())
	check.Must(t, os.CopyFS("triton-cache", os.DirFS(cacheDir(t))))
	hip := `{"hash":"x","target":{"backend":"hip","arch":"gfx942","warp_size":64},"num_warps":4,"name":"add"}`
	check.Must(t, os.WriteFile("triton-cache/K1/add.json", []byte(hip), 0o600))
	check.Must(t, os.Rename("triton-cache/K1/add.cubin", "triton-cache/K1/add.hsaco"))
	check.Must(t, os.Mkdir("volume", 0o700))
	if status, _, stderr := call(t, "machine", "expand", machine, "host"); status != 0 {
		t.Fatal(stderr)
	}
	checkPolicy(t, string(text))
	var ran []string
	for _, command := range regexp.MustCompile(`(?m)^    \$ fettle (cache .*)$`).FindAllStringSubmatch(string(text), -1) {
		args := strings.Fields(strings.ReplaceAll(command[1], "registry.example", host))
		if strings.Contains(command[1], "registry.example") {
			args = append(args, "--plain-http")
		}
		if status, stdout, stderr := call(t, args...); status != 0 {
			t.Fatalf("$ fettle %s: status %d\n%s%s", command[1], status, stdout, stderr)
		}
		if !slices.Contains(ran, args[1]) {
			ran = append(ran, args[1])
		}
		if args[1] == "build" && strings.HasPrefix(args[4], "oci:") {
			signKernels(t, host)
		}
	}
	slices.Sort(ran)
	if want := "build check extract inspect push verify"; strings.Join(ran, " ") != want {
		t.Errorf("the document has %q, want %s", ran, want)
	}
}

// signKernels signs what is in the directory that the document makes, and writes the policy that believes it.
func signKernels(t *testing.T, host string) {
	t.Helper()
	l := layout.At("kernels")
	m, err := l.Tagged(t.Context(), "v1")
	check.Must(t, err)
	s := newSigner(t, l)
	s.v3(m.Digest, signPredicate)
	s.v2(m.Digest)
	policy, err := os.ReadFile(s.policy(host + "/team/*"))
	check.Must(t, err)
	check.Must(t, os.WriteFile("policy.yaml", policy, 0o600))
}

// checkPolicy compiles the document's policy.
func checkPolicy(t *testing.T, text string) {
	t.Helper()
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(text)
	if found == nil {
		t.Fatal("there is no policy in the document")
	}
	check.Must(t, os.WriteFile("example.yaml", []byte(found[1]), 0o600))
	if _, err := (&policyFlags{files: list{"example.yaml"}}).load(&access{}); err != nil {
		t.Error(err)
	}
}

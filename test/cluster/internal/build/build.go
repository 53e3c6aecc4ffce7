// SPDX-License-Identifier: Apache-2.0

// Package build compiles the binaries of a cluster from the pinned modules beside it, and installs the few Debian
// packages they need.
package build

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// KubernetesVersion must be the one in go.mod; without it the components would report v0.0.0.
const KubernetesVersion = "v1.37.1"

// A Builder compiles the binaries of the module in Source into Bin.
type Builder struct {
	Source string // directory of this module's go.mod
	Bin    string
	Out    io.Writer // progress
	// Nodes is whether nodes will run, which takes root. Without them runc is left out: it alone needs a C library that only
	// root can install.
	Nodes bool
}

// A step is one run of the go command.
type step struct {
	dir  string
	env  []string
	args []string
}

func (b Builder) steps() []step {
	version := "-s -w -X k8s.io/component-base/version.gitVersion=" + KubernetesVersion
	parts := strings.Split(strings.TrimPrefix(KubernetesVersion, "v"), ".")
	version += " -X k8s.io/component-base/version.gitMajor=" + parts[0]
	version += " -X k8s.io/component-base/version.gitMinor=" + parts[1]
	static := []string{"CGO_ENABLED=0"}
	steps := []step{
		// etcd's main package is called server; it gets its usual name.
		{b.Source, static, []string{
			"-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(b.Bin, "etcd"),
			"go.etcd.io/etcd/server/v3",
		}},
		{b.Source, static, append([]string{"-trimpath", "-ldflags", version, "-o", b.Bin + "/"}, packages()...)},
	}
	if b.Nodes {
		steps = append(steps, step{filepath.Join(b.Source, "runc"), []string{"CGO_ENABLED=1"}, []string{
			"-trimpath", "-tags", "seccomp",
			"-ldflags", "-s -w", "-o", b.Bin + "/", "github.com/opencontainers/runc",
		}})
	}
	return steps
}

func packages() []string {
	return []string{
		"github.com/containerd/containerd/v2/cmd/containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"github.com/containerd/containerd/v2/cmd/ctr",
		"k8s.io/kubernetes/cmd/kube-apiserver",
		"k8s.io/kubernetes/cmd/kube-controller-manager",
		"k8s.io/kubernetes/cmd/kube-scheduler",
		"k8s.io/kubernetes/cmd/kubectl",
		"k8s.io/kubernetes/cmd/kubelet",
	}
}

// Binaries are the names of what Build makes.
func Binaries() []string {
	names := []string{"etcd", "runc"}
	for _, p := range packages() {
		names = append(names, filepath.Base(p))
	}
	return names
}

// Missing lists binaries that are not in a directory.
func Missing(bin string) []string {
	var missing []string
	for _, n := range Binaries() {
		if _, err := os.Stat(filepath.Join(bin, n)); err != nil {
			missing = append(missing, n)
		}
	}
	return missing
}

func (b Builder) complete() bool {
	for _, name := range Missing(b.Bin) {
		if name != "runc" || b.Nodes {
			return false
		}
	}
	return true
}

// Build compiles everything unless the same was compiled before.
func (b Builder) Build() error {
	if b.Nodes {
		if err := installPackages(b.Out); err != nil {
			return err
		}
	}
	stamp := filepath.Join(b.Bin, ".built")
	want, err := b.fingerprint()
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want && b.complete() {
		fmt.Fprintf(b.Out, "binaries in %s are up to date\n", b.Bin)
		return nil
	}
	if err := os.MkdirAll(b.Bin, 0o755); err != nil {
		return fmt.Errorf("make directory for binaries: %w", err)
	}
	fmt.Fprintf(b.Out, "compiling Kubernetes %s into %s; the first time takes some ten minutes\n", KubernetesVersion, b.Bin)
	for _, s := range b.steps() {
		if err := s.run(b.Out); err != nil {
			return err
		}
	}
	if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
		return fmt.Errorf("note finished build: %w", err)
	}
	return nil
}

func (s step) run(out io.Writer) error {
	cmd := exec.Command("go", append([]string{"build"}, s.args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	cmd.Env = append(append(os.Environ(), "GOFLAGS="), s.env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile %s: %w", s.args[len(s.args)-1], err)
	}
	return nil
}

// fingerprint covers what decides the binaries: pinned modules, compiler, commands. The checkout decides nothing: another one may
// have a copy of them.
func (b Builder) fingerprint() (string, error) {
	h := sha256.New()
	for _, f := range []string{"go.mod", "go.sum", "runc/go.mod", "runc/go.sum"} {
		data, err := os.ReadFile(filepath.Join(b.Source, f))
		if err != nil {
			return "", fmt.Errorf("read pinned modules: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(data), data)
	}
	anywhere := strings.NewReplacer(b.Bin, "", b.Source, "")
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, anywhere.Replace(fmt.Sprint(b.steps())))
	return hex.EncodeToString(h.Sum(nil)), nil
}

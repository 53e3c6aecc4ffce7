// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fettle-dev/fettle/test/cluster/internal/build"
	"github.com/fettle-dev/fettle/test/cluster/internal/hostcheck"
	"github.com/fettle-dev/fettle/test/cluster/internal/image"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

const pods = `
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  containers: [{name: c, image: "fettle.dev/test/busybox:1", command: [sh, -c, "echo hello; sleep infinity"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: user-namespace}
spec:
  hostUsers: false
  containers: [{name: c, image: "fettle.dev/test/busybox:1", command: [sh, -c, "cat /proc/self/uid_map; sleep infinity"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: restricted}
spec:
  securityContext: {runAsUser: 1000, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: c
    image: fettle.dev/test/busybox:1
    command: [sh, -c, "id -u; touch /file 2>&1; sleep infinity"]
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// A rig is the program under test with its own state directory.
type rig struct {
	t                   *testing.T
	program, bin, state string
}

// newRig skips, or fails where CI=true, if this machine cannot run a cluster or its binaries are not built.
func newRig(t *testing.T) rig {
	t.Helper()
	missing := func(why string) {
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	if err := hostcheck.Run(); err != nil {
		missing("this machine cannot run a test cluster: " + err.Error())
	}
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	r := rig{t: t, program: filepath.Join(t.TempDir(), "cluster"), bin: filepath.Join(cache, "bin")}
	r.state = filepath.Join(t.TempDir(), "state")
	if m := build.Missing(r.bin); len(m) > 0 {
		missing("binaries are not built; run: cluster build")
	}
	if out, err := exec.Command("go", "build", "-o", r.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs()
		}
		_ = r.command("down").Run()
	})
	return r
}

func (r rig) showLogs() {
	files, _ := filepath.Glob(filepath.Join(r.state, "logs", "*.log"))
	for _, f := range files {
		r.t.Logf("%s ends:\n%s", f, proc.Tail(f, 25))
	}
}

func (r rig) command(command string, args ...string) *exec.Cmd {
	args = append([]string{command, "--state", r.state, "--bin", r.bin, "--name", "lifecycle"}, args...)
	return exec.Command(r.program, args...)
}

// do runs a subcommand that must succeed and returns what it prints.
func (r rig) do(command string, args ...string) string {
	r.t.Helper()
	var stderr bytes.Buffer
	cmd := r.command(command, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("cluster %s: %v\n%s%s", command, err, out, stderr.Bytes())
	}
	return string(out)
}

func (r rig) kubectl(input string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(r.bin, "kubectl"), append([]string{"--kubeconfig", r.state + "/kubeconfig"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestClusterLifecycle takes half a minute. Its parts build on each other.
func TestClusterLifecycle(t *testing.T) {
	r := newRig(t)
	t.Log(r.do("up", "--registry"))
	ok := t.Run("pods", func(t *testing.T) { r.with(t).checkPods() }) &&
		t.Run("directories", func(t *testing.T) { r.with(t).checkDirectories() }) &&
		t.Run("registry", func(t *testing.T) { r.with(t).checkRegistry() }) &&
		t.Run("faults", func(t *testing.T) { r.with(t).checkFaults() }) &&
		t.Run("renew", func(t *testing.T) { r.with(t).checkRenew() }) &&
		t.Run("half-dead", func(t *testing.T) { r.with(t).checkHalfDead() })
	if !ok {
		return
	}
	r.do("down")
	r.do("verify-clean")
}

func (r rig) with(t *testing.T) rig {
	r.t = t
	return r
}

func (r rig) checkPods() {
	r.kubectl(pods, "apply", "-f", "-")
	r.kubectl("", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	r.expect("log", r.kubectl("", "logs", "plain"), "hello\n")
	r.expect("exec", r.kubectl("", "exec", "plain", "--", "echo", "from", "inside"), "from inside\n")
	r.expect("API server by Service address",
		r.kubectl("", "exec", "plain", "--", "sh", "-c", "nc -w 5 10.96.0.1 443 </dev/null && echo open"), "open\n")
	r.expect("restricted pod", r.kubectl("", "logs", "restricted"), "1000\ntouch: /file: Read-only file system\n")
	if f := strings.Fields(r.kubectl("", "logs", "user-namespace")); len(f) != 3 || f[0] != "0" || f[1] == "0" {
		r.t.Errorf("user namespace maps %v, want 0 mapped to another ID", f)
	}
}

func (r rig) checkDirectories() {
	c, err := plan.Load(r.state)
	if err != nil {
		r.t.Fatal(err)
	}
	d := c.Nodes[0].Dirs
	for inNode, onHost := range map[string]string{
		"/opt/machine/probe": d.Machine, "/mnt/disks/probe": d.Disks, "/etc/cdi/probe": d.EtcCDI,
		"/var/run/cdi/probe": d.RunCDI, "/var/lib/fettle/probe": d.Fettle,
		"/var/local-path-provisioner/probe": d.LocalPath,
	} {
		if err := os.WriteFile(filepath.Join(onHost, "probe"), []byte("x"), 0o644); err != nil {
			r.t.Fatal(err)
		}
		r.expect(inNode, r.do("exec", "--node", "node1", "--", "cat", inNode), "x")
	}
}

// checkRegistry pushes from the host and pulls on the node.
func (r rig) checkRegistry() {
	c, err := plan.Load(r.state)
	if err != nil {
		r.t.Fatal(err)
	}
	tag, err := name.NewTag(image.BusyBox)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(c.File("base-images.tar"), &tag)
	if err != nil {
		r.t.Fatal(err)
	}
	ref, err := name.ParseReference(c.Registry + "/test/pulled:1")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		r.t.Fatal(err)
	}
	r.kubectl("", "run", "pulled", "--image="+ref.String(), "--command", "--", "sleep", "infinity")
	r.kubectl("", "wait", "--for=condition=Ready", "pod/pulled", "--timeout=60s")
	r.kubectl("", "delete", "pod", "pulled", "--now")
}

func (r rig) checkFaults() {
	before := r.kubectl("", "get", "pod", "plain", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	r.do("restart", "--node", "node1", "--component", "kubelet", "--kill")
	r.do("restart", "--node", "node1", "--component", "containerd")
	r.kubectl("", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	after := r.kubectl("", "get", "pod", "plain", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	r.expect("container after restarts", after, before)

	r.do("reboot", "--node", "node1")
	r.waitFor("a new container after the reboot", func() bool {
		return !strings.Contains(r.kubectl("", "get", "pod", "plain", "-o", "json"), `"restartCount": 0`)
	})
	r.kubectl("", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	r.expect("/run after reboot", r.do("exec", "--node", "node1", "--", "ls", "/var/run/cdi"), "")
	r.expect("/var/lib after reboot", r.do("exec", "--node", "node1", "--", "cat", "/var/lib/fettle/probe"), "x")
}

// checkRenew wants the pods of before to be gone, from the API and from the node, the API to be the older one, and pods to run.
func (r rig) checkRenew() {
	r.do("renew", "--emulate", "1.34")
	if version := r.kubectl("", "get", "--raw", "/version"); !strings.Contains(version, `"emulationMinor": "34"`) {
		r.t.Errorf("the API server's version is %s, want one that emulates 1.34", version)
	}
	r.expect("pods", r.kubectl("", "get", "pods", "-o", "name", "--ignore-not-found"), "")
	r.expect("/var/lib/fettle", r.do("exec", "--node", "node1", "--", "ls", "/var/lib/fettle"), "")
	r.expect("the machine", r.do("exec", "--node", "node1", "--", "cat", "/opt/machine/probe"), "x")
	r.checkPods()
}

// checkHalfDead kills a start half-way and expects the next one to work.
func (r rig) checkHalfDead() {
	cmd := r.command("up", "--nodes", "2")
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.waitFor("containerd of the half start", func() bool {
		c, err := plan.Load(r.state)
		if err != nil || len(c.Nodes) != 2 {
			return false
		}
		_, err = os.Stat(c.PIDFile("node2", "containerd"))
		return err == nil
	})
	if err := cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	_ = cmd.Wait() // "killed" is what we want
	r.t.Log(r.do("up", "--nodes", "2"))
	var nodes struct{ Items []json.RawMessage }
	if err := json.Unmarshal([]byte(r.kubectl("", "get", "nodes", "-o", "json")), &nodes); err != nil || len(nodes.Items) != 2 {
		r.t.Errorf("%d nodes, %v, want 2", len(nodes.Items), err)
	}
}

func (r rig) waitFor(what string, ready func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	for !ready() {
		select {
		case <-ctx.Done():
			r.t.Fatalf("no %s within a minute", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r rig) expect(what, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

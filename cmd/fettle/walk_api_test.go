// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestAPI follows docs/user/cli.md from a fresh clone to kubectl fettle with completion, for a real API server: it runs the document's
// blocks of shell as they stand, in one shell. The clone is of the working tree, and kubectl is the test cluster's.
func TestAPI(t *testing.T) {
	w := newWalk(t)
	out := w.bash(t, walkScript(t))
	for _, want := range []string{
		w.home + "/.local/bin/kubectl-fettle\n", // kubectl plugin list
		"\nfettle v",                            // kubectl fettle version
		"gpu-0  ",                               // kubectl fettle devices --cluster
		"Usage: kubectl fettle preset explain",  // kubectl fettle help preset explain
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in what the document prints:\n%s", want, out)
		}
	}

	t.Run("kubectl completes", func(t *testing.T) {
		for line, want := range map[string]string{
			"kubectl __complete fettle preset explain -n team-a ''":  "claim/train-gpu\npod/train\n",
			"kubectl __complete fettle preset explain -n team-a tra": "train-gpu\n",
			"kubectl __complete fettle devices --cluster --node ''":  "node-1\n",
			"kubectl __complete fettle bitstream ls --namespace te":  "team-a\n",
			"kubectl __complete fettle devices --context ''":         "walk\n",
			"kubectl __complete fettle devi":                         "devices\t",
		} {
			if got := w.bash(t, line); !strings.Contains("\n"+got, "\n"+want) {
				t.Errorf("%s: got\n%swant %q", line, got, want)
			}
		}
	})

	// Each shell loads the installed script and completes the same line.
	for shell, script := range map[string]string{
		"bash": `
source /usr/share/bash-completion/bash_completion
source "$HOME/.local/share/bash-completion/completions/fettle"
COMP_LINE='fettle preset explain -n team-a cl' COMP_POINT=34 COMP_TYPE=9 COMP_KEY=9
COMP_WORDS=(fettle preset explain -n team-a cl) COMP_CWORD=5
__start_fettle 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`,
		"fish": `
source "$HOME/.local/share/fish/vendor_completions.d/fettle.fish"
complete -C 'fettle preset explain -n team-a cl'`,
		// What the script hands to zsh's own function is printed: the line editor needs a terminal.
		"zsh": `
fpath=("$HOME/.local/share/zsh/site-functions" $fpath)
autoload -U compinit && compinit -u -d "$HOME/.zcompdump"
_describe() { print -rl -- $completions }
words=(fettle preset explain -n team-a cl) CURRENT=6
autoload +X _fettle && _fettle 2>/dev/null
_fettle`,
	} {
		t.Run(shell, func(t *testing.T) {
			program, err := exec.LookPath(shell)
			if _, absent := os.Stat("/usr/share/bash-completion/bash_completion"); shell == "bash" && err == nil {
				err = absent
			}
			if err != nil {
				lacking(t, err.Error())
			}
			if got := w.run(t, program, "-c", script); !strings.Contains("\n"+got, "\nclaim/train-gpu") {
				t.Errorf("got\n%s\nwant claim/train-gpu", got)
			}
		})
	}

	t.Run("watch", func(t *testing.T) { w.watches(t) })
	t.Run("explain", func(t *testing.T) {
		got := w.bash(t, "kubectl fettle preset explain train-gpu -n team-a; kubectl fettle -n team-a preset explain pod/train")
		if n := strings.Count(got, "claim team-a/train-gpu, which pods may share\n"); n != 2 {
			t.Errorf("got\n%swant the claim twice", got)
		}
	})
	t.Run("stack plan", func(t *testing.T) { w.plansStacks(t) })
}

// plansStacks reads a stack of a cluster without KMM, and tries a change of it.
func (w *walk) plansStacks(t *testing.T) {
	const objects = `
cat > stack.yaml <<'END'
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: h100}
spec:
  driver:
    engine: DaemonSet
    daemonSet: {repository: registry.example/driver, tag: "${KERNEL}", version: "1", privileged: true}
END
kubectl apply -f stack.yaml -f - >&2 <<'END'
apiVersion: v1
kind: Node
metadata: {name: node-1}
---
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorNode
metadata: {name: node-1}
END
`
	for script, want := range map[string]string{
		objects + "kubectl fettle stack plan": "-     node-1  Current  DriverPending  -     -   -\n",
		objects + "sed 's/engine: DaemonSet/engine: Host/; /daemonSet:/d' stack.yaml | kubectl fettle stack plan --from-cluster -f -": "" +
			"stack h100, engine Host: changes no driver\n",
		objects + "kubectl __complete fettle stack plan --stack ''": "h100\n",
	} {
		if got := w.bash(t, script); !strings.Contains(got, want) {
			t.Errorf("%s: got\n%swant %q", script[len(objects):], got, want)
		}
	}
}

// watches follows bitstreams and a claim that comes later.
func (w *walk) watches(t *testing.T) {
	t.Helper()
	begin := func(args ...string) (soFar func() string, end func() int) {
		ctx, stop := context.WithCancel(t.Context())
		var out check.Buffer
		status := make(chan int)
		go func() {
			status <- run(ctx, append([]string{"--kubeconfig", filepath.Join(w.home, "kubeconfig"), "-n", "team-a"}, args...), &out, &out)
		}()
		return out.String, func() int { stop(); return <-status }
	}
	apply := func(text string) {
		w.bash(t, "kubectl apply -f - <<'EOF'\n"+text+"\nEOF\n")
	}
	sees := func(soFar func() string, want string) {
		t.Helper()
		apitest.Eventually(t, func() string {
			if got := soFar(); !strings.Contains(got, want) {
				return fmt.Sprintf("got %q, want %q in it", got, want)
			}
			return ""
		})
	}
	listed, endList := begin("bitstream", "ls", "--watch")
	explained, endExplain := begin("preset", "explain", "later", "-w")
	sees(listed, "no bitstreams\n")
	sees(explained, "waiting: preset explain: there is neither a claim nor a pod later in namespace team-a\n")
	apply("{apiVersion: fettle.dev/v1alpha1, kind: FPGABitstream, metadata: {name: nlb0, namespace: team-a}, " +
		"spec: {image: 'registry.example/team-a/nlb0:v1'}}")
	sees(listed, "FPGABitstream  team-a     nlb0")
	apply("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: later, namespace: team-a}, " +
		"spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.fettle.dev}}]}}}")
	sees(explained, "waiting: preset explain: claim team-a/later: is not allocated")
	w.bash(t, `kubectl patch resourceclaim later -n team-a --subresource=status --type=merge -p '`+
		`{"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":"fettle.dev","pool":"node-1/gpu","device":"gpu-0"}]}}}}'`)
	sees(explained, "claim team-a/later, which pods may share\n")
	for _, end := range []func() int{endList, endExplain} {
		if status := end(); status != 0 {
			t.Errorf("an interrupted watch ends with %d, want 0", status)
		}
	}
}

// walkScript is the blocks of shell of the document.
func walkScript(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(manual)
	check.Must(t, err)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 4 {
		t.Fatalf("%s has %d blocks of shell, want install, use, and completion of two commands", manual, len(blocks))
	}
	var script strings.Builder
	for _, block := range blocks {
		script.WriteString(block[1])
	}
	return script.String()
}

// walk is a user's home, with a cluster and a place to clone from.
type walk struct {
	home string
	env  []string
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	tools, err := filepath.Abs("../../.cache/bin")
	check.Must(t, err)
	if cache := os.Getenv("FETTLE_CACHE"); cache != "" {
		tools = filepath.Join(cache, "bin")
	}
	if _, err := os.Stat(filepath.Join(tools, "kubectl")); err != nil {
		lacking(t, err.Error())
	}
	config := apitest.Start(t, nil)
	w := &walk{home: t.TempDir()}
	kubeconfig := filepath.Join(w.home, "kubeconfig")
	check.Must(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"walk": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"walk": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
		Contexts: map[string]*clientcmdapi.Context{"walk": {Cluster: "walk", AuthInfo: "walk"}}, CurrentContext: "walk",
	}, kubeconfig))
	w.env = append(os.Environ(), "HOME="+w.home, "KUBECONFIG="+kubeconfig, "PATH="+w.home+"/.local/bin:"+tools+":"+withoutFettle(),
		// The document's address is that of the working tree.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+repositoryOf(t)+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/fettle-dev/fettle",
		// A make that runs this test has nothing to say to the user's.
		"MAKEFLAGS=", "MFLAGS=", "MAKELEVEL=", "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "FETTLE_VERSION=")
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		check.Must(t, err)
		w.env = append(w.env, name+"="+strings.TrimSpace(string(value)))
	}
	fill(t, config)
	return w
}

// withoutFettle is the PATH without the directories that have a program of this test, or that are not there.
func withoutFettle() string {
	dirs := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool {
		_, ours := os.Stat(filepath.Join(dir, "kubectl-fettle"))
		_, missing := os.Stat(dir)
		return ours == nil || missing != nil
	})
	return strings.Join(dirs, ":")
}

func (w *walk) bash(t *testing.T, script string) string {
	t.Helper()
	return w.run(t, "bash", "-euo", "pipefail", "-c", script)
}

// run runs a program in the user's home and returns what it prints.
func (w *walk) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir, command.Env = w.home, w.env
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s%s", program, args, err, &out, &errs)
	}
	return out.String()
}

// repositoryOf makes a repository of the working tree's files as they are, committed or not.
func repositoryOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	names, err := list.Output()
	check.Must(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // deleted and not committed
		}
		check.Must(t, err)
		info, err := os.Stat(filepath.Join("../..", name))
		check.Must(t, err)
		check.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		check.Must(t, os.WriteFile(filepath.Join(dir, name), data, info.Mode().Perm()))
	}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=walk", "-c", "user.email=walk@fettle.dev", "commit", "-q", "-m", "as it is"},
	} {
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir = dir
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	return dir
}

// fill makes what a cluster with Fettle has: its kinds, a device, and a pod with a claim.
func fill(t *testing.T, config *rest.Config) {
	t.Helper()
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{"../../deployments/crds"}, ErrorIfPathMissing: true})
	check.Must(t, err)
	kube, err := kubernetes.NewForConfig(config)
	check.Must(t, err)
	const team = "team-a"
	create := metav1.CreateOptions{}
	_, err = kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}, create)
	check.Must(t, err)
	_, err = kube.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1-gpu"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "fettle.dev", NodeName: new("node-1"), Pool: resourceapi.ResourcePool{Name: "node-1/gpu", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0"}},
		},
	}, create)
	check.Must(t, err)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "train-gpu", Namespace: team}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{objects.Request("gpu", "gpu.fettle.dev")}
	claim, err = kube.ResourceV1().ResourceClaims(team).Create(t.Context(), claim, create)
	check.Must(t, err)
	claim.Status.Allocation = objects.Allocation(objects.Result("gpu", "fettle.dev", "node-1/gpu", "gpu-0"))
	_, err = kube.ResourceV1().ResourceClaims(team).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	check.Must(t, err)
	_, err = kube.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("train-gpu")}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/train:1",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}, create)
	check.Must(t, err)
}

// lacking skips what this machine cannot run; CI must be able to.
func lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

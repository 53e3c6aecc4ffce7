// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/apitest"
)

var (
	seedFlag     = flag.Uint64("chaos.seed", 0, "what the plan is made from; 0: another at each run")
	minutesFlag  = flag.Int("chaos.minutes", 0, "begin another round until so many minutes are over; 0: one round")
	preparesFlag = flag.Int("chaos.prepares", 0, "claims to prepare in a round, with as many faults as befit; 0: a short round")
	withoutFlag  = flag.String("chaos.without", "", "kinds of faults to leave out, with commas, such as hang,wipe")
	binaryFlag   = flag.String("chaos.binary", "", "the plugin's binary; empty: built from this repository")
	limitFlag    = flag.Duration("chaos.limit", 10*time.Minute, "how long a round may take")
	keepFlag     = flag.Bool("chaos.keep", false, "leave the plugins' logs, their state and a trace of everything behind")
)

// TestAPI needs root, for device nodes and for a disk that hangs.
func TestAPI(t *testing.T) {
	if os.Geteuid() != 0 {
		lacking(t, "not root: device nodes and a disk that hangs cannot be made")
	}
	config := apitest.Start(t, nil)
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{"../../deployments/crds"}, ErrorIfPathMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.cancel = cancel
	if r.api, err = newAPI(ctx, config, r.dir); err != nil {
		t.Fatal(err)
	}
	if err := r.start(ctx, pluginBinary(t, r.dir)); err != nil {
		t.Fatal(r.why(err))
	}
	defer r.fleet.shutDown()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	amount := short()
	if *preparesFlag > 0 {
		amount = standard().times(*preparesFlag)
	}
	begin := time.Now()
	for round := uint64(0); round == 0 || time.Since(begin) < time.Duration(*minutesFlag)*time.Minute; round++ {
		r.round(t, ctx, makePlan(seed+round, amount).without(strings.Split(*withoutFlag, ",")), int(round))
		if t.Failed() {
			return
		}
	}
}

// lacking skips where a machine cannot run the test, which continuous integration must.
func lacking(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// newRun makes the directories and the machine.
func newRun(t *testing.T) *run {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos") //nolint:usetesting // the test's own directory is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	r := &run{
		dir: dir, root: filepath.Join(dir, "host"), cdi: filepath.Join(dir, "cdi"), trace: &trace{begin: time.Now()}, ledger: newLedger(),
		kubelet: newKubeletState(dir), done: map[faultKind]int{}, counts: map[class]int{}, cancel: func() {},
	}
	r.specs.dir = r.cdi
	t.Cleanup(func() { r.cleanUp(t) })
	for _, name := range []string{"r", "log", "cdi", "host", stateDisk} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if *keepFlag {
		if r.trace.file, err = os.Create(filepath.Join(dir, "trace")); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.boot(firstNumbering()); err != nil {
		t.Fatal(err)
	}
	disk, err := mountSmall(t.Context(), filepath.Join(dir, stateDisk+".img"), filepath.Join(dir, stateDisk))
	if err != nil {
		lacking(t, fmt.Sprintf("no disk that gets full can be made: %v", err))
	}
	r.mounted = append(r.mounted, disk)
	for i := range slowCount {
		disk, err := mountSlow(t.Context(), dir, r.root, i)
		if err != nil {
			lacking(t, fmt.Sprintf("no disk that hangs can be made: %v", err))
		}
		r.slow, r.mounted = append(r.slow, disk), append(r.mounted, disk)
	}
	return r
}

// cleanUp leaves nothing behind but what was asked for.
func (r *run) cleanUp(t *testing.T) {
	t.Helper()
	if pid, err := child("kube-apiserver"); err == nil {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	for _, disk := range r.mounted {
		if err := disk.unmount(); err != nil {
			t.Error(err)
		}
	}
	if *keepFlag {
		t.Logf("logs, state and trace are in %s", r.dir)
		return
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Error(err)
	}
}

// pluginBinary is the plugin as an image has it.
func pluginBinary(t *testing.T, dir string) string {
	t.Helper()
	if *binaryFlag != "" {
		return *binaryFlag
	}
	binary := filepath.Join(dir, "fettle-kubeletplugin")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "../../cmd/fettle-kubeletplugin")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	return binary
}

// round runs a plan and fails the test with what it found.
func (r *run) round(t *testing.T, ctx context.Context, p plan, number int) {
	t.Helper()
	begin := time.Now()
	t.Logf("seed %d: %d pods, %d faults; again with -chaos.seed=%d", p.seed, len(p.pods), len(p.faults), p.seed)
	limited, cancel := context.WithTimeoutCause(ctx, *limitFlag, fmt.Errorf("a round takes longer than %s", *limitFlag))
	defer cancel()
	r.begin(p, cancel)
	err := r.play(limited, number)
	if err == nil {
		err = r.finish(limited, number)
	}
	if cause := context.Cause(limited); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	t.Log(r.summary(time.Since(begin)))
	for _, text := range r.violations {
		t.Error(text)
	}
	if err := errors.Join(append(r.errs, err)...); err != nil && len(r.violations) == 0 {
		t.Errorf("the round was not finished: %v", err)
	}
	if done := int(r.prepares.Load()); err == nil && done < p.prepares {
		t.Errorf("%d claims were prepared, %d were planned", done, p.prepares)
	}
}

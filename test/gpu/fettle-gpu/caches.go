// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed" // of the kernels
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/test/treesum"
)

// tritonKernels is the Python program that calls kernels of Triton.
//
//go:embed triton_kernel.py
var tritonKernels []byte

// The kernels that the program calls.
const (
	pairOfKernels = "pair"
	otherKernel   = "other"
)

// kernelRepository is the repository that the images of this part are taken to be of.
const kernelRepository = "registry.example/team/kernels"

// kernelCaches is the part's state.
type kernelCaches struct {
	*site
	f *findings
	// dir is scratch, and script the Python program in it.
	dir, script string
	// machine are the flags of fettle cache check that say which machine it looks at.
	machine []string

	// cold is the directory in which Triton compiled, files what it had then, and first what the program said.
	cold  string
	files map[string]string
	first kernelRun
	// layout is the image's OCI layout, and built what fettle cache build said of it.
	layout string
	built  builtCache
}

// kernelRun is what the Python program prints.
type kernelRun struct {
	Impossible string  `json:"impossible,omitempty"`
	Import     float64 `json:"import"`
	Start      float64 `json:"start"`
	First      float64 `json:"first"`
	Second     float64 `json:"second"`
	Right      bool    `json:"right"`
	// Compiled and Found count kernels. Nil: this version of Triton does not tell.
	Compiled   *int   `json:"compiled"`
	Found      *int   `json:"found"`
	Triton     string `json:"triton"`
	Torch      string `json:"torch"`
	Device     string `json:"device"`
	Capability string `json:"capability"`
}

// builtCache is what fettle cache build prints.
type builtCache struct {
	Digest artifact.Digest  `json:"digest"`
	Size   int64            `json:"size"`
	Type   kernelcache.Type `json:"type"`
	Files  int              `json:"files"`
	Bytes  int64            `json:"bytes"`
	Notes  []string         `json:"notes,omitempty"`
}

// caches compiles kernels with Triton, packs, signs, verifies and extracts the cache with the shipped CLI, mounts it as the kubelet plugin
// does, and runs Triton with the mount.
func (s *site) caches(ctx context.Context, f *findings) error {
	k := &kernelCaches{site: s, f: f, machine: []string{"--nvml", s.program("fettle-nvml")}}
	return k.run(ctx)
}

func (k *kernelCaches) run(ctx context.Context) error {
	k.dir = filepath.Join(k.work, "caches")
	k.script = filepath.Join(k.dir, "triton_kernel.py")
	k.cold = filepath.Join(k.dir, "cold")
	k.layout = filepath.Join(k.dir, "layout")
	for _, dir := range []string{k.cold, filepath.Join(k.dir, "tmp")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(k.script, tritonKernels, 0o644); err != nil {
		return err
	}
	if err := k.compile(ctx); err != nil {
		return err
	}
	if err := k.pack(ctx); err != nil {
		return err
	}
	k.f.check("fettle cache check: the cache fits this card", k.checkFits(ctx, k.layout))
	k.f.check("fettle cache check: a cache for sm_80 does not", k.foreign(ctx))
	policy, err := k.sign(ctx)
	if err != nil {
		return err
	}
	k.f.check("fettle cache extract: each file as it was packed", k.extract(ctx, policy))
	return k.mounted(ctx)
}

// compile runs the kernels with an empty cache. A failure here is none of Fettle's, so the part is then not possible.
func (k *kernelCaches) compile(ctx context.Context) error {
	if _, err := exec.LookPath("python3"); err != nil {
		return impossible("run Triton: %w", err)
	}
	r, err := k.python(ctx, pairOfKernels, "TRITON_CACHE_DIR="+k.cold)
	if err != nil {
		return impossible("run Triton without Fettle: %w", err)
	}
	k.first = r
	k.facts("cold", r)
	k.f.fact("triton", r.Triton)
	k.f.fact("torch", r.Torch)
	k.f.fact("card", r.Device)
	if k.files, err = filesOf(k.cold); err != nil {
		return err
	}
	k.f.fact("cold: files by ending", endings(k.files))
	if n := compiled(k.files); n == 0 || !r.Right {
		return impossible("run Triton without Fettle: right results: %t, kernels in TRITON_CACHE_DIR: %d", r.Right, n)
	}
	return nil
}

// facts notes the times and counts of a run.
func (k *kernelCaches) facts(name string, r kernelRun) {
	k.f.fact(name+": import, s", r.Import)
	k.f.fact(name+": start of CUDA, s", r.Start)
	k.f.fact(name+": first call, s", r.First)
	k.f.fact(name+": second call, s", r.Second)
	k.f.fact(name+": compiled, as Triton says", r.Compiled)
	k.f.fact(name+": found, as Triton says", r.Found)
}

// python runs the program. Nothing that it writes is outside of the scratch directory.
func (k *kernelCaches) python(ctx context.Context, kernels string, env ...string) (kernelRun, error) {
	env = append(env, "TRITON_HOME="+k.dir, "TMPDIR="+filepath.Join(k.dir, "tmp"), "CUDA_CACHE_PATH="+filepath.Join(k.dir, "cuda"),
		"PYTHONDONTWRITEBYTECODE=1")
	var r kernelRun
	out, err := k.output(ctx, env, "python3", k.script, kernels)
	if err != nil {
		return r, err
	}
	// A library may have printed something before.
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &r); err != nil {
		return r, fmt.Errorf("%s %s printed no JSON: %w: %s", k.script, kernels, err, tail(out))
	}
	if r.Impossible != "" {
		return r, errors.New(r.Impossible)
	}
	return r, nil
}

// output runs a program and returns what it printed on stdout. The error has the end of all that it printed.
func (k *kernelCaches) output(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	var out, complaints bytes.Buffer
	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Stdout, command.Stderr = k.dir, &out, &complaints
	command.Env = append(os.Environ(), env...)
	// Compilers that Triton started end with it.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	err := command.Run()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, tail(append(complaints.Bytes(), out.Bytes()...)))
	}
	return out.Bytes(), err
}

// fettle runs the CLI and reads its result, also where the exit status is 1.
func (k *kernelCaches) fettle(ctx context.Context, result any, args ...string) error {
	out, err := k.output(ctx, nil, k.program("fettle"), append(args, "-o", "json")...)
	if len(bytes.TrimSpace(out)) == 0 || result == nil {
		return err
	}
	if jsonErr := json.Unmarshal(out, result); jsonErr != nil {
		return errors.Join(err, fmt.Errorf("fettle %s: %w: %s", strings.Join(args, " "), jsonErr, tail(out)))
	}
	return err
}

// refused runs the CLI, which must end with status 1 and the words.
func (k *kernelCaches) refused(ctx context.Context, words string, args ...string) error {
	err := k.fettle(ctx, nil, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return fmt.Errorf("fettle %s accepted it, expected a refusal", strings.Join(args, " "))
	case !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(err.Error(), words):
		return fmt.Errorf("expected exit status 1 with %q, got %w", words, err)
	}
	return nil
}

// pack makes an image of the cache in an OCI layout, and compares what its files say with the card.
func (k *kernelCaches) pack(ctx context.Context) error {
	begin := time.Now()
	if err := k.fettle(ctx, &k.built, "cache", "build", k.cold, "-t", "oci:"+k.layout+":v1"); err != nil {
		return err
	}
	k.f.fact("build, s", time.Since(begin).Seconds())
	k.f.fact("cache: files", k.built.Files)
	k.f.fact("cache: bytes", k.built.Bytes)
	k.f.fact("cache: bytes of the layer", k.built.Size)
	if len(k.built.Notes) > 0 {
		k.f.fact("cache: notes of fettle cache build", k.built.Notes)
	}
	var err error
	if k.built.Type != kernelcache.Triton || k.built.Files != len(k.files) {
		err = fmt.Errorf("got type %s with %d files, expected Triton with %d", k.built.Type, k.built.Files, len(k.files))
	}
	k.f.check("fettle cache build: type and files of Triton's cache", err)
	k.f.check("fettle cache inspect: card, kernels and place of Triton's cache", k.inspect(ctx))
	return nil
}

// inspect compares what the image's files say with what Triton did.
func (k *kernelCaches) inspect(ctx context.Context) error {
	var found struct {
		Cache struct {
			Entries int                  `json:"entries"`
			Targets []kernelcache.Target `json:"targets"`
			Notes   []string             `json:"notes"`
		} `json:"cache"`
		Plan *kernelcache.Plan `json:"plan"`
	}
	if err := k.fettle(ctx, &found, "cache", "inspect", "oci:"+k.layout+":v1"); err != nil {
		return err
	}
	k.f.fact("cache: targets", found.Cache.Targets)
	if len(found.Cache.Notes) > 0 {
		k.f.fact("cache: notes of fettle cache inspect", found.Cache.Notes)
	}
	var errs []error
	if want := compiled(k.files); found.Cache.Entries != want {
		errs = append(errs, fmt.Errorf("got %d kernels, expected %d", found.Cache.Entries, want))
	}
	for _, t := range found.Cache.Targets {
		if t.Source == kernelcache.FromFiles && (t.Backend != kernelcache.CUDA || string(t.Arch) != k.first.Capability) {
			errs = append(errs, fmt.Errorf("%s says %s, torch says compute capability %s", t.Where, t, k.first.Capability))
		}
	}
	if !slices.ContainsFunc(found.Cache.Targets, func(t kernelcache.Target) bool { return t.Source == kernelcache.FromFiles }) {
		errs = append(errs, errors.New("the files say no target"))
	}
	want := kernelcache.Env{Name: "TRITON_CACHE_DIR", Value: k.cold}
	if found.Plan == nil || !slices.Contains(found.Plan.Env, want) {
		errs = append(errs, fmt.Errorf("got the plan %+v, expected %s=%s", found.Plan, want.Name, want.Value))
	}
	return errors.Join(errs...)
}

// cacheFit is a row of fettle cache check.
type cacheFit struct {
	Device  string               `json:"device"`
	Fits    bool                 `json:"fits"`
	Reasons []kernelcache.Reason `json:"reasons"`
}

// checkFits returns an error with the reasons of each card that the image of a layout does not fit.
func (k *kernelCaches) checkFits(ctx context.Context, layout string) error {
	fits, err := k.fits(ctx, layout)
	if err != nil {
		return err
	}
	for _, one := range fits {
		if !one.Fits {
			err = errors.Join(err, fmt.Errorf("%s: %v", one.Device, one.Reasons))
		}
	}
	return err
}

// fits asks whether the image of a layout fits the machine's cards. That it fits none is no error.
func (k *kernelCaches) fits(ctx context.Context, layout string) ([]cacheFit, error) {
	var fits []cacheFit
	err := k.fettle(ctx, &fits, append([]string{"cache", "check", "oci:" + layout + ":v1"}, k.machine...)...)
	var exit *exec.ExitError
	if len(fits) == 0 || err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return nil, errors.Join(err, fmt.Errorf("got %d devices", len(fits)))
	}
	if none := !slices.ContainsFunc(fits, func(one cacheFit) bool { return one.Fits }); none != (err != nil) {
		return nil, fmt.Errorf("got %+v with the exit status of %w", fits, err)
	}
	return fits, nil
}

// foreignArch is an architecture that an H100 does not have.
const foreignArch = "80"

// foreign packs the same files as if they were for another architecture, which must fit no card.
func (k *kernelCaches) foreign(ctx context.Context) error {
	if k.first.Capability == foreignArch {
		return impossible("the card is sm_%s", foreignArch)
	}
	dir, layout := filepath.Join(k.dir, "foreign"), filepath.Join(k.dir, "foreign-layout")
	if err := os.CopyFS(dir, os.DirFS(k.cold)); err != nil {
		return err
	}
	if err := retarget(dir); err != nil {
		return err
	}
	if err := k.fettle(ctx, nil, "cache", "build", dir, "-t", "oci:"+layout+":v1"); err != nil {
		return err
	}
	fits, err := k.fits(ctx, layout)
	if err != nil {
		return err
	}
	k.f.fact("a cache for sm_"+foreignArch, fits)
	for _, one := range fits {
		other := func(r kernelcache.Reason) bool { return r.Code == kernelcache.ReasonArchitecture }
		if one.Fits || !slices.ContainsFunc(one.Reasons, other) {
			err = errors.Join(err, fmt.Errorf("%s: fits: %t, reasons %v", one.Device, one.Fits, one.Reasons))
		}
	}
	return err
}

// retarget changes the architecture in the metadata of each kernel below a directory.
func retarget(dir string) error {
	changed := 0
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(name) != ".json" {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if data = retargeted(data); data == nil {
			return nil // It is of no kernel.
		}
		changed++
		return os.WriteFile(name, data, 0o644)
	})
	if err == nil && changed == 0 {
		err = fmt.Errorf("no file below %s names its target as Triton's do", dir)
	}
	return err
}

// retargeted returns the metadata of a kernel for another architecture, and nil for other JSON.
func retargeted(data []byte) []byte {
	var all, target map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil || json.Unmarshal(all["target"], &target) != nil {
		return nil
	}
	target["arch"] = json.RawMessage(foreignArch)
	text, err := json.Marshal(target)
	if err != nil {
		return nil
	}
	all["target"] = text
	if data, err = json.Marshal(all); err != nil {
		return nil
	}
	return data
}

// extract unpacks the image, which the policy allows. Each file must be as it was packed.
func (k *kernelCaches) extract(ctx context.Context, policy string) error {
	dir := filepath.Join(k.dir, "extracted")
	begin := time.Now()
	err := k.fettle(ctx, nil, "cache", "extract", "oci:"+k.layout+":v1", dir, "--as", kernelRepository, "--policy", policy)
	if err != nil {
		return err
	}
	k.f.fact("extract, s", time.Since(begin).Seconds())
	got, err := filesOf(dir)
	if err != nil {
		return err
	}
	return differences(got, k.files)
}

// filesOf returns the sum of each file below a directory.
func filesOf(dir string) (map[string]string, error) {
	all, err := treesum.Of(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range all {
		if _, sum, ok := strings.Cut(text, " "); ok {
			files[name] = sum
		}
	}
	return files, nil
}

// differences says which files are missing, changed or new.
func differences(got, want map[string]string) error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if sum, ok := got[name]; !ok {
			lines = append(lines, name+" is missing")
		} else if sum != want[name] {
			lines = append(lines, name+" has another content")
		}
	}
	for _, name := range added(got, want) {
		lines = append(lines, name+" is new")
	}
	if len(lines) == 0 {
		return nil
	}
	const most = 10
	return fmt.Errorf("%d of %d files differ: %s", len(lines), len(want), strings.Join(lines[:min(most, len(lines))], ", "))
}

// added are the files that were not there before.
func added(after, before map[string]string) []string {
	names := slices.Sorted(maps.Keys(after))
	return slices.DeleteFunc(names, func(name string) bool { _, ok := before[name]; return ok })
}

// compiled counts the kernels among files.
func compiled(files map[string]string) int { return endings(files)[".cubin"] }

// endings counts files by the last part of their names.
func endings(files map[string]string) map[string]int {
	counts := map[string]int{}
	for name := range files {
		counts[path.Ext(name)]++
	}
	return counts
}

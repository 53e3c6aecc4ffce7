// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// standIn takes the place of python3: it keeps a cache as Triton does, finds a kernel only by the paths in its group file, and prints what
// the Python program prints.
const standIn = `#!/bin/sh
compiled=0 found=0
test -w "$TRITON_CACHE_DIR" -o "$2" = pair || exit 3
case $2 in pair) names="add_kernel row_sum_kernel";; *) names=distance_kernel;; esac
for name in $names; do
	dir=$TRITON_CACHE_DIR/KEYOF$name
	group=$dir/__grp__$name.json
	if test -s "$dir/$name.cubin" && grep -q "\"$dir/$name.cubin\"" "$group"; then
		found=$((found + 1))
		continue
	fi
	compiled=$((compiled + 1))
	mkdir -p "$dir" || exit 4
	echo "code of $name" >"$dir/$name.cubin"
	printf '//\n.version 8.7\n.target sm_90a\n' >"$dir/$name.ptx"
	echo '{"hash": "12cc", "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "num_warps": 4, "name": "'$name'"}' >"$dir/$name.json"
	echo '{"child_paths": {"'$name.cubin'": "'$dir/$name.cubin'", "'$name.json'": "'$dir/$name.json'"}}' >"$group"
done
test -e "$TRITON_CACHE_DIR/LAUNCHER" || { mkdir "$TRITON_CACHE_DIR/LAUNCHER" && echo ELF >"$TRITON_CACHE_DIR/LAUNCHER/cuda_utils.so"; }
echo "a library prints this"
echo '{"import": 1.5, "start": 0.5, "first": '$((compiled + 1))'.25, "second": 0.125, "right": RIGHT, "compiled": '$compiled',' \
	'"found": '$found', "triton": "3.6.0", "torch": "2.11.0", "device": "H100", "capability": "90"}'
`

// cacheBundle is a bundle with the CLI, a fettle-nvml that prints a report of H100s, and the host tree of their machine.
type cacheBundle struct{ dir, host string }

func newCacheBundle(t *testing.T) cacheBundle {
	t.Helper()
	b := cacheBundle{dir: t.TempDir(), host: filepath.Join(t.TempDir(), "host")}
	s := &site{bundle: b.dir}
	report, err := os.ReadFile("../../../pkg/discover/testdata/8xh100-sxm.nvml.json")
	check.Must(t, err)
	script(t, s.program("fettle-nvml"), "#!/bin/sh\nexec tail -n +3 \"$0\"\n"+string(report)) // it reaches its own file and no other
	for _, args := range [][]string{
		{"go", "build", "-trimpath", "-buildvcs=false", "-o", s.program("fettle"), "../../../cmd/fettle"},
		{s.program("fettle"), "machine", "expand", "../../machines/8xh100-sxm.txtar", b.host},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return b
}

func script(t *testing.T, name, text string) {
	t.Helper()
	check.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(t, os.WriteFile(name, []byte(text), 0o755))
}

// with is the part where python3 is another program.
func (b cacheBundle) with(t *testing.T, python string) *kernelCaches {
	t.Helper()
	s := &site{bundle: b.dir, work: t.TempDir()}
	programs := t.TempDir()
	script(t, filepath.Join(programs, "python3"), python)
	t.Setenv("PATH", programs+":"+os.Getenv("PATH")) // the stand-in calls the machine's programs
	return &kernelCaches{site: s, f: &findings{}, machine: []string{"--nvml", s.program("fettle-nvml"), "--root", b.host}}
}

// verdicts are the names of the checks with this result.
func (f *findings) verdicts(result string) (out []string) {
	for _, v := range f.Checks {
		if v.Result == result {
			out = append(out, v.Name+prefixed(": ", v.Text))
		}
	}
	return out
}

// TestCaches goes all the way with a cache that a stand-in for Triton makes.
func TestCaches(t *testing.T) {
	b := newCacheBundle(t)
	t.Run("right", b.right)
	t.Run("lost", b.lost)
}

func (b cacheBundle) right(t *testing.T) {
	k := b.with(t, strings.Replace(standIn, "RIGHT", "true", 1))
	check.Must(t, k.run(t.Context()))
	if failed := k.f.verdicts("fails"); len(failed) > 0 {
		t.Errorf("failed:\n%s", strings.Join(failed, "\n"))
	}
	want := 21
	if os.Geteuid() != 0 {
		want = 9
	}
	if held := k.f.verdicts("holds"); len(held) != want {
		t.Errorf("%d checks held, want %d:\n%s\nnot possible: %v",
			len(held), want, strings.Join(held, "\n"), k.f.verdicts(errImpossible.Error()))
	}
	for _, name := range []string{"cold: first call, s", "cache: bytes of the layer", "build, s", "a cache for sm_80"} {
		if k.f.Facts[name] == nil {
			t.Errorf("no fact %q among %v", name, k.f.Facts)
		}
	}
	unmounted(t, k)
}

// lost is with a Triton that does not find the kernels of a cache that is mounted. It is noticed, and no mount remains.
func (b cacheBundle) lost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	forget := "found=0\ncase $TRITON_CACHE_DIR in */claim-*) rm -rf $TRITON_CACHE_DIR/KEY*;; esac"
	python := strings.Replace(strings.Replace(standIn, "RIGHT", "true", 1), "found=0", forget, 1)
	k := b.with(t, python)
	check.Must(t, k.run(t.Context()))
	failed := strings.Join(k.f.verdicts("fails"), "\n")
	for _, words := range []string{
		"Overlay: Triton finds each kernel: it compiled 0 kernels (by its own count: 2)", "Overlay: Triton writes nothing: 2 of 9",
		"Overlay: the first call is faster than cold: got 3.250 s",
	} {
		if !strings.Contains(failed, words) {
			t.Errorf("%q is not among what failed:\n%s", words, failed)
		}
	}
	unmounted(t, k)
}

// unmounted fails if a mount below the scratch directory remains.
func unmounted(t *testing.T, k *kernelCaches) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	check.Must(t, err)
	if n := strings.Count(string(table), k.work); n > 0 {
		t.Errorf("%d mounts remain below %s", n, k.work)
	}
}

// TestCachesImpossible: a machine without Triton is no failure.
func TestCachesImpossible(t *testing.T) {
	for name, python := range map[string]string{
		"no module": "#!/bin/sh\n" + `echo '{"impossible": "import torch and triton: ModuleNotFoundError"}'`,
		"broken":    "#!/bin/sh\necho Traceback >&2\nexit 1\n",
		"wrong":     strings.Replace(standIn, "RIGHT", "false", 1),
	} {
		k := cacheBundle{}.with(t, python)
		r := part{name: "caches", limit: time.Minute, do: func(_ *site, ctx context.Context, _ *findings) error { return k.run(ctx) }}.run(
			t.Context(), k.site)
		if !r.Impossible || r.failed() {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestCachesCancelled: a Triton that hangs is killed with what it started when the part's time is over.
func TestCachesCancelled(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	check.Must(t, syscall.Mkfifo(started, 0o600))
	k := cacheBundle{}.with(t, "#!/bin/sh\nsleep 1000 &\necho it hangs >&2\necho >"+started+"\nwait\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(started)
		cancel()
	}()
	if err := k.run(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "it hangs") {
		t.Error(err)
	}
}

// TestDifferences names what differs between two trees.
func TestDifferences(t *testing.T) {
	want := map[string]string{"a": "1", "b": "2", "c": "3"}
	if err := differences(want, want); err != nil {
		t.Error(err)
	}
	got := fmt.Sprint(differences(map[string]string{"a": "1", "b": "3", "d": "4"}, want))
	if got != "3 of 3 files differ: b has another content, c is missing, d is new" {
		t.Error(got)
	}
	if names := added(map[string]string{"a": "", "e": ""}, want); !slices.Equal(names, []string{"e"}) {
		t.Error(names)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// driverTree makes a driver of a version below a root, as its installer leaves it.
func driverTree(t *testing.T, root, version string) {
	t.Helper()
	write := func(name string, content []byte, mode os.FileMode) {
		t.Helper()
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, content, mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	const dir = "usr/lib64/"
	library := func(name, soname string) { write(dir+name, elffile.File{Soname: soname}.Bytes(), 0o755) }
	library("libcuda.so."+version, "libcuda.so.1")
	link("libcuda.so."+version, dir+"libcuda.so.1")
	link("libcuda.so.1", dir+"libcuda.so")
	library("libnvidia-ml.so."+version, "libnvidia-ml.so.1")
	link("libnvidia-ml.so."+version, dir+"libnvidia-ml.so.1")
	library("libnvidia-nvvm.so."+version, "libnvidia-nvvm.so.4") // has no link on the node
	library("vdpau/libvdpau_nvidia.so."+version, "libvdpau_nvidia.so.1")
	library("libother.so.1", "libother.so.1")
	write("usr/bin/nvidia-smi", elffile.File{}.Bytes(), 0o755)
	write("usr/bin/nvidia-persistenced", nil, 0o644) // is no program
	write("lib/firmware/nvidia/"+version+"/gsp_ga10x.bin", []byte("firmware"), 0o644)
	write("usr/share/glvnd/egl_vendor.d/10_nvidia.json", []byte("{}"), 0o644)
	if err := os.MkdirAll(filepath.Join(root, "run/nvidia-persistenced"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(root, "run/nvidia-persistenced/socket"), unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

// asChild makes the test's binary the program.
const asChild = "TEST_AS_FETTLE_NVML"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr, Load))
	}
	os.Exit(m.Run())
}

// TestConfinedDriver: the program finds the same when it reaches only what pkg/nvml lets it.
func TestConfinedDriver(t *testing.T) {
	const version = "550.54.15"
	root := t.TempDir()
	driverTree(t, root, version)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asChild, "1")
	prober := nvml.NewProber(nvml.Command{Path: self, DriverRoot: root, Timeout: time.Minute})
	got, err := prober.Driver(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got.Files, func(a, b nvml.DriverFile) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(got.Links, func(a, b nvml.DriverLink) int { return strings.Compare(a.Path, b.Path) })
	if diff := cmp.Diff(wantDriver(version), got); diff != "" {
		t.Errorf("driver (-want +got):\n%s", diff)
	}
}

// TestInitialisationRefused: why a library of another version than the kernel module, or one without the module, cannot be initialised is
// told by the exit status.
func TestInitialisationRefused(t *testing.T) {
	self, err := os.Executable()
	check.Must(t, err)
	t.Setenv(asChild, "1")
	for ret, want := range map[gonvml.Return]error{
		gonvml.ERROR_LIB_RM_VERSION_MISMATCH: nvml.ErrVersions, gonvml.ERROR_DRIVER_NOT_LOADED: nvml.ErrNotLoaded,
		gonvml.ERROR_NO_PERMISSION: nvml.ErrForbidden,
	} {
		root := t.TempDir()
		buildLibrary(t, root, fmt.Sprintf(refusing, ret))
		_, err := nvml.NewProber(nvml.Command{Path: self, DriverRoot: root, Timeout: time.Minute}).Query(t.Context())
		check.WantErr(t, err, want)
	}
}

// refusing is a library that cannot be initialised.
const refusing = `
int nvmlInit_v2(void) { return %d; }
const char *nvmlErrorString(int error) { return "refused"; }
`

// buildLibrary makes the library below a driver's root.
func buildLibrary(t *testing.T, root, source string, options ...string) {
	t.Helper()
	dir := filepath.Join(root, "usr/lib64")
	check.Must(t, os.MkdirAll(dir, 0o755))
	compile := exec.CommandContext(t.Context(), "cc", slices.Concat([]string{
		"-shared", "-fPIC", "-x", "c", "-", "-o",
		filepath.Join(dir, libraryName),
	}, options)...)
	compile.Stdin = strings.NewReader(source)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// taken is a library that tries to make a CDI spec as soon as it is initialised.
const taken = `
#include <fcntl.h>
int nvmlInit_v2(void) { return open(SPEC, O_CREAT | O_WRONLY, 0600) < 0 ? 4 : 9; }
const char *nvmlErrorString(int error) { return error == 4 ? "refused" : "written"; }
`

// TestTakenOverLibraryWritesNoSpec: the program loads a library from the driver's root, with the libraries that this one needs. What the
// library does, reaches nothing.
func TestTakenOverLibraryWritesNoSpec(t *testing.T) {
	root, spec := t.TempDir(), filepath.Join(t.TempDir(), "spec.json")
	buildLibrary(t, root, taken, "-DSPEC=\""+spec+"\"")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asChild, "1")
	_, err = nvml.NewProber(nvml.Command{Path: self, DriverRoot: root, Timeout: time.Minute}).Query(t.Context())
	if err == nil || !strings.Contains(err.Error(), ": refused") {
		t.Errorf("the library says %v, want that it could not write", err)
	}
	if _, err := os.Stat(spec); err == nil {
		t.Error("the library made a spec")
	}
}

// TestDriver: NVIDIA's list of a made-up driver, which is the same wherever the driver is installed.
func TestDriver(t *testing.T) {
	const version = "550.54.15"
	for name, args := range map[string][]string{"version of the files": nil, "version of the kernel": {"-version", version}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			driverTree(t, root, version)
			var stdout, stderr bytes.Buffer
			if code := Run(append([]string{"-driver-root", root, "driver"}, args...), &stdout, &stderr, Load); code != 0 {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			got, err := nvml.DecodeDriver(&stdout)
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(got.Files, func(a, b nvml.DriverFile) int { return strings.Compare(a.Path, b.Path) })
			slices.SortFunc(got.Links, func(a, b nvml.DriverLink) int { return strings.Compare(a.Path, b.Path) })
			if diff := cmp.Diff(wantDriver(version), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func wantDriver(version string) nvml.Driver {
	const lib = "/usr/lib64/"
	same := func(name string) nvml.DriverFile { return nvml.DriverFile{Path: name, ContainerPath: name} }
	return nvml.Driver{
		Version: version,
		Files: []nvml.DriverFile{
			same("/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin"),
			same("/run/nvidia-persistenced/socket"),
			same("/usr/bin/nvidia-smi"),
			same(lib + "libcuda.so." + version),
			same(lib + "libnvidia-ml.so." + version),
			same(lib + "libnvidia-nvvm.so." + version),
			same(lib + "vdpau/libvdpau_nvidia.so." + version),
			same("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
		},
		Links: []nvml.DriverLink{
			{Path: lib + "libcuda.so", Target: "libcuda.so.1"},
			{Path: lib + "libcuda.so.1", Target: "libcuda.so." + version},
			{Path: lib + "libnvidia-ml.so.1", Target: "libnvidia-ml.so." + version},
			{Path: lib + "libnvidia-nvvm.so.4", Target: "libnvidia-nvvm.so." + version},
			{Path: lib + "vdpau/libvdpau_nvidia.so.1", Target: "libvdpau_nvidia.so." + version},
		},
		LibraryDirs: []string{"/usr/lib64", "/usr/lib64/vdpau"},
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
	}
}

// TestNoDriver: what is not there, or does not fit the kernel, is told apart.
func TestNoDriver(t *testing.T) {
	installed := t.TempDir()
	driverTree(t, installed, "550.54.15")
	for name, tc := range map[string]struct {
		args []string
		want int
		says string
	}{
		"none":           {[]string{"-driver-root", t.TempDir(), "driver"}, nvml.ExitNoDriver, "no libcuda.so.VERSION below"},
		"no such root":   {[]string{"-driver-root", "/nowhere", "driver"}, nvml.ExitNoDriver, "/nowhere"},
		"another kernel": {[]string{"-driver-root", installed, "driver", "-version", "580.1.2"}, 1, "the kernel runs version 580.1.2"},
		"extra":          {[]string{"driver", "extra"}, 2, "unexpected argument"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := Run(tc.args, &stdout, &stderr, Load); got != tc.want || stdout.Len() > 0 || !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("exit %d, want %d; printed %q and %q, want %q", got, tc.want, &stdout, &stderr, tc.says)
			}
		})
	}
}

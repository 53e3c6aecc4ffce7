// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// driverWorld is a node with a driver, whose list is made of what is there.
type driverWorld struct {
	*presetWorld
	asked []string
	// extra is what the list names beside the libraries.
	extra []nvml.DriverFile
	now   time.Time
	// kernel is the version that the kernel runs.
	kernel string
}

func newDriverWorld(t *testing.T, change func(*v1alpha1.PresetDriver)) *driverWorld {
	t.Helper()
	w := &driverWorld{now: time.Now().Add(time.Hour)}
	w.presetWorld = newPresetWorld(t, clusterPreset("nvidia.fettle.dev", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Driver = &v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}
		change(s.Driver)
	}))
	w.files = &hostfiles.Finder{Root: w.root, Hook: func() (string, error) { return "/hooks/hook", nil }}
	w.files.Drivers = &hostfiles.Drivers{
		Host: "/", Ask: w.ask, Now: func() time.Time { return w.now }, Version: func() string { return w.kernel },
	}
	return w
}

// ask stands for the child: libraries are those that are there.
func (w *driverWorld) ask(_ context.Context, root, version string) (nvml.Driver, error) {
	w.asked = append(w.asked, strings.TrimPrefix(root, w.root)+" "+version)
	found, err := filepath.Glob(filepath.Join(root, "usr/lib64/libcuda.so.*.*"))
	if err != nil || len(found) == 0 {
		return nvml.Driver{}, errors.Join(nvml.ErrNoDriver, err)
	}
	d := nvml.Driver{LibraryDirs: []string{"/usr/lib64"}, Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, Files: w.extra}
	for _, name := range found {
		below := strings.TrimPrefix(name, strings.TrimSuffix(root, "/"))
		d.Version = strings.TrimPrefix(below, "/usr/lib64/libcuda.so.")
		d.Files = append(d.Files, nvml.DriverFile{Path: below, ContainerPath: below})
		d.Links = append(d.Links, nvml.DriverLink{Path: "/usr/lib64/libcuda.so.1", Target: filepath.Base(below)})
	}
	return d, nil
}

// library is the driver's, in a version.
func (w *driverWorld) library(root, version string) string {
	name := filepath.Join(root, "usr/lib64/libcuda.so."+version)
	w.file(name, elffile.File{Soname: "libcuda.so.1"}.Bytes(), 0o644)
	return filepath.Join(w.root, name)
}

// prepare is what a claim of one GPU gets.
func (w *driverWorld) prepare() (container.Edits, error) {
	given, err := w.plan(claimOfClass("u1", ofGPU("main", "gpu0")))
	return given.Edits["main"].Shared, err
}

func driverEdits(root, version string) container.Edits {
	const lib = "/usr/lib64/libcuda.so."
	return container.Edits{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []container.Mount{
			{HostPath: root + lib + version, ContainerPath: lib + version, ReadOnly: true, NonRecursive: true},
		},
		Hooks: []container.Hook{
			{Path: "/hooks/hook", Args: []string{"hook", "links", "--link", "libcuda.so." + version + "::" + lib + "1"}},
			{Path: "/hooks/hook", Args: []string{"hook", "ldconfig", "--dir", "/usr/lib64"}},
		},
	}
}

// TestVendorDriver: the driver's files are given by the paths of the host, wherever the plugin has them, and by a later boot's anew.
func TestVendorDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		root, host, seen, there string
		want, asked             string
	}{
		"of the host":                {there: "", want: "", asked: " "},
		"in a directory":             {root: "/run/driver", there: "run/driver", want: "/run/driver", asked: "/run/driver "},
		"as configured":              {host: "/run/driver", seen: "mine", there: "mine", want: "/run/driver", asked: "/mine "},
		"below what is configured":   {root: "/a/b", host: "/", seen: "mine", there: "mine/a/b", want: "/a/b", asked: "/mine/a/b "},
		"beside what is configured":  {root: "/run/d2", host: "/run/d", seen: "mine", there: "run/d2", want: "/run/d2", asked: "/run/d2 "},
		"configured and named again": {root: "/run/d", host: "/run/d", seen: "mine", there: "mine", want: "/run/d", asked: "/mine "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDriverWorld(t, func(d *v1alpha1.PresetDriver) { d.Root = tc.root })
			if tc.host != "" {
				w.files.Drivers.Host = tc.host
			}
			if tc.seen != "" {
				w.files.Drivers.Seen = filepath.Join(w.root, tc.seen)
			}
			w.library(tc.there, "550.1")
			got, err := w.prepare()
			check.Must(t, err)
			if diff := cmp.Diff(driverEdits(tc.want, "550.1"), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff([]string{tc.asked}, w.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDriverAgain: a driver that was replaced is a new answer, and one that was not is none.
func TestDriverAgain(t *testing.T) {
	w := newDriverWorld(t, func(*v1alpha1.PresetDriver) {})
	old := w.library("", "550.1")
	see := func(version string, asked int) {
		t.Helper()
		got, err := w.prepare()
		check.Must(t, err)
		if diff := cmp.Diff(driverEdits("", version), got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if len(w.asked) != asked {
			t.Errorf("asked %d times, want %d", len(w.asked), asked)
		}
	}
	see("550.1", 1)
	see("550.1", 1)
	check.Must(t, os.WriteFile(old+".new", elffile.File{Soname: "libcuda.so.1"}.Bytes(), 0o600))
	check.Must(t, os.Rename(old+".new", old))
	see("550.1", 2)
	before, err := os.Stat(old)
	check.Must(t, err)
	check.Must(t, os.WriteFile(old, elffile.File{Soname: "libcuda.so.2"}.Bytes(), 0o600)) // of the same size, and then of the same time
	check.Must(t, os.Chtimes(old, before.ModTime(), before.ModTime()))
	see("550.1", 3)
	check.Must(t, os.Remove(old))
	w.library("", "580.2")
	see("580.2", 4)
	see("580.2", 4)
	w.file("etc/ld.so.cache", []byte("x"), 0o644)
	see("580.2", 5)
	w.kernel = "580.2"
	see("580.2", 6)
	if last := w.asked[5]; !strings.HasSuffix(last, " 580.2") {
		t.Errorf("asked %q, want the kernel's version", last)
	}

	decision, err := json.Marshal(map[string]preset.Request{"main": {Request: "main", Drivers: []preset.Driver{{
		PresetDriver: v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}, From: preset.Origin{Name: "nvidia.fettle.dev"},
	}}}})
	check.Must(t, err)
	later, err := w.again(claimOfClass("u1"), decision)
	check.Must(t, err)
	if diff := cmp.Diff(driverEdits("", "580.2"), later.Edits["main"].Shared); diff != "" || len(w.asked) != 6 {
		t.Errorf("in a later boot, asked %d times (-want +got):\n%s", len(w.asked), diff)
	}
}

// TestDriverGrows: what an installation gets later, where it had nothing before, is in the next answer.
func TestDriverGrows(t *testing.T) {
	w := newDriverWorld(t, func(*v1alpha1.PresetDriver) {})
	w.library("", "550.1")
	check.Must(t, os.Mkdir(filepath.Join(w.root, "tmp"), 0o755), os.MkdirAll(filepath.Join(w.root, "usr/share/vulkan/icd.d"), 0o755))
	for i, later := range []string{
		"", "tmp/nvidia-mps/control", "usr/sbin/nvidia-persistenced", "lib/firmware/nvidia/550.1/gsp_ga10x.bin",
		"usr/share/vulkan/icd.d/nvidia_icd.json", "etc/vulkan/icd.d/nvidia_icd.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		"etc/OpenCL/vendors/nvidia.icd",
	} {
		if later != "" {
			w.file(later, nil, 0o644)
		}
		for range 2 {
			_, err := w.prepare()
			check.Must(t, err)
		}
		if len(w.asked) != i+1 {
			t.Fatalf("after %q was made it was asked %d times, want %d", later, len(w.asked), i+1)
		}
	}
}

// TestDriverUnsettled: what changed just now may have changed behind the answer, which is then not kept.
func TestDriverUnsettled(t *testing.T) {
	w := newDriverWorld(t, func(*v1alpha1.PresetDriver) {})
	w.library("", "550.1")
	w.now = time.Now()
	for range 2 {
		_, err := w.prepare()
		check.Must(t, err)
	}
	if len(w.asked) != 2 {
		t.Errorf("asked %d times, want 2", len(w.asked))
	}
}

// TestNoDriver: a driver that is not there keeps the claim, unless it is optional. One that is broken does so anyway.
func TestNoDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*driverWorld)
		root     string
		optional string // what is said nevertheless
		says     string
	}{
		"not installed": {func(*driverWorld) {}, "", "", "not installed"},
		"no directory":  {func(*driverWorld) {}, "/run/driver", "", "/run/driver is not on this node"},
		"file that is gone": {func(w *driverWorld) {
			w.library("", "550.1")
			w.extra = []nvml.DriverFile{{Path: "/usr/bin/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi"}}
		}, "", "/usr/bin/nvidia-smi", "gone"},
		"directory": {func(w *driverWorld) {
			w.library("", "550.1")
			w.extra = []nvml.DriverFile{{Path: "/usr", ContainerPath: "/x"}}
		}, "", "a directory", "a directory"},
		"link to a directory": {func(w *driverWorld) {
			w.library("", "550.1")
			check.Must(w.t, os.MkdirAll(filepath.Join(w.root, "tmp"), 0o755))
			check.Must(w.t, os.Symlink("/usr", filepath.Join(w.root, "tmp/link")))
			w.extra = []nvml.DriverFile{{Path: "/tmp/link", ContainerPath: "/tmp/link"}}
		}, "", "a directory", "a directory"},
		"unseen": {func(w *driverWorld) { w.files.Directories = []string{"/usr"} }, "/run/driver", "hostDirectories", "hostDirectories"},
		"crashed": {func(w *driverWorld) {
			w.files.Drivers.Ask = func(context.Context, string, string) (nvml.Driver, error) {
				return nvml.Driver{}, errors.New("crashed")
			}
		}, "", "crashed", "crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, optional := range []bool{false, true} {
				w := newDriverWorld(t, func(d *v1alpha1.PresetDriver) { d.Root, d.Optional = tc.root, optional })
				tc.change(w)
				got, err := w.prepare()
				want := tc.says
				if optional {
					want = tc.optional
				}
				if want == "" {
					if err != nil || !got.Empty() {
						t.Errorf("optional: got %+v, %v", got, err)
					}
					continue
				}
				if !errors.Is(err, errUnmet) || !strings.Contains(err.Error(), want) ||
					!strings.Contains(err.Error(), "ClusterDevicePreset nvidia.fettle.dev, driver of NVIDIA") {
					t.Errorf("optional %v: got %v, want %q", optional, err, want)
				}
			}
		})
	}
}

// TestDriverYields: what presets name themselves stays.
func TestDriverYields(t *testing.T) {
	w := newDriverWorld(t, func(*v1alpha1.PresetDriver) {})
	w.library("", "550.1")
	w.file("opt/libcuda", nil, 0o644)
	mine := container.Mount{HostPath: "/opt/libcuda", ContainerPath: "/usr/lib64/libcuda.so.550.1", ReadOnly: true, NonRecursive: true}
	made, err := w.files.Find("u1", preset.Request{
		Env: []preset.Variable{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all", From: []preset.Origin{{Name: "all"}}}},
		Mounts: []preset.Mount{{PresetMount: v1alpha1.PresetMount{
			HostPath: mine.HostPath, ContainerPath: mine.ContainerPath,
		}}},
		Drivers: []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}}},
	})
	check.Must(t, err)
	want := driverEdits("", "550.1")
	want.Env, want.Mounts = []string{"NVIDIA_VISIBLE_DEVICES=all"}, []container.Mount{mine}
	if diff := cmp.Diff(want, made.Shared); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestUnseen: what is optional and in no directory that the plugin sees is left out; the host's own root can be named.
func TestUnseen(t *testing.T) {
	w := newDriverWorld(t, func(*v1alpha1.PresetDriver) {})
	w.files.Directories = []string{"/usr"}
	w.library("", "550.1")
	mount := preset.Mount{PresetMount: v1alpha1.PresetMount{HostPath: "/opt/rocm", ContainerPath: "/rocm", Optional: true}}
	made, err := w.files.Find("u1", preset.Request{Mounts: []preset.Mount{mount}, Libraries: []preset.Files{{
		PresetFiles: v1alpha1.PresetFiles{Names: []string{"libcuda.so.*"}, Root: "/"},
	}}})
	check.Must(t, err)
	if len(made.Shared.Mounts) != 1 || made.Shared.Mounts[0].HostPath != "/usr/lib64/libcuda.so.550.1" {
		t.Errorf("got %+v, want the library alone", made.Shared.Mounts)
	}
	mount.Optional = false
	if _, err := w.files.Find("u1", preset.Request{Mounts: []preset.Mount{mount}}); err == nil {
		t.Error("what is not optional was left out")
	}
}

// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
)

func sampleDriver() nvml.Driver {
	return nvml.Driver{
		Version: "550.54.15",
		Files: []nvml.DriverFile{
			{Path: "/usr/lib64/libcuda.so.550.54.15", ContainerPath: "/usr/lib64/libcuda.so.550.54.15"},
			{Path: "/etc/vulkan/icd.d/nvidia_icd.json", ContainerPath: "/etc/vulkan/icd.d/nvidia_icd.json"},
		},
		Links:       []nvml.DriverLink{{Path: "/usr/lib64/libcuda.so.1", Target: "libcuda.so.550.54.15"}},
		LibraryDirs: []string{"/usr/lib64"},
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
	}
}

func TestProberDriver(t *testing.T) {
	c := command(t, "driver", time.Minute)
	c.DriverRoot = "/run/driver"
	for version, args := range map[string]string{
		"":          "-driver-root /run/driver driver",
		"550.54.15": "-driver-root /run/driver driver -version 550.54.15",
	} {
		want := sampleDriver()
		want.Env = []string{"ARGS=" + args}
		got, err := nvml.NewProber(c).Driver(t.Context(), version)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
}

func TestProberDriverFails(t *testing.T) {
	for mode, want := range map[string]string{
		"no driver": "looked below /driver", "no library": "looked everywhere", "crashes": "signal: killed",
		"healthy": "decode driver: json: unknown field", "silent": "decode driver: EOF",
	} {
		t.Run(mode, func(t *testing.T) {
			_, err := nvml.NewProber(command(t, mode, time.Minute)).Driver(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, nvml.ErrNoDriver) != (mode == "no driver") {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestDecodeDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*nvml.Driver)
		want   string
	}{
		"good":             {func(*nvml.Driver) {}, ""},
		"no CUDA":          {func(d *nvml.Driver) { d.Files = d.Files[1:] }, "no libcuda.so of version"},
		"another version":  {func(d *nvml.Driver) { d.Version = "1.2" }, "no libcuda.so of version"},
		"relative":         {func(d *nvml.Driver) { d.Files[1].Path = "etc/x" }, "files[1]"},
		"above the root":   {func(d *nvml.Driver) { d.Files[1].Path = "/../etc/x" }, "files[1]"},
		"the root":         {func(d *nvml.Driver) { d.Files[1].Path = "/" }, "files[1]"},
		"into proc":        {func(d *nvml.Driver) { d.Files[1].ContainerPath = "/proc/x" }, "is in /proc"},
		"over a tree":      {func(d *nvml.Driver) { d.Files[1].ContainerPath = "/dev" }, "is in /dev"},
		"twice":            {func(d *nvml.Driver) { d.Files[1].ContainerPath = d.Files[0].ContainerPath }, "appears twice"},
		"control":          {func(d *nvml.Driver) { d.Files[1].Path = "/a\nb" }, "files[1]"},
		"link with colons": {func(d *nvml.Driver) { d.Links[0].Path = "/a::b" }, "links[0]"},
		"link to nothing":  {func(d *nvml.Driver) { d.Links[0].Target = "" }, "links[0]"},
		"directory":        {func(d *nvml.Driver) { d.LibraryDirs = append(d.LibraryDirs, "/sys/x") }, "libraryDirs[1]"},
		"variable":         {func(d *nvml.Driver) { d.Env = []string{"A=b", "=b"} }, "env[1]"},
		"variable of none": {func(d *nvml.Driver) { d.Env = []string{"A"} }, "env[0]"},
		"too much":         {func(d *nvml.Driver) { d.LibraryDirs = many(2000) }, "2000 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			d := sampleDriver()
			tc.change(&d)
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			got, err := nvml.DecodeDriver(bytes.NewReader(text))
			if tc.want != "" {
				check.WantErr(t, err, nil, tc.want)
				return
			}
			if diff := cmp.Diff(d, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	for _, text := range []string{"", "null", "{}", "{} {}", `{"x":1}`, strings.Repeat(" ", 2<<20)} {
		if _, err := nvml.DecodeDriver(strings.NewReader(text)); err == nil {
			t.Errorf("took %.20q", text)
		}
	}
}

func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("/lib%d", i))
	}
	return out
}

func FuzzDecodeDriver(f *testing.F) {
	text, err := json.Marshal(sampleDriver())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":"1.2","files":[{"path":"/a","containerPath":"/../libcuda.so.1.2"}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		driver, err := nvml.DecodeDriver(bytes.NewReader(text))
		if err != nil {
			return
		}
		for _, file := range driver.Files {
			if !strings.HasPrefix(file.Path, "/") || strings.Contains(file.Path+"/", "/../") || strings.Contains(file.ContainerPath+"/", "/../") {
				t.Errorf("took %+v", file)
			}
		}
		again, err := json.Marshal(driver)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nvml.DecodeDriver(bytes.NewReader(again)); err != nil {
			t.Errorf("%s became %s, which is refused: %v", text, again, err)
		}
	})
}

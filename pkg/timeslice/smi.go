// SPDX-License-Identifier: Apache-2.0

package timeslice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// Tools returns the driver root for Config: below a directory, or "/".
func Tools(dir string) tool.Root {
	return tool.Root{
		Dir: dir, Keep: confine.Setting(), Loader: true, Libraries: []string{"libnvidia-ml.so.1"},
		Reach: func() *confine.Paths { return nvml.Reach(dir, "/") },
	}
}

// places are where drivers have nvidia-smi below their root: distributions and NVIDIA's container, Google's images, Flatcar.
func places() []string {
	return []string{
		"usr/bin/nvidia-smi", "bin/nvidia-smi", "usr/local/bin/nvidia-smi", "usr/local/nvidia/bin/nvidia-smi", "opt/bin/nvidia-smi",
	}
}

// What the tool or the driver refuses.
var (
	// ErrTooOld: the driver's tool cannot set time slices.
	ErrTooOld = errors.New("the driver is too old for time slices")
	// ErrVersion: the tool is of another driver than the kernel's.
	ErrVersion = errors.New("nvidia-smi is of another driver")
	// ErrUnsupported: the GPU has no time slices that can be set.
	ErrUnsupported = errors.New("the GPU does not support it")
	// ErrForbidden: the driver wants an administrator.
	ErrForbidden = errors.New("the driver lets only an administrator do it (CAP_SYS_ADMIN)")
	// ErrGone: the GPU is not on the node, or fell off the bus.
	ErrGone = errors.New("the GPU is gone")
)

// errNoDriver: the kernel does not have NVIDIA's driver, so no GPU has an interval.
var errNoDriver = errors.New("NVIDIA's driver is not loaded")

// errNothingSet is of a run that certainly set nothing: the tool did not start, or said no.
var errNothingSet = errors.New("nvidia-smi refuses")

// oldest is the first driver of which the tool has compute-policy (CUDA 11.1).
const oldest = 455

// smi is an nvidia-smi that fits the kernel's driver.
type smi struct {
	program tool.Program
	timeout time.Duration
	lock    *os.File
}

// find finds the tool and checks its version against the kernel's.
func (s *Setter) find(ctx context.Context, lock *os.File) (smi, error) {
	kernel, err := s.kernelVersion()
	if err != nil {
		return smi{}, err
	}
	if major, _, _ := strings.Cut(kernel, "."); !atLeast(major, oldest) {
		return smi{}, fmt.Errorf("%w: it is %s, want %d or later", ErrTooOld, kernel, oldest)
	}
	program, err := s.config.Tools.Find(places()...)
	if err != nil {
		return smi{}, fmt.Errorf("nvidia-smi: %w: install NVIDIA's user-space driver, or set the driver root", err)
	}
	found := smi{program: program, timeout: s.config.Timeout, lock: lock}
	version, err := found.version(ctx)
	if err != nil {
		return smi{}, err
	}
	if version != kernel {
		return smi{}, fmt.Errorf("%w: %s is of %s, and the kernel has %s: install the user-space driver of that version, or restart the node",
			ErrVersion, program.Path(), version, kernel)
	}
	return found, nil
}

func atLeast(major string, least int) bool {
	number, err := strconv.Atoi(major)
	return err == nil && number >= least
}

// kernelVersion reads the version of the kernel's driver.
func (s *Setter) kernelVersion() (string, error) {
	const name = "proc/driver/nvidia/version"
	text, err := s.config.Tree.ReadString(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoDriver
	}
	if err != nil {
		return "", err
	}
	version := nvml.KernelVersion(text)
	if version == "" {
		return "", fmt.Errorf("/%s has no version such as 580.95.05: %.80q", name, text)
	}
	return version, nil
}

// versionLine is the first line of what nvidia-smi prints as help, which drivers of all ages do, and a line that newer ones print for
// --version.
var versionLine = regexp.MustCompile(
	`(?m)^(?:NVIDIA System Management Interface -- v|NVIDIA-SMI version\s*:\s*)([0-9]{1,5}(?:\.[0-9]{1,5}){1,2})\s*$`)

// version asks the tool for its own version. It asks no GPU.
func (s smi) version(ctx context.Context) (string, error) {
	for _, arg := range []string{"--help", "--version"} {
		output, err := s.run(ctx, arg)
		if err != nil {
			return "", err
		}
		if match := versionLine.FindStringSubmatch(output); match != nil {
			return match[1], nil
		}
	}
	return "", fmt.Errorf("%w: %s does not say its version", ErrVersion, s.program.Path())
}

// set sets the interval of one GPU.
func (s smi) set(ctx context.Context, uuid string, interval Interval) error {
	_, err := s.run(ctx, "compute-policy", "-i", uuid, "--set-timeslice", strconv.Itoa(int(interval)))
	return err
}

// run runs the tool and says how it failed, with the first line of what it printed.
func (s smi) run(ctx context.Context, args ...string) (string, error) {
	output, err := s.program.Run(ctx, tool.Run{Args: args, Timeout: s.timeout, Hold: []*os.File{s.lock}})
	failure, ok := errors.AsType[*tool.Error](err)
	if !ok {
		return output, err
	}
	said, _, _ := strings.Cut(failure.Output, "\n")
	if said != "" {
		err = fmt.Errorf("%w: it said: %s", err, said)
	}
	if !failure.Started || failure.Exit > 0 {
		err = fmt.Errorf("%w: %w", errNothingSet, err)
	}
	if cause := exits()[failure.Exit]; cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return "", err
}

// exits is what nvidia-smi says by its exit status ("RETURN VALUE" in its manual).
func exits() map[int]error {
	return map[int]error{3: ErrUnsupported, 4: ErrForbidden, 6: ErrGone, 15: ErrGone}
}

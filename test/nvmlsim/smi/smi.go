// SPDX-License-Identifier: Apache-2.0

// Package smi plays nvidia-smi on a simulated machine, as far as Fettle runs it: its version, and compute-policy. The texts of a refusal
// and its exit status are those that users reported (kubernetes-sigs/dra-driver-nvidia-gpu#41), and the help is that of driver 525
// (NVIDIA/k8s-device-plugin#354). What it prints where it succeeds was not found, and is made up.
//
// Faults are those of the machine's script, by the functions Smi.Version and Smi.SetTimeslice: hang, kill, wait, and answers.
package smi

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// The functions of the machine's script.
const (
	Version      = "Smi.Version"
	SetTimeslice = "Smi.SetTimeslice"
)

// noLibrary is the exit status of nvidia-smi without NVIDIA's library.
const noLibrary = 12

// Main is Run of a process, on the machine of which the file is in a directory above the program, or in its nvmlsim.WritableDir.
func Main(args []string) int {
	program, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return noLibrary
	}
	for dir := filepath.Dir(program); dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		for _, file := range []string{nvmlsim.DefaultFile(dir), nvmlsim.DefaultFile(filepath.Join(dir, nvmlsim.WritableDir))} {
			if _, err := os.Stat(file); err == nil {
				return Run(nvmlsim.Machine{File: file}, args, os.Stdout)
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s: no simulated machine in any directory above\n", program)
	return noLibrary
}

// Run does what the arguments ask for and returns the exit status.
func Run(m nvmlsim.Machine, args []string, stdout io.Writer) int {
	switch {
	case len(args) == 1 && slices.Contains([]string{"-h", "--help"}, args[0]):
		version, ret := versionOf(m)
		fmt.Fprintf(stdout, "\nNVIDIA System Management Interface -- v%s\n\nNVSMI provides monitoring information.\n", version)
		return int(ret)
	case len(args) == 1 && args[0] == "--version":
		version, ret := versionOf(m)
		fmt.Fprintf(stdout, "NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\n", version, version, version)
		return int(ret)
	case len(args) > 0 && args[0] == "compute-policy":
		return computePolicy(m, args[1:], stdout)
	}
	fmt.Fprintf(stdout, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
	return int(nvmlsim.InvalidArgument)
}

func versionOf(m nvmlsim.Machine) (version string, ret nvmlsim.Return) {
	ret = m.Call(Version, "", func(s *nvmlsim.State) nvmlsim.Return {
		version = cmp.Or(s.ToolVersion, nvmlsim.DriverVersion)
		return nvmlsim.Success
	})
	return version, ret
}

// computePolicy reads "-i UUID --set-timeslice N", in the order in which Fettle gives it.
func computePolicy(m nvmlsim.Machine, args []string, stdout io.Writer) int {
	if len(args) != 4 || args[0] != "-i" || args[2] != "--set-timeslice" {
		fmt.Fprintf(stdout, "Usage: nvidia-smi compute-policy [options]\n")
		return int(nvmlsim.InvalidArgument)
	}
	names := []string{"Default", "Short", "Medium", "Long"}
	value, err := strconv.Atoi(args[3])
	if err != nil || value < 0 || value >= len(names) {
		fmt.Fprintf(stdout, "Invalid timeslice value %s\n", args[3])
		return int(nvmlsim.InvalidArgument)
	}
	index := -1
	ret := m.Call(SetTimeslice, strings.Join(args[1:], " "), func(s *nvmlsim.State) nvmlsim.Return {
		if index = slices.IndexFunc(s.Cards, func(c *nvmlsim.Card) bool { return c.UUID == args[1] && !c.Absent }); index < 0 {
			return nvmlsim.NotFound
		}
		if ret := s.Administrator(); ret != nvmlsim.Success {
			return ret
		}
		return s.Cards[index].SetTimeSlice(value)
	})
	switch ret {
	case nvmlsim.Success:
		fmt.Fprintf(stdout, "Successfully set timeslice policy with value %s for GPU %d\n", names[value], index)
	case nvmlsim.NotFound:
		fmt.Fprintf(stdout, "No devices were found\n")
	default:
		fmt.Fprintf(stdout, "Failed to set timeslice policy with value %s for GPU %d : %s\nFailed to set timeslice for requested devices : %s\n",
			names[value], max(index, 0), ret, ret)
	}
	return exitStatus(ret)
}

// exitStatus is the library's answer where the manual lists it ("RETURN VALUE"), and else 255.
func exitStatus(ret nvmlsim.Return) int {
	if slices.Contains([]nvmlsim.Return{0, 2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15}, ret) {
		return int(ret)
	}
	return 255
}

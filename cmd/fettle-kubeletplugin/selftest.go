// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/claim"
)

// selftest looks at what its container was given: every device node beyond those of every container must open for reading, and
// there must be one, unless the claim looks at regions of FPGAs, which give none. It changes nothing, so it may run on devices that are in
// use.
func selftest(args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("selftest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	devices := flags.String("devices", "/dev", "directory that holds the device nodes")
	mounts := flags.String("mounts", "/proc/self/mountinfo", "the container's mounts")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	nodes, err := givenNodes(*devices)
	if err != nil {
		fmt.Fprintln(stderr, "selftest:", err)
		return 1
	}
	regions := withoutNode(environ)
	for _, name := range regions {
		fmt.Fprintf(stdout, "%s is set: the claim is prepared; admin access to an FPGA's region gives no device node, so none was opened\n", name)
	}
	if len(nodes) == 0 && len(regions) > 0 {
		return 0
	}
	if len(nodes) == 0 {
		fmt.Fprintf(stderr, "selftest: no device node below %s: the claim gave this container nothing\n", *devices)
		return 1
	}
	code := 0
	for _, path := range nodes {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			fmt.Fprintln(stderr, "selftest:", err)
			code = 1
			continue
		}
		_ = f.Close()
		fmt.Fprintln(stdout, "opened", path)
	}
	if note, err := missingPreset(*mounts, nodes); err != nil {
		fmt.Fprintln(stderr, "selftest:", err)
		code = 1
	} else if note != "" {
		fmt.Fprintln(stdout, note)
	}
	return code
}

// withoutNode returns the variables of the regions that the container looks at without a device node.
func withoutNode(environ []string) []string {
	var names []string
	for _, variable := range environ {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, claim.NoNodeVariable) {
			names = append(names, name)
		}
	}
	return names
}

// missingPreset says that no preset gave the container a file of the node, and what that means for its devices. It returns "" if one did.
func missingPreset(mountinfoPath string, nodes []string) (string, error) {
	data, err := os.ReadFile(mountinfoPath)
	if err != nil {
		return "", fmt.Errorf("look for what presets give: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		const mountPoint = 4 // proc_pid_mountinfo(5)
		fields := strings.Fields(line)
		if len(fields) > mountPoint && !ofEveryContainer(fields[mountPoint]) {
			return "", nil
		}
	}
	note := "PresetMissing: no preset gives this container files of the node: "
	if slices.ContainsFunc(nodes, isNVIDIA) {
		return note + "programs do not find the libraries of NVIDIA's driver, which no image can bring; set presets.vendors of the chart, " +
			"or make a ClusterDevicePreset", nil
	}
	return note + "images must bring the libraries that programs need", nil
}

// givenNodes are the character devices that not every container has (OCI runtime spec, config-linux.md, Default Devices).
func givenNodes(dir string) ([]string, error) {
	standard := map[string]bool{
		"null": true, "zero": true, "full": true, "random": true, "urandom": true, "tty": true, "console": true, "ptmx": true,
	}
	var nodes []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if entry.IsDir() && (name == "pts" || name == "shm" || name == "mqueue") {
			return fs.SkipDir
		}
		if entry.Type()&fs.ModeCharDevice != 0 && !standard[name] {
			nodes = append(nodes, path)
		}
		return nil
	})
	return nodes, err
}

// ofEveryContainer reports whether the runtime, kubelet or the claim mounts something there in a pod without volumes and presets.
func ofEveryContainer(mountPoint string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(mountPoint, "/"), "/")
	return slices.Contains([]string{"", "proc", "sys", "dev"}, top) || slices.ContainsFunc([]string{
		"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/secrets", "/var/run/secrets", "/run/kubernetes.io", "/var/run/kubernetes.io",
	}, func(dir string) bool { return mountPoint == dir || strings.HasPrefix(mountPoint, dir+"/") })
}

// isNVIDIA reports whether a device node is a GPU of NVIDIA: nvidia0.
func isNVIDIA(path string) bool {
	number, ok := strings.CutPrefix(filepath.Base(path), "nvidia")
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// SPDX-License-Identifier: Apache-2.0

// Package kernel gets Debian's newest kernel without installing it, and finds files in it.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kernel is an unpacked package of Debian: linux-image-RELEASE.
type Kernel struct {
	// Dir has the package's files, and Release is what "uname -r" prints.
	Dir, Release string
}

// ErrNone is in the error of Find where no kernel was fetched.
var ErrNone = errors.New("no kernel has been fetched")

// dirPrefix begins the names of directories with a kernel each; the rest is the release.
const dirPrefix = "kernel-"

// Find returns the newest kernel below a directory.
func Find(cache string) (Kernel, error) {
	dirs, err := filepath.Glob(filepath.Join(cache, dirPrefix+"*"))
	if err != nil {
		return Kernel{}, fmt.Errorf("find a kernel: %w", err)
	}
	var releases []string
	for _, dir := range dirs {
		releases = append(releases, strings.TrimPrefix(filepath.Base(dir), dirPrefix))
	}
	release, ok := newest(releases)
	if !ok {
		return Kernel{}, fmt.Errorf("%w into %s", ErrNone, cache)
	}
	return Kernel{Dir: filepath.Join(cache, dirPrefix+release), Release: release}, nil
}

// Image is the file to boot.
func (k Kernel) Image() string { return filepath.Join(k.Dir, "boot", "vmlinuz-"+k.Release) }

// Modules is the directory that has the modules of each release.
func (k Kernel) Modules() string { return filepath.Join(k.Dir, "lib", "modules") }

// Needed returns the files of modules and of all that they need, in the order of loading. What is built into the kernel has no file.
func (k Kernel) Needed(ctx context.Context, modules ...string) ([]string, error) {
	var files []string
	for _, module := range modules {
		out, err := run(ctx, "", "modprobe", "--dirname", k.Dir, "--set-version", k.Release, "--show-depends", module)
		if err != nil {
			return nil, fmt.Errorf("find module %s of kernel %s: %w", module, k.Release, err)
		}
		for line := range strings.Lines(out) {
			// "insmod PATH PARAMETERS" or "builtin NAME".
			fields := strings.Fields(line)
			if len(fields) >= 2 && fields[0] == "insmod" && !slices.Contains(files, fields[1]) {
				files = append(files, fields[1])
			}
		}
	}
	return files, nil
}

// plain matches the releases of kernels for all machines: no meta package, no "cloud" or "rt", nothing for debugging.
var plain = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)(?:-(\d+)|\+deb\d+)?(?:\+deb\d+)?(?:-(\d+))?-amd64$`)

// newest returns the newest release of a list.
func newest(releases []string) (string, bool) {
	var best string
	var bestVersion []int
	for _, release := range releases {
		match := plain.FindStringSubmatch(release)
		if match == nil {
			continue
		}
		var version []int
		for _, text := range match[1:] {
			n, _ := strconv.Atoi(text) // Empty where the part is missing, which is the least.
			version = append(version, n)
		}
		if best == "" || slices.Compare(version, bestVersion) > 0 {
			best, bestVersion = release, version
		}
	}
	return best, best != ""
}

// run runs a program and returns what it wrote to standard output.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

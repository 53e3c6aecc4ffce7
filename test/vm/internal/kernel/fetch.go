// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// packagePrefix begins the names of Debian's packages with a kernel; the rest is the release.
const packagePrefix = "linux-image-"

// Fetch returns the newest kernel below cache. Where there is none, it downloads the newest one that apt knows and unpacks it. It installs
// nothing.
func Fetch(ctx context.Context, cache string, out io.Writer) (Kernel, error) {
	k, err := Find(cache)
	if err == nil || !errors.Is(err, ErrNone) {
		return k, err
	}
	release, err := newestPackage(ctx)
	if err != nil {
		return Kernel{}, err
	}
	fmt.Fprintf(out, "downloading Debian's %s%s\n", packagePrefix, release)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("make the directory of kernels: %w", err)
	}
	temp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return Kernel{}, fmt.Errorf("make a directory to unpack a kernel in: %w", err)
	}
	defer os.RemoveAll(temp) //nolint:errcheck // what matters has been moved out of it
	if err := unpack(ctx, temp, release); err != nil {
		return Kernel{}, err
	}
	k = Kernel{Dir: filepath.Join(cache, dirPrefix+release), Release: release}
	if err := os.Rename(filepath.Join(temp, "root"), k.Dir); err != nil {
		return Kernel{}, fmt.Errorf("keep the kernel: %w", err)
	}
	return k, nil
}

// newestPackage asks apt, whose lists are brought up to date first: an older list names packages that are no longer there.
func newestPackage(ctx context.Context) (string, error) {
	if _, err := run(ctx, "", "apt-get", "update", "-qq"); err != nil {
		return "", err
	}
	names, err := run(ctx, "", "apt-cache", "pkgnames", packagePrefix)
	if err != nil {
		return "", err
	}
	var releases []string
	for _, name := range strings.Fields(names) {
		releases = append(releases, strings.TrimPrefix(name, packagePrefix))
	}
	release, ok := newest(releases)
	if !ok {
		return "", fmt.Errorf("apt knows no package %sVERSION-amd64: add Debian's main archive to its sources", packagePrefix)
	}
	return release, nil
}

// unpack downloads the package of a release into dir and unpacks it into the directory root there.
func unpack(ctx context.Context, dir, release string) error {
	if _, err := run(ctx, dir, "apt-get", "download", "-qq", packagePrefix+release); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("download %s%s: got the files %q, want one package (%w)", packagePrefix, release, packages, err)
	}
	root := filepath.Join(dir, "root")
	if _, err := run(ctx, "", "dpkg-deb", "--extract", packages[0], root); err != nil {
		return err
	}
	// Debian 13 and later have the modules below usr/lib.
	if _, err := os.Lstat(filepath.Join(root, "lib")); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return fmt.Errorf("unpack the kernel: %w", err)
		}
	}
	_, err = run(ctx, "", "depmod", "--basedir", root, release)
	return err
}

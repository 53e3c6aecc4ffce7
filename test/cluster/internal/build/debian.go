// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// debianPackage is needed unless a file it brings is there.
type debianPackage struct{ file, name string }

func debianPackages() []debianPackage {
	return []debianPackage{
		{"/usr/include/seccomp.h", "libseccomp-dev"}, // to compile runc
		{"/usr/bin/gcc", "gcc"},
		{"/usr/bin/pkg-config", "pkg-config"},
		{"/usr/lib/cni/bridge", "containernetworking-plugins"}, // pod network
		{"/bin/busybox", "busybox-static"},                     // base image
		{"/sbin/ip", "iproute2"},
	}
}

// installPackages adds what is missing, where that is possible.
func installPackages(out io.Writer) error {
	var missing []string
	for _, p := range debianPackages() {
		if _, err := os.Stat(p.file); err != nil {
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing: as root run: apt-get install --no-install-recommends %s", list)
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", list)
	install := append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)
	if apt(install) == nil {
		return nil
	}
	// The package lists may be old or absent.
	if err := apt([]string{"update", "-q"}); err != nil {
		return err
	}
	return apt(install)
}

func apt(args []string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLine(output))
	}
	return nil
}

func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}

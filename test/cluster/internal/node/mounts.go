// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// ShareWithHost makes the directories that the host fills mount points on the host whose later mounts reach the node.
func ShareWithHost(n plan.Node) error {
	for _, b := range n.Dirs.Binds() {
		if !b.FromHost {
			continue
		}
		if err := bind(b.From, b.From, unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	return nil
}

// BuildNamespace arranges the mounts of the calling process's fresh namespaces as the node sees them and lets the
// node forward packets of its pods. It must run in a process started with new mount and network namespaces.
func BuildNamespace(n plan.Node) error {
	// Nothing mounted here may reach the host; containers may mount below any path (Bidirectional).
	for _, how := range []uintptr{unix.MS_SLAVE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|how, ""); err != nil {
			return fmt.Errorf("set mount propagation: %w", err)
		}
	}
	for _, b := range n.Dirs.Binds() {
		// A private copy first: as a peer of its source every mount below would be seen twice.
		from := uintptr(unix.MS_PRIVATE)
		if b.FromHost {
			from = unix.MS_SLAVE
		}
		if err := bind(b.From, b.To, from); err != nil {
			return err
		}
	}
	if err := privateDev(filepath.Join(n.Dirs.Root, "dev")); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("allow forwarding: %w", err)
	}
	return nil
}

// bind mounts from over to and makes it shared, after cutting it from the source's peers as cut says.
func bind(from, to string, cut uintptr) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	for _, how := range []uintptr{cut, unix.MS_SHARED} {
		if err := unix.Mount("", to, "", unix.MS_REC|how, ""); err != nil {
			return fmt.Errorf("set propagation of %s: %w", to, err)
		}
	}
	return nil
}

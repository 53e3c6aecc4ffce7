// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/disk"
)

// Names that Kubernetes' helper gives to the files with a claim's device metadata (KEP-5304): a directory among the plugin's, with one for
// each claim, and CDI files.
const (
	metadataDir    = "dra-device-metadata"
	metadataPrefix = v1alpha1.DriverName + "_metadata_"
)

// bindTime is how long an instance that starts may have a socket at which it does not listen yet.
const bindTime = time.Minute

// removeDeadSockets removes the sockets of instances that ended without doing so, as after SIGKILL. Nobody listens at them. kubelet would
// try to register each of them whenever it starts.
func (c *Config) removeDeadSockets(now time.Time) error {
	registrar, plugin := c.sockets()
	var errs []error
	for _, pattern := range []string{
		filepath.Join(c.RegistryDir, v1alpha1.DriverName+"*-reg.sock"), filepath.Join(c.pluginDir(), "dra*.sock"),
	} {
		paths, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range paths {
			if path != registrar && path != plugin && dead(path, now) {
				errs = append(errs, disk.RemoveIfThere(disk.OS{}, path))
			}
		}
	}
	return errors.Join(errs...)
}

// dead says whether a path is a socket at which nobody listens, nor is about to.
func dead(path string, now time.Time) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket || now.Sub(info.ModTime()) < bindTime {
		return false
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// removeMetadata removes the device metadata of all claims. The helper removes that of a claim when kubelet unprepares it, which kubelet
// never does for a claim that it forgot, and keeps the directory.
func (c *Config) removeMetadata() error {
	specs, err := filepath.Glob(filepath.Join(c.CDIRoot, metadataPrefix+"*.json"))
	errs := []error{err, os.RemoveAll(filepath.Join(c.pluginDir(), metadataDir))}
	for _, path := range specs {
		errs = append(errs, disk.RemoveIfThere(disk.OS{}, path))
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NVML bounds the child process that loads NVIDIA's library.
type NVML struct {
	Disabled bool `json:"disabled,omitempty"`
	// Timeout is how long the child may take before it is killed. Default 20s: a cold driver initialises every GPU.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// DriverRoot is the directory under which the driver's libraries are found. Default /.
	DriverRoot string `json:"driverRoot,omitempty"`
	// HostDriverRoot is the directory of the host that DriverRoot is in the plugin's container. Container runtimes know it by this name, and
	// presets take the driver from there. Default DriverRoot.
	HostDriverRoot string `json:"hostDriverRoot,omitempty"`
}

// hostDriverRoot is where the host has the driver.
func (c *NVML) HostRoot() string { return cmp.Or(c.HostDriverRoot, c.DriverRoot, "/") }

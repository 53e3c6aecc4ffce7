// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ownVariables begin the names of the variables by which Fettle, and the interface for FPGAs that it follows, tell a container what it has.
func ownVariables() []string {
	return []string{"FETTLE_", "FPGA_AFU", "FPGA_BITSTREAM_ID", "FPGA_DRIVER_PARAMS", "FPGA_REGION"}
}

// adminVariables begin the names of the variables by which the loader runs code before a program starts, and by which NVIDIA's runtime
// gives a container devices, whatever was allocated to it.
func adminVariables() []string { return []string{"GLIBC_TUNABLES", "LD_", "NVIDIA_"} }

// reservedFaults refuses variables that no preset may set, and variables that only a ClusterDevicePreset may set. LD_LIBRARY_PATH has other
// rules.
func reservedFaults(name string, cluster bool, at *field.Path) field.ErrorList {
	switch {
	case hasPrefixOf(name, ownVariables()):
		return field.ErrorList{field.Forbidden(at, name+" is a variable of Fettle's: no preset may set it; use another name")}
	case !cluster && name != EnvLibraryPath && hasPrefixOf(name, adminVariables()):
		return field.ErrorList{field.Forbidden(at, name+
			" changes the loader or the container runtime: only a ClusterDevicePreset may set it; ask an administrator")}
	}
	return nil
}

func hasPrefixOf(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

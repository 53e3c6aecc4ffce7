// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// PluginLabel with the value PluginComponent marks the plugin's pods, in Fettle's namespace.
const (
	PluginLabel     = "app.kubernetes.io/component"
	PluginComponent = "kubeletplugin"
)

// DriverLabel marks the DaemonSets of drivers and their pods, with the DaemonSet's name. What they are for is in annotations: the
// release of a kernel need not be the value of a label, nor the name of a stack.
const (
	DriverLabel            = v1alpha1.GroupName + "/driver"
	DriverStackAnnotation  = v1alpha1.GroupName + "/driver-stack"
	DriverOSAnnotation     = v1alpha1.GroupName + "/driver-os"
	DriverKernelAnnotation = v1alpha1.GroupName + "/driver-kernel"
	DriverArchAnnotation   = v1alpha1.GroupName + "/driver-arch"
	DriverImageAnnotation  = v1alpha1.GroupName + "/driver-image"
)

// StateStackAnnotation has the name of the stack of which an object of an extra state is, and its pods. StateDigestAnnotation is what the
// object was made of: of pods, those of DaemonSets have it.
const (
	StateStackAnnotation  = v1alpha1.GroupName + "/state-stack"
	StateDigestAnnotation = v1alpha1.GroupName + "/state-digest"
)

const (
	// nameDigits is how much of a hash is part of a name, moduleDigits of the name of a Module.
	nameDigits, moduleDigits = 24, 10
)

// Digest returns a hash for the name of an object that is made for these parts.
func Digest(parts ...string) string {
	hash := sha256.New()
	for _, p := range parts {
		hash.Write([]byte(p + "\n"))
	}
	return hex.EncodeToString(hash.Sum(nil))[:nameDigits]
}

// ModuleName returns the name of a stack's Module of KMM. A stack of the same name has the same, so that labels which were left are known.
func ModuleName(stack string) string { return "driver-" + Digest(stack)[:moduleDigits] }

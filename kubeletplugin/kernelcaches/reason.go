// SPDX-License-Identifier: Apache-2.0

package kernelcaches

// The reasons of refused claims.
const (
	ReasonRefused  = "KernelCacheRefused"
	ReasonNotReady = "KernelCacheNotReady"
)

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	switch {
	case IsRefused(err):
		return ReasonRefused
	case IsNotReady(err):
		return ReasonNotReady
	}
	return ""
}

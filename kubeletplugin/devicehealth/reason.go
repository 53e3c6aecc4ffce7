// SPDX-License-Identifier: Apache-2.0

package devicehealth

import "errors"

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	if errors.Is(err, ErrUnhealthy) {
		return "DeviceUnhealthy"
	}
	return ""
}

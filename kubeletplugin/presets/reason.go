// SPDX-License-Identifier: Apache-2.0

package presets

import "errors"

// The reasons of Events and of refused claims.
const (
	reasonUnmet      = "PresetUnmet"
	reasonRefused    = "PresetRefused"
	reasonOverridden = "PresetOverridden"
	reasonAmbiguous  = "PresetAmbiguous"
)

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	if errors.Is(err, errUnmet) || errors.Is(err, errUnread) {
		return reasonUnmet
	}
	return ""
}

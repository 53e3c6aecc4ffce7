// SPDX-License-Identifier: Apache-2.0

package claim

// DeviceKey tells the entries of a claim's status.devices apart.
type DeviceKey struct{ driver, pool, device, share string }

// KeyOf makes the key of a device. The share is nil for a whole device.
func KeyOf(driver, pool, device string, share *string) DeviceKey {
	key := DeviceKey{driver: driver, pool: pool, device: device}
	if share != nil {
		key.share = *share
	}
	return key
}

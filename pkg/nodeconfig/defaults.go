// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import "time"

const (
	defaultDiscoveryInterval = 30 * time.Second
	defaultReconcileInterval = time.Minute
	defaultHealthInterval    = 10 * time.Second
	defaultNVMLTimeout       = 20 * time.Second
	minInterval              = time.Second
)

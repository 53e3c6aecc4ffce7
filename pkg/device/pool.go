// SPDX-License-Identifier: Apache-2.0

package device

import "strings"

// PoolName returns the pool of one kind of device on a node: node/kind.
func PoolName(node string, kind Kind) string { return node + "/" + string(kind) }

// SplitPool returns the node and the kind of device of a pool. Of another driver's pool, whose name has no slash, there is neither.
func SplitPool(pool string) (node string, kind Kind, ok bool) {
	node, rest, ok := strings.Cut(pool, "/")
	if !ok {
		return "", "", false
	}
	return node, Kind(rest), true
}

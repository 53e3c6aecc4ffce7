// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// All clusters live in 10.128.0.0/9, one /20 block each: its first /24 is for machines, each other /24 for the pods of
// one node. The host gets an address in the block and routes to all of it, therefore blocks may not overlap.
const (
	blockCount   = 2048
	blockSubnets = 16
	blockBase    = 10<<24 | 128<<16
)

type block uint32

func freeBlock(seed uint32, inUse []netip.Prefix) (block, error) {
	for i := range uint32(blockCount) {
		b := block((seed + i) % blockCount)
		if !b.overlaps(inUse) {
			return b, nil
		}
	}
	return 0, fmt.Errorf("no free /20 in 10.128.0.0/9: all overlap addresses or routes of this host")
}

func (b block) overlaps(inUse []netip.Prefix) bool {
	whole := netip.PrefixFrom(b.address(0, 0), 20)
	for _, p := range inUse {
		// A default route covers everything and hinders nothing.
		if p.Bits() > 0 && whole.Overlaps(p) {
			return true
		}
	}
	return false
}

func (b block) address(subnet, host int) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], blockBase+uint32(b)<<12+uint32(subnet)<<8+uint32(host))
	return netip.AddrFrom4(a)
}

func (b block) subnet(i int) netip.Prefix { return netip.PrefixFrom(b.address(i, 0), 24) }

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

func testPlan() plan.Cluster {
	return plan.Cluster{
		ID:           "ft-0a1b2c3d",
		Subnet:       netip.MustParsePrefix("10.128.16.0/24"),
		Host:         netip.MustParseAddr("10.128.16.1"),
		ControlPlane: netip.MustParseAddr("10.128.16.2"),
		Nodes: []plan.Node{
			{Name: "node1", Address: netip.MustParseAddr("10.128.16.10"), Pods: netip.MustParsePrefix("10.128.17.0/24")},
			{Name: "node2", Address: netip.MustParseAddr("10.128.16.11"), Pods: netip.MustParsePrefix("10.128.18.0/24")},
		},
	}
}

func TestBatches(t *testing.T) {
	c := testPlan()
	for name, test := range map[string]struct{ got, want string }{
		"control plane": {ControlPlane(c, 42), `link set lo up
addr add 10.96.0.1/32 dev lo
link add name br0 address 02:fe:0a:80:10:02 type bridge
addr add 10.128.16.2/24 dev br0
link set br0 up
link add name host type veth peer name ft-0a1b2c3d netns 42
link set host master br0 up
`},
		"attach": {Attach(c.Nodes[1], 43), `link add name node2 type veth peer name eth0 address 02:fe:0a:80:10:0b netns 43
link set node2 master br0 up
route replace 10.128.18.0/24 via 10.128.16.11
`},
		"node": {Node(c, c.Nodes[0]), `link set lo up
addr add 10.128.16.10/24 dev eth0
link set eth0 up
route add 10.96.0.0/24 via 10.128.16.2
route add unreachable default
route add 10.128.18.0/24 via 10.128.16.11
`},
		"host": {Host(c), `addr add 10.128.16.1/24 dev ft-0a1b2c3d
link set ft-0a1b2c3d up
route add 10.128.17.0/24 via 10.128.16.10
route add 10.128.18.0/24 via 10.128.16.11
`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", test.got, test.want)
			}
		})
	}
}

func TestPrefixesIn(t *testing.T) {
	got := prefixesIn("2: eth0    inet 192.0.2.2/24 brd 192.0.2.255 scope global\ndefault via 10.0.0.1 dev eth0\n")
	want := []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.255/32"), netip.MustParsePrefix("10.0.0.1/32"),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

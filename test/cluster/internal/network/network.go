// SPDX-License-Identifier: Apache-2.0

// Package network renders and applies the links, addresses and routes of a cluster as ip(8) batches.
//
// The control plane's namespace holds a bridge with its own address; each node and the host have a veth pair to it.
// There is no masquerading and no way out: every machine has routes to every pod subnet. All of it vanishes with the
// namespaces, the host's end of its pair included.
package network

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// ControlPlane is the batch for the control plane's namespace. host is a process in the namespace that gets the other
// end of the host's pair.
func ControlPlane(c plan.Cluster, host int) string {
	var b batch
	b.add("link set lo up")
	b.add("addr add %s/32 dev lo", plan.ServiceAddress)
	// With a hardware address of its own: else the bridge takes the lowest of its ports, which changes when a node
	// reboots, and everybody's neighbour entry for the API server would be wrong for half a minute.
	b.add("link add name br0 address %s type bridge", hardwareAddress(c.ControlPlane))
	b.add("addr add %s/%d dev br0", c.ControlPlane, c.Subnet.Bits())
	b.add("link set br0 up")
	b.add("link add name host type veth peer name %s netns %d", c.ID, host)
	b.add("link set host master br0 up")
	return b.String()
}

// Attach is the batch, also for the control plane's namespace, that connects a node whose namespace a process holds.
// It can be applied again for the new namespace after a reboot.
func Attach(n plan.Node, holder int) string {
	var b batch
	b.add("link add name %s type veth peer name eth0 address %s netns %d", n.Name, hardwareAddress(n.Address), holder)
	b.add("link set %s master br0 up", n.Name)
	b.add("route replace %s via %s", n.Pods, n.Address)
	return b.String()
}

// Detach removes what is left of a node's link in the control plane's namespace, which a process holds. The kernel removes it with the
// node's own namespace, but some time after the last process of that ended.
func Detach(pid int, n plan.Node) error {
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--net", "--", "ip", "link", "del", "dev", n.Name)
	if out, err := cmd.CombinedOutput(); err != nil && !bytes.Contains(out, []byte("Cannot find device")) {
		return fmt.Errorf("remove the link of %s: %w: %s", n.Name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Node is the batch for a node's namespace, after Attach.
func Node(c plan.Cluster, n plan.Node) string {
	var b batch
	b.add("link set lo up")
	b.add("addr add %s/%d dev eth0", n.Address, c.Subnet.Bits())
	b.add("link set eth0 up")
	b.add("route add %s via %s", plan.ServiceSubnet, c.ControlPlane)
	// There is no way out; say so at once instead of by a timeout.
	b.add("route add unreachable default")
	for _, other := range c.Nodes {
		if other.Name != n.Name {
			b.add("route add %s via %s", other.Pods, other.Address)
		}
	}
	return b.String()
}

// Host is the batch for the host's namespace, after the control plane's.
func Host(c plan.Cluster) string {
	var b batch
	b.add("addr add %s/%d dev %s", c.Host, c.Subnet.Bits(), c.ID)
	b.add("link set %s up", c.ID)
	for _, n := range c.Nodes {
		b.add("route add %s via %s", n.Pods, n.Address)
	}
	return b.String()
}

// hardwareAddress derives a locally administered address, so that a node keeps its own over a reboot.
func hardwareAddress(a netip.Addr) string {
	b := a.As4()
	return net.HardwareAddr{0x02, 0xfe, b[0], b[1], b[2], b[3]}.String()
}

type batch struct{ strings.Builder }

func (b *batch) add(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// Apply runs a batch in the network namespace of a process, or in ours when pid is 0.
func Apply(pid int, batch string) error {
	args := []string{"ip", "-batch", "-"}
	if pid != 0 {
		args = append([]string{"nsenter", "--target", strconv.Itoa(pid), "--net", "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(batch)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("set up network: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// HasLink tells whether the host still has its end of a cluster's pair.
func HasLink(id string) bool {
	_, err := os.Stat("/sys/class/net/" + id)
	return err == nil
}

// RemoveLink deletes the host's end, if it is still there.
func RemoveLink(id string) error {
	if !HasLink(id) {
		return nil
	}
	if out, err := exec.Command("ip", "link", "del", id).CombinedOutput(); err != nil && HasLink(id) {
		return fmt.Errorf("remove link %s: %w: %s", id, err, bytes.TrimSpace(out))
	}
	return nil
}

// InUse lists the prefixes of the host's addresses and routes.
func InUse() ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, args := range [][]string{{"-4", "-o", "addr", "show"}, {"-4", "route", "show", "table", "all"}} {
		out, err := exec.Command("ip", args...).Output()
		if err != nil {
			return nil, fmt.Errorf("list addresses and routes: %w", err)
		}
		prefixes = append(prefixes, prefixesIn(string(out))...)
	}
	return prefixes, nil
}

// prefixesIn finds what reads as address or prefix in the output of ip.
func prefixesIn(text string) []netip.Prefix {
	var prefixes []netip.Prefix
	for word := range strings.FieldsSeq(text) {
		if p, err := netip.ParsePrefix(word); err == nil {
			prefixes = append(prefixes, p.Masked())
		} else if a, err := netip.ParseAddr(word); err == nil && a.Is4() && !a.IsUnspecified() {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return prefixes
}

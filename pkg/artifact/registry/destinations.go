// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Ranges returns addresses of the cluster: its services, pods and nodes.
type Ranges func(ctx context.Context) ([]netip.Prefix, error)

// ParseRanges returns the texts that are a range or an address, and skips all others: a Node's list of addresses has host names too.
func ParseRanges(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if r, err := parseRange(text); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// parseRange parses a range or one address. An IPv4 address in the form of IPv6 becomes one of IPv4.
func parseRange(text string) (netip.Prefix, error) {
	r, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%s is %w: expected an address or a range, such as 10.0.0.0/8", quote(text), artifact.ErrInvalid)
		}
		address = address.Unmap().WithZone("")
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	if a, bits := r.Addr(), r.Bits()-v4MappedBits; a.Is4In6() && bits >= 0 {
		r = netip.PrefixFrom(a.Unmap(), bits)
	}
	return r.Masked(), nil
}

// v4MappedBits is how many bits stand before an IPv4 address in the form of IPv6.
const v4MappedBits = 96

// destinations decides where a client connects to. References come from tenants, so without it a tenant could have the controller and the
// nodes send requests to the node itself, to the cloud's metadata service, and to pods and services that the tenant does not reach.
type destinations struct {
	// hosts are those that the administrator names: they may be at any address.
	hosts map[string]bool
	// allowed and refused are the ranges of the configuration. An allowed one wins.
	allowed, refused []netip.Prefix
	// ranges returns more that are refused. own returns the addresses of this machine.
	ranges Ranges
	own    func() ([]net.Addr, error)
	// resolver asks name servers. Nil: the process's.
	resolver *net.Resolver
}

// newDestinations reads the rules of a configuration. It returns nil if the client may connect anywhere.
func newDestinations(c *Config) (*destinations, error) {
	d := &destinations{hosts: map[string]bool{}, ranges: c.Ranges, own: net.InterfaceAddrs}
	for _, text := range c.AllowedDestinations {
		host := registryname.Host(text)
		switch r, err := parseRange(text); {
		case err == nil:
			d.allowed = append(d.allowed, r)
		case registryname.Valid(host):
			d.hosts[host] = true
		default:
			return nil, fmt.Errorf("the allowed destination %s is %w: expected HOST, HOST:PORT or a range", quote(text), artifact.ErrInvalid)
		}
	}
	for _, text := range c.ClusterCIDRs {
		r, err := parseRange(text)
		if err != nil {
			return nil, fmt.Errorf("the range of the cluster %w", err)
		}
		d.refused = append(d.refused, r)
	}
	if c.Ranges == nil {
		return nil, nil //nolint:nilnil // documented above
	}
	for _, host := range c.PlainHTTP {
		d.hosts[registryname.Host(host)] = true
	}
	for _, mirrors := range c.Mirrors {
		for i := range mirrors {
			host, _, _ := strings.Cut(mirrors[i].Host, "/")
			d.hosts[registryname.Host(host)] = true
		}
	}
	return d, nil
}

// checkName refuses a registry whose name alone tells that it may not be contacted, before a name server is asked.
func (d *destinations) checkName(ctx context.Context, host string) error {
	if d == nil || d.hosts[registryname.Host(host)] {
		return nil
	}
	name := hostname(host)
	if address, err := netip.ParseAddr(name); err == nil {
		return d.check(ctx, host, address)
	}
	name = strings.TrimSuffix(name, ".")
	for _, suffix := range []string{"localhost", "svc", "cluster.local"} {
		if name == suffix || strings.HasSuffix(name, "."+suffix) {
			return refusedDestination(host, "it is a name inside the cluster or the node")
		}
	}
	return nil
}

// hostname returns a host without its port and without brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// check refuses an address that the host was resolved to.
func (d *destinations) check(ctx context.Context, host string, address netip.Addr) error {
	if d.hosts[registryname.Host(host)] {
		return nil
	}
	for _, a := range formsOf(address) {
		if containsAny(d.allowed, a) {
			return nil
		}
		if why := special(a); why != "" {
			return refusedDestination(host, fmt.Sprintf("%s is %s", address, why))
		}
	}
	cluster, err := d.ranges(ctx)
	if err != nil {
		return fmt.Errorf("%s is %w: find out which addresses are the cluster's: %w", host, artifact.ErrUnavailable, err)
	}
	own, err := d.own()
	if err != nil {
		return fmt.Errorf("%s is %w: find out which addresses are this machine's: %w", host, artifact.ErrUnavailable, err)
	}
	for _, a := range own {
		cluster = append(slices.Clip(cluster), addressOf(a)...)
	}
	for _, a := range formsOf(address) {
		if containsAny(d.refused, a) || containsAny(cluster, a) {
			return refusedDestination(host, fmt.Sprintf("%s is an address of the cluster's nodes, pods or services", address))
		}
	}
	return nil
}

func refusedDestination(host, why string) error {
	return fmt.Errorf("%s is %w: %s; if it is a registry, an administrator lists it in bitstreams.registries.allowedDestinations of the chart",
		quote(host), artifact.ErrDestination, why)
}

func containsAny(ranges []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// addressOf returns an interface's address without its network.
func addressOf(a net.Addr) []netip.Prefix {
	if network, ok := a.(*net.IPNet); ok {
		return ParseRanges(network.IP.String())
	}
	return nil
}

// embedding is a range of IPv6 whose addresses hold one of IPv4.
type embedding struct {
	in netip.Prefix
	// at is the index of the first byte of the IPv4 address.
	at int
}

func embeddings() []embedding {
	return []embedding{
		{netip.MustParsePrefix("::/96"), 12},          // RFC 4291, 2.5.5.1: compatible, deprecated
		{netip.MustParsePrefix("64:ff9b::/96"), 12},   // RFC 6052: NAT64
		{netip.MustParsePrefix("64:ff9b:1::/48"), 12}, // RFC 8215: NAT64 of an organisation
		{netip.MustParsePrefix("2002::/16"), 2},       // RFC 3056: 6to4
	}
}

// formsOf returns an address without its zone, and the IPv4 address that it holds, if any. One that is only mapped to IPv6 is IPv4.
func formsOf(address netip.Addr) []netip.Addr {
	address = address.Unmap().WithZone("")
	out := []netip.Addr{address}
	for _, e := range embeddings() {
		if bytes := address.As16(); e.in.Contains(address) {
			out = append(out, netip.AddrFrom4([4]byte(bytes[e.at:e.at+4])))
		}
	}
	return out
}

// special returns what an address is that no registry of the internet has, "" if it may be one's.
func special(a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsUnspecified(), a.Is4() && a.As4()[0] == 0:
		return "no address of a host"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "an address of many hosts"
	case slices.Contains(metadataServices(), a):
		return "the address of a cloud's metadata service"
	}
	return ""
}

// metadataServices returns the addresses at which clouds give machines their credentials, as far as they are not link-local.
func metadataServices() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("192.0.0.192"),     // Oracle
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("fd20:ce::254"),    // Google
	}
}

// dial connects to a host. The address is checked after the name was resolved and before the first packet, so neither a name server that
// answers differently the next time nor a redirect or a token server that a registry names leads elsewhere.
func (d *destinations) dial(ctx context.Context, network, host string) (net.Conn, error) {
	if err := d.checkName(ctx, host); err != nil {
		return nil, err
	}
	dialer := newDialer()
	dialer.Resolver = d.resolver
	dialer.ControlContext = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return errors.Join(refusedDestination(host, "its address cannot be read"), err)
		}
		return d.check(ctx, host, to.Addr())
	}
	return dialer.DialContext(ctx, network, host)
}

func newDialer() *net.Dialer {
	return &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second}
}

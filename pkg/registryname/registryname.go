// SPDX-License-Identifier: Apache-2.0

// Package registryname gives each registry one name. References, patterns of policies, keys of credentials and mirrors are all brought
// to it before they are compared, so that no second spelling of a host passes by a policy or gets another's credentials.
package registryname

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

const (
	dockerHub   = "docker.io"
	labelForm   = `[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?`
	maxPort     = 1<<16 - 1
	portOfHTTP  = 80
	portOfHTTPS = 443
)

// hostForm is the grammar of the distribution specification, with IPv6 addresses. It checks a canonical host, so a port has no leading
// zero.
var hostForm = regexp.MustCompile(`^(` + labelForm + `(\.` + labelForm + `)*|\[[0-9a-f:]+\])(:([1-9][0-9]{0,4}))?$`)

// Valid reports whether a canonical host, with its port where there is one, is one that a registry may have.
func Valid(host string) bool {
	match := hostForm.FindStringSubmatch(host)
	if match == nil {
		return false
	}
	port, err := strconv.Atoi(match[len(match)-1])
	return err != nil || port <= maxPort // no port is no number
}

// Host returns the one name of a host with an optional port. Letters become lower case, the ports of http and https are left out and
// others lose leading zeros, an IPv6 address has its shortest form (RFC 5952), and Docker Hub, which has three names, is docker.io. What
// is no host stays, and Valid refuses it. A host may hold the wildcards of a pattern.
func Host(host string) string {
	host = strings.ToLower(host)
	name, port := splitPort(host)
	switch {
	case name == "index.docker.io", name == "registry-1.docker.io":
		name = dockerHub
	case strings.HasPrefix(name, "["):
		if address, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil && address.Unmap().Is4() {
			name = address.Unmap().String()
		} else if err == nil {
			name = "[" + address.String() + "]"
		}
	}
	if port == 0 || port == portOfHTTP || port == portOfHTTPS {
		return name
	}
	return name + ":" + strconv.Itoa(port)
}

// splitPort returns a host without its port, and the port. Where there is none, or what follows the colon is no port, it returns 0.
func splitPort(host string) (name string, port int) {
	at := strings.LastIndexByte(host, ':')
	if at < 0 || strings.HasSuffix(host, "]") {
		return host, 0
	}
	port, err := strconv.Atoi(host[at+1:])
	if err != nil || port < 1 || port > maxPort || strings.ContainsAny(host[at+1:], "+-") {
		return host, 0
	}
	return host[:at], port
}

// Repository returns REGISTRY/PATH, or a pattern or prefix of one, with the registry's one name. A text without a slash is a registry.
func Repository(text string) string {
	host, path, found := strings.Cut(text, "/")
	if !found {
		return Host(host)
	}
	return Host(host) + "/" + path
}

// SPDX-License-Identifier: Apache-2.0

// Package registryname gives each registry one name. References, patterns of policies, keys of credentials and mirrors are all brought
// to it before they are compared, so that no second spelling of a host passes by a policy or gets another's credentials.
package registryname

import (
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// DockerHub is the one name of the registry that has three.
const DockerHub = "docker.io"

const (
	labelForm   = `[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?`
	maxPort     = 1<<16 - 1
	portOfHTTP  = 80
	portOfHTTPS = 443
)

// MaxPath is how many characters a path below a registry may have in a reference.
const MaxPath = 255

// componentForm is what the distribution specification has between two slashes of a path.
var componentForm = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)

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

// ValidPath reports whether a path below a registry is one that a repository, or the first parts of one, may have.
func ValidPath(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if !componentForm.MatchString(part) {
			return false
		}
	}
	return true
}

// Check returns what is wrong with REGISTRY/PATH as the repository of a reference. What the objects of the cluster may name is checked by
// it, and what is pulled.
func Check(repository string) error {
	host, path, _ := strings.Cut(repository, "/")
	switch {
	case !Valid(Host(host)):
		return errors.New("expected a host name and port, 1 to 65535, before the first slash")
	case !ValidPath(path):
		return errors.New("expected a repository of lower-case letters, digits and single separators within each part")
	}
	return nil
}

// Host returns the one name of a host with an optional port. Letters become lower case, the ports of http and https are left out and
// others lose leading zeros, an IPv6 address has its shortest form (RFC 5952), and Docker Hub, which has three names, is docker.io. What
// is no host stays, and Valid refuses it. A host may hold the wildcards of a pattern.
func Host(host string) string {
	host = strings.ToLower(host)
	name, port := splitPort(host)
	switch {
	case name == "index.docker.io", name == "registry-1.docker.io":
		name = DockerHub
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

// splitPort returns a host without its port, and the port. Where there is none, or what follows the colon is no port, it returns 0. So it
// does for what is no host, since it has more colons.
func splitPort(host string) (name string, port int) {
	at := strings.LastIndexByte(host, ':')
	if at < 0 || strings.HasSuffix(host, "]") {
		return host, 0
	}
	port, err := strconv.Atoi(host[at+1:])
	if err != nil || port < 1 || port > maxPort || strings.ContainsAny(host[at+1:], "+-") {
		return host, 0
	}
	if name = host[:at]; strings.Contains(name, ":") && !strings.HasSuffix(name, "]") {
		return host, 0
	}
	return name, port
}

// Repository returns REGISTRY/PATH, or a pattern or prefix of one, with the registry's one name. A text without a slash is a registry.
func Repository(text string) string {
	host, path, found := strings.Cut(text, "/")
	if !found {
		return Host(host)
	}
	return Host(host) + "/" + path
}

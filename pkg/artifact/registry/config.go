// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// ConfigFile is the content of the configuration file. The empty one means https for every registry, and the system's certificate
// authorities.
type ConfigFile struct {
	// PlainHTTP lists the hosts, with their ports, that get plain http and nothing else.
	PlainHTTP []string `json:"plainHTTP,omitempty"`
	// Mirrors lists, by the host of a registry, the mirrors that are asked first.
	Mirrors Mirrors `json:"mirrors,omitempty"`
	// MirrorsOnly lists registries that are never asked themselves. Whatever their mirrors have, every namespace can read.
	MirrorsOnly []string `json:"mirrorsOnly,omitempty"`
	// CAFile names a file of PEM certificates that are trusted besides the system's. A relative name is relative to this file.
	CAFile string `json:"caFile,omitempty"`
	// AllowedDestinations lists what is contacted although it is at an address of the cluster or of the node: HOST, HOST:PORT, or a range.
	AllowedDestinations []string `json:"allowedDestinations,omitempty"`
	// ClusterCIDRs lists ranges of the cluster's pods and services that the API server does not tell.
	ClusterCIDRs []string `json:"clusterCIDRs,omitempty"`
}

// LoadConfig reads the configuration file at path. Without a path it returns the empty configuration. NewClient checks the names of hosts.
func LoadConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	f, err := readConfig(path)
	if err != nil {
		return Config{}, err
	}
	config := Config{
		PlainHTTP: f.PlainHTTP, Mirrors: f.Mirrors, MirrorsOnly: f.MirrorsOnly,
		AllowedDestinations: f.AllowedDestinations, ClusterCIDRs: f.ClusterCIDRs,
	}
	if f.CAFile == "" {
		return config, nil
	}
	config.Transport, err = transportWithCA(relativeTo(path, f.CAFile))
	if err != nil {
		return Config{}, fmt.Errorf("%s: caFile: %w", path, err)
	}
	return config, nil
}

// Files holds the configuration file and the file of certificate authorities that it names, to be written elsewhere.
type Files struct{ Config, Authorities string }

// ReadFiles reads the configuration file at path, which LoadConfig has read before. In the result its caFile is named ca.crt, and it has no
// rules of destinations, which are for Fettle's own programs. The result is empty if there is no path, or if the file configures nothing.
func ReadFiles(path string) (Files, error) {
	if path == "" {
		return Files{}, nil
	}
	f, err := readConfig(path)
	if err != nil {
		return Files{}, err
	}
	var c Files
	f.AllowedDestinations, f.ClusterCIDRs = nil, nil
	if f.CAFile != "" {
		pem, err := os.ReadFile(relativeTo(path, f.CAFile))
		if err != nil {
			return Files{}, fmt.Errorf("%s: caFile: %w", path, err)
		}
		c.Authorities, f.CAFile = string(pem), caFile
	}
	if len(f.PlainHTTP)+len(f.Mirrors)+len(f.CAFile) == 0 {
		return Files{}, nil
	}
	content, err := yaml.Marshal(f)
	c.Config = string(content)
	return c, err
}

// caFile is the name of the file of certificate authorities in Files.
const caFile = "ca.crt"

// readConfig reads the file at path.
func readConfig(path string) (ConfigFile, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return ConfigFile{}, fmt.Errorf("read the registries' configuration: %w", err)
	}
	f, err := ParseConfig(content)
	if err != nil {
		return ConfigFile{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// relativeTo returns the path of a file that the file at path names.
func relativeTo(path, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(path), name)
}

// ParseConfig decodes the content of a configuration file. It refuses unknown and repeated fields.
func ParseConfig(content []byte) (ConfigFile, error) {
	var f ConfigFile
	if err := yaml.UnmarshalStrict(content, &f); err != nil {
		return ConfigFile{}, fmt.Errorf("expected plainHTTP, mirrors, mirrorsOnly, caFile, allowedDestinations and clusterCIDRs: %w", err)
	}
	return f, nil
}

// transportWithCA returns a transport that trusts the certificate authorities in the file besides the system's.
func transportWithCA(path string) (http.RoundTripper, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("expected PEM certificates, found none in " + path)
	}
	return newTransport(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), nil
}

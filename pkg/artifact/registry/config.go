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

// File is the file's content. The empty one speaks https with every registry and believes the system's authorities.
type File struct {
	// PlainHTTP are the hosts, with their ports, that are spoken to in plain http and in nothing else.
	PlainHTTP []string `json:"plainHTTP,omitempty"`
	// Mirrors are, for a registry's host, the places that are asked before it: HOST[:PORT][/PATH].
	Mirrors map[string][]string `json:"mirrors,omitempty"`
	// CAFile names a file of PEM certificates that are believed beside the system's. It is looked for beside this file.
	CAFile string `json:"caFile,omitempty"`
}

// Load reads the file at path, which must be there; no path gives the empty configuration. The result is for NewClient, which
// judges the names.
func Load(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	f, err := read(path)
	if err != nil {
		return Config{}, err
	}
	config := Config{PlainHTTP: f.PlainHTTP, Mirrors: f.Mirrors}
	if f.CAFile == "" {
		return config, nil
	}
	config.Transport, err = trusting(beside(path, f.CAFile))
	if err != nil {
		return Config{}, fmt.Errorf("%s: caFile: %w", path, err)
	}
	return config, nil
}

// Content is the file and the one of authorities that it names, for those who cannot be given them as files.
type Content struct{ File, Authorities string }

// Read gives the content of the file at path, which Load has judged, with its caFile under the name ca.crt. One that says nothing, or no
// path, is empty.
func Read(path string) (Content, error) {
	if path == "" {
		return Content{}, nil
	}
	f, err := read(path)
	if err != nil {
		return Content{}, err
	}
	var c Content
	if f.CAFile != "" {
		pem, err := os.ReadFile(beside(path, f.CAFile))
		if err != nil {
			return Content{}, fmt.Errorf("%s: caFile: %w", path, err)
		}
		c.Authorities, f.CAFile = string(pem), caFile
	}
	if len(f.PlainHTTP)+len(f.Mirrors)+len(f.CAFile) == 0 {
		return Content{}, nil
	}
	content, err := yaml.Marshal(f)
	c.File = string(content)
	return c, err
}

// caFile is what the authorities' file is called beside the other.
const caFile = "ca.crt"

// read reads the file at path.
func read(path string) (File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read the registries' configuration: %w", err)
	}
	f, err := Parse(content)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// beside is a file that another one names.
func beside(path, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(path), name)
}

// Parse reads the content of a file. Unknown fields and repeated ones are refused.
func Parse(content []byte) (File, error) {
	var f File
	if err := yaml.UnmarshalStrict(content, &f); err != nil {
		return File{}, fmt.Errorf("expected plainHTTP, mirrors and caFile: %w", err)
	}
	return f, nil
}

// trusting is a transport that believes the authorities in the file, too.
func trusting(path string) (http.RoundTripper, error) {
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

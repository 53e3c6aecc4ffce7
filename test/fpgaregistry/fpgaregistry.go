// SPDX-License-Identifier: Apache-2.0

// Package fpgaregistry is a real registry in the test's own process, to which bitstreams are pushed byte by byte, so that also what no
// tool would push can be. It can be taken down, and some of its repositories ask for a password.
package fpgaregistry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/fpga"
)

// The credentials for repositories that begin with private/.
const (
	User     = "fpga"
	Password = "open sesame"
)

// Media types of OCI.
const (
	ManifestType = "application/vnd.oci.image.manifest.v1+json"
	IndexType    = "application/vnd.oci.image.index.v1+json"
	EmptyType    = "application/vnd.oci.empty.v1+json"
)

// Registry is a running registry.
type Registry struct {
	// Host is its name and port. It speaks plain http.
	Host string
	// Down makes it answer 503.
	Down atomic.Bool
	// Requests counts all that arrived, Reads the blobs that were asked for.
	Requests, Reads atomic.Int64
	connections     atomic.Int64

	mu sync.Mutex
	// reads are those of each blob, by its digest.
	reads map[string]int64
	// around is what answers before the registry does.
	around func(http.Handler) http.Handler

	handler http.Handler
}

// Start runs a registry until the test ends.
func Start(t testing.TB, options ...registry.Option) *Registry {
	t.Helper()
	return StartAt(t, "127.0.0.1", options...)
}

// StartAt runs one at an address of this machine, with or without a port, so that others reach it.
func StartAt(t testing.TB, address string, options ...registry.Option) *Registry {
	t.Helper()
	r := &Registry{handler: registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...), reads: map[string]int64{}}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, "0")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	server.Listener.Close() //nolint:errcheck // it was not used
	server.Listener = listener
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			r.connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// Connections counts the connections that were made so far, also those without a request.
func (r *Registry) Connections() int64 { return r.connections.Load() }

// ReadsOf counts how often a blob was asked for.
func (r *Registry) ReadsOf(digest string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads[digest]
}

// Around has whoever is let in pass something that may answer in the registry's place, until the next call. Nil: nothing.
func (r *Registry) Around(f func(http.Handler) http.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.around = f
}

func (r *Registry) answerer() http.Handler {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.around == nil {
		return r.handler
	}
	return r.around(r.handler)
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	r.Requests.Add(1)
	user, password, _ := req.BasicAuth()
	private := req.URL.Path == "/v2/" || strings.HasPrefix(req.URL.Path, "/v2/private/")
	switch {
	case r.Down.Load():
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case private && req.URL.Path != "/v2/" && (user != User || password != Password):
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`)
		return
	case req.URL.Path == "/v2/" && user == "":
		// The question how to authenticate; whoever has nothing to say is let in as nobody.
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	case req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/"):
		r.Reads.Add(1)
		r.mu.Lock()
		r.reads[path.Base(req.URL.Path)]++
		r.mu.Unlock()
	}
	r.answerer().ServeHTTP(w, req)
}

// Lie starts a mirror of the registry until the test ends, which says what it pleases where it is asked for a blob. It returns the mirror's
// host and counts how often it was asked for one.
func (r *Registry) Lie(t testing.TB, lie func(w http.ResponseWriter, body []byte)) (host string, lies *atomic.Int64) {
	lies = &atomic.Int64{}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.Contains(req.URL.Path, "/blobs/") {
			r.handler.ServeHTTP(w, req)
			return
		}
		lies.Add(1)
		said := httptest.NewRecorder()
		r.handler.ServeHTTP(said, req)
		lie(w, said.Body.Bytes())
	}))
	t.Cleanup(mirror.Close)
	return mirror.Listener.Addr().String(), lies
}

// Flipped is a lie for Lie: each byte is another one.
func Flipped(w http.ResponseWriter, body []byte) {
	for i := range body {
		body[i] ^= 1
	}
	_, _ = w.Write(body)
}

// Descriptor names content of the registry in a manifest.
type Descriptor struct {
	MediaType    string `json:"mediaType"`
	Digest       string `json:"digest"`
	Size         int64  `json:"size"`
	ArtifactType string `json:"artifactType,omitempty"`

	Annotations map[string]string `json:"annotations,omitempty"`
}

// Manifest is an image manifest or, with Manifests, an index.
type Manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	ArtifactType  string       `json:"artifactType,omitempty"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers,omitempty"`
	Manifests     []Descriptor `json:"manifests,omitempty"`
}

// Bitstream is a bitstream as its artifact in a registry has it.
type Bitstream struct {
	// Config is the artifact's config, in JSON.
	Config string
	// Format is that of File.
	Format fpga.Format
	File   []byte
}

// Push puts a bitstream's artifact in its usual form into the repository and gives its manifest's descriptor. No tag leaves it untagged.
func (r *Registry) Push(t testing.TB, repository, tag string, b Bitstream) Descriptor {
	t.Helper()
	config := r.Blob(t, repository, fpga.ConfigType, []byte(b.Config))
	return r.Manifest(t, repository, tag, Manifest{
		ArtifactType: fpga.ArtifactType, Config: &config, Layers: []Descriptor{r.Blob(t, repository, b.Format.LayerType(), b.File)},
	})
}

// Blob puts a blob.
func (r *Registry) Blob(t testing.TB, repository, mediaType string, data []byte) Descriptor {
	t.Helper()
	d := Descriptor{MediaType: mediaType, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Size: int64(len(data))}
	r.send(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+d.Digest, "application/octet-stream", data)
	return d
}

// Manifest puts a manifest as it is, but for the version and the media type of the whole.
func (r *Registry) Manifest(t testing.TB, repository, tag string, m Manifest) Descriptor {
	t.Helper()
	m.SchemaVersion, m.MediaType = 2, ManifestType
	if m.Manifests != nil {
		m.MediaType = IndexType
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := Descriptor{MediaType: m.MediaType, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Size: int64(len(data))}
	if tag == "" {
		tag = d.Digest
	}
	r.Raw(t, repository, tag, m.MediaType, data)
	return d
}

// Raw puts a manifest byte by byte, under a tag or its digest.
func (r *Registry) Raw(t testing.TB, repository, reference, mediaType string, data []byte) {
	t.Helper()
	r.send(t, http.MethodPut, "/v2/"+repository+"/manifests/"+reference, mediaType, data)
}

// send hands a request to the registry itself, whether it is down or not.
func (r *Registry) send(t testing.TB, method, path, mediaType string, data []byte) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(data))
	req.Header.Set("Content-Type", mediaType)
	answer := httptest.NewRecorder()
	if r.handler.ServeHTTP(answer, req); answer.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, answer.Code, answer.Body)
	}
}

// Delete removes a tag.
func (r *Registry) Delete(t testing.TB, repository, tag string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/v2/"+repository+"/manifests/"+tag, http.NoBody)
	answer := httptest.NewRecorder()
	if r.handler.ServeHTTP(answer, req); answer.Code != http.StatusAccepted {
		t.Fatalf("delete %s:%s: %d %s", repository, tag, answer.Code, answer.Body)
	}
}

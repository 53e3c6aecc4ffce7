// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// write makes a file in a directory of its own.
func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRead gives the content of the files to those who get them by another way, under names that they have everywhere.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "registries.yaml")
	for _, test := range []struct {
		content string
		want    Files
	}{
		{"{}\n", Files{}},
		{"# plainHTTP: [a.example]\n", Files{}},
		{"plainHTTP: [\"a.example:5000\"]\n", Files{Config: "plainHTTP:\n- a.example:5000\n"}},
		{"mirrors: {docker.io: [b.example]}\n", Files{Config: "mirrors:\n  docker.io:\n  - b.example\n"}},
		{"caFile: own.pem\n", Files{Config: "caFile: ca.crt\n", Authorities: "PEM"}},
		{"caFile: " + filepath.Join(dir, "own.pem") + "\n", Files{Config: "caFile: ca.crt\n", Authorities: "PEM"}},
	} {
		for name, content := range map[string]string{file: test.content, filepath.Join(dir, "own.pem"): "PEM"} {
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadFiles(file)
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", test.content, err, diff)
		}
	}
	if got, err := ReadFiles(""); err != nil || got != (Files{}) {
		t.Errorf("no file: got %v, %v", got, err)
	}
	for _, content := range []string{"insecure: true\n", "caFile: never.pem\n"} {
		if _, err := ReadFiles(write(t, content)); err == nil || !strings.Contains(err.Error(), "registries.yaml") {
			t.Errorf("%s: got %v", content, err)
		}
	}
}

func TestLoad(t *testing.T) {
	for _, test := range []struct {
		name, content string
		want          Config
		wantErr       string
	}{
		{name: "nothing"},
		{name: "empty object", content: "{}\n"},
		{
			name: "everything", content: "plainHTTP: [a.example:5000]\nmirrors:\n  docker.io: [b.example/cache, c.example]\n",
			want: Config{
				PlainHTTP: []string{"a.example:5000"}, Mirrors: Mirrors{"docker.io": {{Host: "b.example/cache"}, {Host: "c.example"}}},
			},
		},
		{name: "unknown field", content: "insecure: true\n", wantErr: "registries.yaml: expected plainHTTP, mirrors, mirrorsOnly, caFile"},
		{name: "twice", content: "caFile: a\ncaFile: b\n", wantErr: "expected plainHTTP, mirrors, mirrorsOnly, caFile"},
		{name: "no certificates there", content: "caFile: never.crt\n", wantErr: "caFile: open "},
		{name: "no certificate in it", content: "caFile: registries.yaml\n", wantErr: "caFile: expected PEM certificates, found none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := LoadConfig(write(t, test.content))
			if test.wantErr != "" {
				check.WantErr(t, err, nil, test.wantErr)
				return
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	if got, err := LoadConfig(""); err != nil || cmp.Diff(Config{}, got) != "" {
		t.Errorf("no file: %+v, %v", got, err)
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "never")); err == nil {
		t.Error("a file that is not there: no error")
	}
}

// TestAuthority: a server whose authority is in the file is believed, and only then.
func TestAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer server.Close()
	path := write(t, "caFile: ca.crt\n")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.crt"), block, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		transport http.RoundTripper
		works     bool
	}{"with the file": {config.Transport, true}, "without": {http.DefaultTransport, false}} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		req.RequestURI = ""
		answer, err := test.transport.RoundTrip(req)
		if err == nil {
			answer.Body.Close()
		}
		if (err == nil) != test.works {
			t.Errorf("%s: %v", name, err)
		}
	}
}

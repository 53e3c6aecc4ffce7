// SPDX-License-Identifier: Apache-2.0

package registryname

import "testing"

func TestHost(t *testing.T) {
	for in, want := range map[string]string{
		"registry.example":             "registry.example",
		"Registry.Example":             "registry.example",
		"registry.example:443":         "registry.example",
		"registry.example:0443":        "registry.example",
		"registry.example:80":          "registry.example",
		"registry.example:00080":       "registry.example",
		"registry.example:05000":       "registry.example:5000",
		"registry.example:4430":        "registry.example:4430",
		"index.docker.io":              "docker.io",
		"INDEX.docker.io:443":          "docker.io",
		"registry-1.docker.io":         "docker.io",
		"docker.io:443":                "docker.io",
		"localhost:5000":               "localhost:5000",
		"10.0.0.1:443":                 "10.0.0.1",
		"[::1]":                        "[::1]",
		"[0:0:0:0:0:0:0:1]:0443":       "[::1]",
		"[2001:DB8:0::1]:5000":         "[2001:db8::1]:5000",
		"[::ffff:10.0.0.1]:5000":       "10.0.0.1:5000",
		"*.example:443":                "*.example",
		"**":                           "**",
		"registry.example:0":           "registry.example:0",
		"registry.example:+443":        "registry.example:+443",
		"registry.example:99999":       "registry.example:99999",
		"registry.example:99999999999": "registry.example:99999999999",
		"registry.example:":            "registry.example:",
	} {
		if got := Host(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		if got := Host(want); got != want {
			t.Errorf("%q, which is canonical, became %q", want, got)
		}
	}
}

func TestValid(t *testing.T) {
	for host, want := range map[string]bool{
		"registry.example": true, "a_b.svc:5000": true, "[2001:db8::1]:5000": true, "10.0.0.1": true, "h:65535": true,
		"": false, "h:0": false, "h:65536": false, "h:99999": false, "h:": false, "h:+1": false, "h:05000": false, "-h": false, "h.": false,
		"a/b": false, "[::1": false, "H": false, "h:5000:1": false,
	} {
		if got := Valid(host); got != want {
			t.Errorf("%q is valid: %t, want %t", host, got, want)
		}
	}
}

func TestRepository(t *testing.T) {
	for in, want := range map[string]string{
		"Registry.Example:0443/team/Cache": "registry.example/team/Cache",
		"index.docker.io/library/*":        "docker.io/library/*",
		"registry.example:443":             "registry.example",
		"**":                               "**",
		"**:443/x:443":                     "**/x:443",
	} {
		if got := Repository(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// FuzzHost: a canonical host is its own canonical form, whatever it was made of.
func FuzzHost(f *testing.F) {
	for _, seed := range []string{"h:0443", "[::FFFF:1.2.3.4]:80", "index.docker.io:80", "a:1:2", "[x]:1", "h:00", ":80:80", "h:80:443"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if once := Host(s); Host(once) != once {
			t.Errorf("%q became %q, then %q", s, once, Host(once))
		}
	})
}

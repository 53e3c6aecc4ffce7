// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

func secret(entries ...string) []byte {
	return []byte(`{"auths":{` + strings.Join(entries, ",") + `}}`)
}

// credentials are those of files with the names pull secret 1, 2 and so on.
func credentials(dockerconfigjson ...[]byte) (*Keychain, error) {
	var configs []DockerConfig
	for i, data := range dockerconfigjson {
		configs = append(configs, DockerConfig{Name: fmt.Sprintf("pull secret %d", i+1), Data: data})
	}
	return NewKeychain(configs...)
}

func login(key, user string) string {
	return fmt.Sprintf(`%q:{"auth":%q}`, key, base64.StdEncoding.EncodeToString([]byte(user+":pass:word")))
}

func TestCredentials(t *testing.T) {
	keys, err := credentials(
		secret(login("quay.io", "host"), login("quay.io/org", "org"), login("quay.io/org/cache", "cache"), login("*.corp.example", "glob")),
		secret(login("https://index.docker.io/v1/", "hub"), login("a.corp.example", "exact"), login("quay.io", "later"),
			login("reg.example:5000", "port"), `"[2001:db8::1]:5000":{"username":"six","password":"p","email":"ignored"}`,
			`"token.example":{"identitytoken":"refresh"}`, `"bearer.example":{"registrytoken":"tok"}`),
	)
	check.Must(t, err)
	for target, want := range map[string]string{
		"quay.io/x/y": "host", "quay.io/org/x": "org", "quay.io/org": "org", "quay.io/organic/x": "host", "quay.io/org/cache": "cache",
		"quay.io/org/cache/deep": "cache", "busybox": "hub", "docker.io/library/busybox": "hub", "a.corp.example/x": "exact",
		"b.corp.example/x": "glob", "b.c.corp.example/x": "", "corp.example/x": "", "reg.example/x": "", "reg.example:5000/x": "port",
		"evilquay.io/org/x": "", "quay.io.evil.example/org/x": "", "[2001:db8::1]:5000/x": "six",
	} {
		repository, err := name.NewRepository(target)
		check.Must(t, err)
		auth, err := keys.Resolve(repository)
		check.Must(t, err)
		config, err := auth.Authorization()
		check.Must(t, err)
		if config.Username != want {
			t.Errorf("%s: got user %q, want %q", target, config.Username, want)
		}
		if want != "" && want != "six" && config.Password != "pass:word" {
			t.Errorf("%s: got password %q", target, config.Password)
		}
	}
	for target, want := range map[string]authn.AuthConfig{
		"token.example": {IdentityToken: "refresh"}, "bearer.example": {RegistryToken: "tok"},
	} {
		registry, err := name.NewRegistry(target)
		check.Must(t, err)
		auth, err := keys.Resolve(registry)
		check.Must(t, err)
		got, err := auth.Authorization()
		check.Must(t, err)
		if diff := gocmp.Diff(want, *got); diff != "" {
			t.Error(target, diff)
		}
	}
}

func TestCredentialsRefuses(t *testing.T) {
	for in, word := range map[string]string{
		"":                                          "JSON",
		`{"auths":{"a.b":"hunter2"}}`:               "JSON",
		`{"auths":{"a.b":{"auth":12345678}}}`:       "JSON",
		`{"quay.io":{"auth":"aHVudGVyMg=="}}`:       `"auths"`,
		`{"credsStore":"desktop"}`:                  `"auths"`,
		`{"auths":{"a.b":{"auth":"hunter2"}}}`:      "a.b",
		`{"auths":{"a.b":{"auth":"aHVudGVyMg=="}}}`: "base64",
		`{"auths":{"a.b":{}}}`:                      "username",
		`{"auths":{"a.b":{"username":"hunter2"}}}`:  "username",
		`{"auths":{"a.b":{"username":"x","password":"hunter2"}},"auths":{}}`: "once",
		`{"auths":{"":{"username":"x","password":"hunter2"}}}`:               "host",
		`{"auths":{"a b\n":{"username":"x","password":"hunter2"}}}`:          "host",
		`{"auths":{"[a.b":{"username":"x","password":"hunter2"}}}`:           "host",
		`{"auths":{"file:///etc":{"username":"x","password":"hunter2"}}}`:    "host",
	} {
		_, err := credentials(secret(), []byte(in))
		if err == nil {
			t.Errorf("read: %s", in)
			continue
		}
		wantErr(t, err, artifact.ErrInvalid, "pull secret 2", word)
		for _, leak := range []string{"hunter2", "aHVudGVyMg", "12345678"} {
			if strings.Contains(err.Error(), leak) {
				t.Errorf("the error tells the secret: %v", err)
			}
		}
	}
	_, err := credentials(make([]byte, maxCredentials+1))
	wantErr(t, err, artifact.ErrTooLarge)
}

// TestOneBadEntry: whichever entry of a file cannot be used, the others count, and only registries that it alone is for are told.
func TestOneBadEntry(t *testing.T) {
	random := seed.New(t)
	bad := []string{
		`{}`, `"hunter2"`, `{"auth":12345678}`, `{"auth":"hunter2"}`, `{"auth":"aHVudGVyMg=="}`, `{"username":"hunter2"}`,
		`{"auth":"dTpw","auth":"aHVudGVyMg=="}`, `null`,
	}
	for range 200 {
		want := map[string]string{} // from a registry to the user, or to nobody
		var entries []string
		for i := range 2 + random.IntN(4) {
			host := fmt.Sprintf("r%d.example", i)
			if i > 0 && random.IntN(2) == 0 {
				entries, want[host] = append(entries, fmt.Sprintf("%q:%s", host, bad[random.IntN(len(bad))])), ""
				continue
			}
			entries, want[host] = append(entries, login(host, host)), host
		}
		if random.IntN(2) == 0 {
			entries = append(entries, `"no host":{}`)
		}
		random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		file := secret(entries...)
		keys, err := credentials(file)
		check.Must(t, err)
		for host, user := range want {
			checkUser(t, keys, host, user)
		}
		backed, err := credentials(file, secret(login("*.example", "other")))
		check.Must(t, err)
		for host, user := range want {
			checkUser(t, backed, host, cmp.Or(user, "other"))
		}
	}
}

// checkUser fails unless the keys have the user for a registry, or an error about the entry if the user is empty.
func checkUser(t *testing.T, keys *Keychain, host, user string) {
	t.Helper()
	registry, err := name.NewRegistry(host)
	check.Must(t, err)
	auth, err := keys.Resolve(registry)
	if user == "" {
		wantErr(t, err, artifact.ErrInvalid, "pull secret 1", host, "expected")
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "12345678") {
			t.Errorf("the error tells the secret: %v", err)
		}
		return
	}
	check.Must(t, err)
	config, err := auth.Authorization()
	check.Must(t, err)
	if config.Username != user {
		t.Errorf("%s: got user %q, want %q", host, config.Username, user)
	}
}

func TestNewClientRefuses(t *testing.T) {
	for _, c := range []Config{
		{PlainHTTP: []string{"http://a.b"}},
		{PlainHTTP: []string{""}},
		{Mirrors: Mirrors{"a/b": nil}},
		{Mirrors: Mirrors{"a.b": {{Host: "https://c.d"}}}},
		{Mirrors: Mirrors{"a.b": {{Host: "c.d/../e"}}}},
		{Mirrors: Mirrors{"a.b": {{Host: ""}}}},
	} {
		_, err := NewClient(c)
		wantErr(t, err, artifact.ErrInvalid, "HOST")
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add(secret(login("quay.io/org", "u"), login("*.b.c:1", "v")))
	f.Add([]byte(`{"auths":{"[::1]":{"identitytoken":"x"}}}`))
	target, err := name.NewRepository("quay.io/org/x")
	check.Must(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := NewKeychain(DockerConfig{Data: data, Legacy: true}); err != nil && artifact.IsRetryable(err) {
			t.Error(err)
		}
		keys, err := credentials(data)
		if err != nil {
			if artifact.IsRetryable(err) {
				t.Error(err)
			}
			return
		}
		if _, err := keys.Resolve(target); err != nil && !errors.Is(err, artifact.ErrInvalid) {
			t.Error(err)
		}
	})
}

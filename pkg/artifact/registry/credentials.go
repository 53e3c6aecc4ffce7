// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// maxCredentials is the size of the largest Secret in Kubernetes.
const maxCredentials = 1 << 20

// Keychain holds credentials for registries. It implements authn.Keychain of go-containerregistry.
type Keychain struct {
	entries []credential
}

// credential is one entry of a secret.
type credential struct {
	host, path string
	auth       authn.AuthConfig
	// err says what is wrong with an entry that cannot be used. It matters only for registries that no other entry is for.
	err error
}

type wireCredentials struct {
	Auths map[string]json.RawMessage `json:"auths"`
}

type wireAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// DockerConfig is a file of credentials, as docker login writes it.
type DockerConfig struct {
	// Name identifies the file in errors.
	Name string
	Data []byte
	// Legacy means the form of .dockercfg, which has the registries at the top and not in "auths".
	Legacy bool
}

// NewKeychain decodes credentials. As in kubelet, a key may be a host, a host with a path that repositories begin with, and a host in which
// * stands for part of a label. The longest path counts, then a host without *, then the earlier file. Errors never say what a file holds.
//
// An entry that cannot be used keeps the others of its file in use. Resolve returns its error for the registries that it is for. A file
// without any entry that can be used is an error.
func NewKeychain(configs ...DockerConfig) (*Keychain, error) {
	keys := &Keychain{}
	for _, config := range configs {
		entries, err := config.entries()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", config.Name, err)
		}
		keys.entries = append(keys.entries, entries...)
	}
	slices.SortStableFunc(keys.entries, func(a, b credential) int {
		if len(a.path) != len(b.path) {
			return len(b.path) - len(a.path)
		}
		return strings.Count(a.host, "*") - strings.Count(b.host, "*")
	})
	return keys, nil
}

func (c DockerConfig) entries() ([]credential, error) {
	auths, err := c.auths()
	if err != nil {
		return nil, err
	}
	var entries []credential
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(auths)) {
		entry := credential{}
		if entry.host, entry.path = splitKey(key); !validHost(entry.host) {
			errs = append(errs, fmt.Errorf("key %s in auths is %w: expected a registry's host name", quote(key), artifact.ErrInvalid))
			continue
		}
		if entry.auth, err = parseAuth(auths[key]); err != nil {
			err = fmt.Errorf("auths for %s: %w", quote(key), err)
			errs = append(errs, err)
			entry.err = fmt.Errorf("%s: %w", c.Name, err)
		}
		entries = append(entries, entry)
	}
	if len(errs) > 0 && len(errs) == len(auths) {
		return nil, errors.Join(errs...)
	}
	return entries, nil
}

// auths decodes the file. Its errors leave out the decoder's message, which may quote the secret.
func (c DockerConfig) auths() (map[string]json.RawMessage, error) {
	if len(c.Data) > maxCredentials {
		return nil, fmt.Errorf("it is %w: %d bytes, expected at most %d", artifact.ErrTooLarge, len(c.Data), maxCredentials)
	}
	var wire wireCredentials
	var into any = &wire
	form := `{"auths":{"REGISTRY":{"auth":"..."}}}`
	if c.Legacy {
		into, form = &wire.Auths, `{"REGISTRY":{"auth":"..."}}`
	}
	repeated, err := kjson.UnmarshalStrict(c.Data, into, kjson.DisallowDuplicateFields)
	if err != nil || len(repeated) > 0 || wire.Auths == nil {
		return nil, fmt.Errorf("it is %w: expected JSON like %s with each key once; make it with kubectl create secret docker-registry",
			artifact.ErrInvalid, form)
	}
	return wire.Auths, nil
}

// splitKey splits a key into host and path. It removes what only Docker's own client uses: a scheme, and the API version at the end.
func splitKey(key string) (host, prefix string) {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, prefix, _ = strings.Cut(key, "/")
	prefix = strings.Trim(prefix, "/")
	if prefix == "v1" || prefix == "v2" {
		prefix = ""
	}
	return registryname.Host(host), prefix
}

func validHost(host string) bool { return registryname.Valid(strings.ReplaceAll(host, "*", "x")) }

// parseAuth reads one entry. Its errors leave out the decoder's message, which may quote the secret.
func parseAuth(data []byte) (authn.AuthConfig, error) {
	var w wireAuth
	repeated, err := kjson.UnmarshalStrict(data, &w, kjson.DisallowDuplicateFields)
	if err != nil || len(repeated) > 0 {
		return authn.AuthConfig{}, fmt.Errorf(`the entry is %w: expected JSON like {"auth":"..."} with each key once`, artifact.ErrInvalid)
	}
	return w.config()
}

func (w wireAuth) config() (authn.AuthConfig, error) {
	c := authn.AuthConfig{Username: w.Username, Password: w.Password, IdentityToken: w.IdentityToken, RegistryToken: w.RegistryToken}
	if w.Auth != "" {
		text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(w.Auth), "="))
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return c, fmt.Errorf("auth is %w: expected the base64 of USER:PASSWORD", artifact.ErrInvalid)
		}
		c.Username, c.Password = user, strings.TrimRight(password, "\x00")
	}
	if c.Password == "" && c.IdentityToken == "" && c.RegistryToken == "" {
		return c, fmt.Errorf("the entry is %w: expected auth, username and password, or a token", artifact.ErrInvalid)
	}
	return c, nil
}

// Resolve returns the credentials for a registry or repository. If no key matches, requests are anonymous. If only entries match that
// cannot be used, their error says more than the registry would say to an anonymous request.
func (k *Keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	host, repository, _ := strings.Cut(target.String(), "/")
	host = registryname.Host(host)
	var errs []error
	for i := range k.entries {
		switch c := &k.entries[i]; {
		case !matchHost(c.host, host) || !matchPath(c.path, repository):
		case c.err != nil:
			errs = append(errs, c.err)
		default:
			return authn.FromConfig(c.auth), nil
		}
	}
	return authn.Anonymous, errors.Join(errs...)
}

// matchHost compares label by label, so * never matches a dot.
func matchHost(pattern, host string) bool {
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(patterns) != len(labels) {
		return false
	}
	for i := range patterns {
		if ok, err := path.Match(patterns[i], labels[i]); err != nil || !ok {
			return pattern == host // an IPv6 address has brackets
		}
	}
	return true
}

func matchPath(prefix, repository string) bool {
	return prefix == "" || repository == prefix || strings.HasPrefix(repository, prefix+"/")
}

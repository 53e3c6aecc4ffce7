// SPDX-License-Identifier: Apache-2.0

package pullsecret

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// password is what no error may say.
const password = "hunter2"

func login(host, user string) string {
	return fmt.Sprintf(`%q:{"auth":%q}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

func secret(of corev1.SecretType, key, data string) *corev1.Secret {
	return &corev1.Secret{Type: of, Data: map[string][]byte{key: []byte(data)}}
}

func modern(data string) *corev1.Secret {
	return secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, data)
}

func legacy(data string) *corev1.Secret {
	return secret(corev1.SecretTypeDockercfg, corev1.DockerConfigKey, data)
}

// TestRead is the table of the rules. The Secret "good" is there in each case, and is named first.
func TestRead(t *testing.T) {
	resource := schema.GroupResource{Resource: "secrets"}
	invalid, tooLarge := artifact.ErrInvalid, artifact.ErrTooLarge
	unreachable := errors.New("connection refused")
	for name, test := range map[string]struct {
		secret *corev1.Secret
		err    error
		// user is the one for b.example, where the secret can be used.
		user string
		// kind and words are of the error, where it cannot.
		kind  error
		words []string
	}{
		"dockerconfigjson": {secret: modern(`{"auths":{` + login("b.example", "b") + `}}`), user: "b"},
		"dockercfg":        {secret: legacy(`{` + login("https://b.example/v1/", "b") + `}`), user: "b"},
		"no entries":       {secret: modern(`{"auths":{}}`), user: ""},
		"the first counts": {secret: modern(`{"auths":{` + login("a.example", "other") + `}}`), user: ""},
		"missing": {
			err:  apierrors.NewNotFound(resource, "x"),
			kind: ErrUnusable, words: []string{"there is no Secret", "kubectl create secret docker-registry"},
		},
		"forbidden": {
			err:  apierrors.NewForbidden(resource, "x", errors.New("no rule")),
			kind: ErrUnusable, words: []string{"may not be read", "bitstreams.pullSecretNamespaces"},
		},
		"trouble": {err: unreachable, kind: unreachable, words: []string{"read Secret"}},
		"opaque with the right key": {
			secret: secret(corev1.SecretTypeOpaque, corev1.DockerConfigJsonKey, `{"auths":{`+login("b.example", "b")+`}}`),
			kind:   ErrUnusable, words: []string{"is of type Opaque", "kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg", "kubectl create"},
		},
		"a service account's": {
			secret: secret(corev1.SecretTypeServiceAccountToken, "token", password),
			kind:   ErrUnusable, words: []string{"is of type kubernetes.io/service-account-token"},
		},
		"no type": {secret: secret("", "x", password), kind: ErrUnusable, words: []string{"is of type , expected"}},
		"other key": {
			secret: secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigKey, `{`+login("b.example", "b")+`}`),
			kind:   ErrUnusable, words: []string{"has no key .dockerconfigjson", "kubectl create"},
		},
		"legacy with the other key": {
			secret: secret(corev1.SecretTypeDockercfg, corev1.DockerConfigJsonKey, `{"auths":{}}`),
			kind:   ErrUnusable, words: []string{"has no key .dockercfg"},
		},
		"empty":          {secret: modern(""), kind: invalid, words: []string{"key .dockerconfigjson", `{"auths":`}},
		"no JSON":        {secret: modern(password), kind: invalid, words: []string{"expected JSON"}},
		"no auths":       {secret: modern(`{` + login("b.example", "b") + `}`), kind: invalid, words: []string{`{"auths":`}},
		"twice":          {secret: modern(`{"auths":{},"auths":{}}`), kind: invalid, words: []string{"each key once"}},
		"no credentials": {secret: modern(`{"auths":{"b.example":{}}}`), kind: invalid, words: []string{`"b.example"`, "expected auth"}},
		"not base64":     {secret: modern(`{"auths":{"b.example":{"auth":"` + password + `"}}}`), kind: invalid, words: []string{"base64"}},
		"legacy, auths around": {
			secret: legacy(`{"auths":{` + login("b.example", "b") + `}}`), kind: invalid, words: []string{"key .dockercfg", `"auths"`},
		},
		"null":          {secret: modern("null"), kind: invalid, words: []string{`{"auths":`}},
		"legacy, null":  {secret: legacy("null"), kind: invalid, words: []string{`{"REGISTRY":`}},
		"legacy, twice": {secret: legacy(`{` + login("b.example", "b") + `,` + login("b.example", "b") + `}`), kind: invalid},
		"too large":     {secret: modern(`{"auths":{` + strings.Repeat(" ", 1<<20) + `}}`), kind: tooLarge, words: []string{"at most"}},
	} {
		t.Run(name, func(t *testing.T) {
			get := func(_ context.Context, namespace, name string) (*corev1.Secret, error) {
				if namespace != "team-a" {
					t.Errorf("asked for namespace %q", namespace)
				}
				if name == "good" {
					return modern(`{"auths":{` + login("a.example", "a") + `}}`), nil
				}
				return test.secret, test.err
			}
			keys, err := Read(t.Context(), get, "team-a", []string{"good", "x"})
			if test.kind == nil {
				if err != nil {
					t.Fatal(err)
				}
				if got := userOf(t, keys, "a.example/x"); got != "a" {
					t.Errorf("a.example: got user %q, want a", got)
				}
				if got := userOf(t, keys, "b.example/x"); got != test.user {
					t.Errorf("b.example: got user %q, want %q", got, test.user)
				}
				return
			}
			if !errors.Is(err, test.kind) || errors.Is(err, ErrUnusable) == errors.Is(test.kind, unreachable) {
				t.Fatalf("got %v, want %v", err, test.kind)
			}
			for _, word := range append(test.words, "team-a/x") {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
			if encoded := base64.StdEncoding.EncodeToString([]byte("b:" + password)); strings.Contains(err.Error(), password) ||
				strings.Contains(err.Error(), encoded) {
				t.Errorf("the error tells the secret: %v", err)
			}
		})
	}
}

// TestReadNone: without names no Secret is asked for, and requests are anonymous.
func TestReadNone(t *testing.T) {
	keys, err := Read(t.Context(), nil, "team-a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := userOf(t, keys, "a.example/x"); got != "" {
		t.Errorf("got user %q, want none", got)
	}
}

func userOf(t *testing.T, keys authn.Keychain, repository string) string {
	t.Helper()
	target, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	auth, err := keys.Resolve(target)
	if err != nil {
		t.Fatal(err)
	}
	config, err := auth.Authorization()
	if err != nil {
		t.Fatal(err)
	}
	return config.Username
}

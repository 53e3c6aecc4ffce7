// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// Ids of a shell and of two accelerators.
const (
	shell = "69528db6eb31577a8c3668f9faa081f6"
	nlb0  = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3  = "f7df405cbd7acf7222f144b0b93acd18"
)

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// shelf is a node's store, a registry and an API server that has secrets.
type shelf struct {
	*fpgaregistry.Registry
	*Node
	t    *testing.T
	kube *fake.Clientset
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{Registry: fpgaregistry.Start(t), t: t, kube: fake.NewClientset()}
	// Each thing is asked for once, so that what a registry does to one try is seen.
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{s.Host}, Tries: 1, Backoff: time.Millisecond, MaxWait: time.Millisecond,
	})
	check.Must(t, err)
	s.Node = New(Config{Dir: filepath.Join(t.TempDir(), "artifacts"), Client: client, Kube: s.kube})
	t.Cleanup(func() { check.Must(t, s.Destroy()) })
	return s
}

// restart begins the plugin's next process on the node.
func (s *shelf) restart() {
	s.t.Helper()
	check.Must(s.t, s.opened.Close())
	s.Node = New(s.Config)
}

// kinds are the steps that keep files.
func (s *shelf) kinds() step.Kinds { return step.Kinds{pin.StepKind: pin.Kind(s.Store)} }

// file says how to fetch an image.
func (s *shelf) file(repository string, image v1alpha1.BitstreamImage, secrets ...string) *pin.Params {
	return &pin.Params{
		Reference: s.Host + "/" + repository + "@" + image.Manifest, Digest: image.Layer, Size: image.Size, SecretsIn: "team-a", Secrets: secrets,
	}
}

func stepOf(t *testing.T, p *pin.Params, owner string) step.Step {
	t.Helper()
	made, err := p.Step(owner)
	check.Must(t, err)
	return made
}

// wantPins compares the owners of a file's pins.
func (s *shelf) wantPins(digest string, want ...string) {
	s.t.Helper()
	d, err := artifact.ParseDigest(digest)
	check.Must(s.t, err)
	store, err := s.Store()
	check.Must(s.t, err)
	owners, err := store.Pins(d)
	check.Must(s.t, err)
	if diff := cmp.Diff(want, owners); diff != "" {
		s.t.Errorf("pins (-want +got):\n%s", diff)
	}
}

// content is a file of the store, as steps open it.
func (s *shelf) content(digest string) []byte {
	s.t.Helper()
	blob, err := s.Open(digest)
	check.Must(s.t, err)
	defer blob.Close()
	data := make([]byte, blob.Size())
	_, err = blob.ReadAt(data, 0)
	check.Must(s.t, err)
	return data
}

// wants an error, of a cause unless that is nil, which says some words.
func wants(t testing.TB, err, cause error, words ...string) {
	t.Helper()
	if err == nil || cause != nil && !errors.Is(err, cause) {
		t.Errorf("got %v, want %v %q", err, cause, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: does not say %q", err, w)
		}
	}
}

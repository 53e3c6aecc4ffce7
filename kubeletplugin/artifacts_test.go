// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// another is the plugin's next process on the node.
func (l *lab) another() *artifacts {
	l.t.Helper()
	must(l.t, l.artifacts.opened.Close())
	next := &artifacts{dir: l.artifacts.dir, client: l.client(), kube: l.artifacts.kube}
	l.artifacts.opened, l.artifacts = nil, next
	l.t.Cleanup(func() { must(l.t, next.destroy()) })
	return next
}

func (l *lab) fetchStep(repository string, image v1alpha1.BitstreamImage, secrets ...string) step.Step {
	l.t.Helper()
	p := fetchParams{
		Reference: l.host + "/" + repository + "@" + image.Manifest, Digest: image.Layer, Size: image.Size, SecretsIn: "team-a", Secrets: secrets,
	}
	s, err := p.step("u1")
	must(l.t, err)
	return s
}

// pins are who keeps a file.
func pins(t *testing.T, a *artifacts, digest string) []string {
	t.Helper()
	d, err := artifact.ParseDigest(digest)
	must(t, err)
	store, err := a.store()
	must(t, err)
	owners, err := store.Pins(d)
	must(t, err)
	return owners
}

func wantPins(t *testing.T, a *artifacts, digest string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, pins(t, a, digest)); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
}

// content is a file of the store, as steps open it.
func content(t *testing.T, a *artifacts, digest string) []byte {
	t.Helper()
	blob, err := a.open(digest)
	must(t, err)
	defer blob.Close()
	data := make([]byte, blob.Size())
	_, err = blob.ReadAt(data, 0)
	must(t, err)
	return data
}

// TestFetchStep: the file is there and kept for the claim until it is given back, for every claim that needs it; it is asked for once, and
// a later process has it, too.
func TestFetchStep(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	s := l.fetchStep("team/nlb0", image)
	if s.Kind != fetchKind || s.Target != image.Layer {
		t.Errorf("step %s", s)
	}
	kinds := step.Kinds{fetchKind: l.artifacts.kind()}
	wants(t, kinds.Verify(t.Context(), s), fs.ErrNotExist, "fetch it first")
	must(t, kinds.Apply(t.Context(), s))
	must(t, kinds.Verify(t.Context(), s))
	wantPins(t, l.artifacts, image.Layer, "u1")
	if got := digestOf(content(t, l.artifacts, image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
	reads := l.Reads.Load()

	p := fetchParams{Reference: l.host + "/team/nlb0@" + image.Manifest, Digest: image.Layer, Size: image.Size}
	second, err := p.step("u2")
	must(t, err)
	kinds = step.Kinds{fetchKind: l.another().kind()}
	l.Down.Store(true)
	must(t, kinds.Apply(t.Context(), s))
	must(t, kinds.Apply(t.Context(), second))
	wantPins(t, l.artifacts, image.Layer, "u1", "u2")
	if l.Reads.Load() != reads {
		t.Errorf("it was asked for %d times", l.Reads.Load())
	}
	for range 2 { // undoing twice is undoing once
		must(t, kinds.Undo(t.Context(), s))
		wantPins(t, l.artifacts, image.Layer, "u2")
	}
	must(t, kinds.Undo(t.Context(), second))
	wantPins(t, l.artifacts, image.Layer)
	must(t, kinds.Verify(t.Context(), s)) // the next claim finds it
}

// TestFetchFails: a registry that fails, or sends other bytes, leaves no file that anybody would open; and the same step succeeds when it
// is well again.
func TestFetchFails(t *testing.T) {
	more := append(gbs(shell, nlb0), 0)
	for _, tc := range []struct {
		name   string
		cause  error
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		{"overloaded", artifact.ErrUnavailable, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }},
		{"gone", artifact.ErrNotFound, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }},
		{"refused", artifact.ErrUnauthorized, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }},
		{"other bytes", artifact.ErrMismatch, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(gbs(shell, nlb3)) }},
		{"more bytes", artifact.ErrMismatch, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(more) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t)
			image := l.image("team/nlb0", shell, nlb0)
			s := l.fetchStep("team/nlb0", image)
			kinds := step.Kinds{fetchKind: l.artifacts.kind()}
			l.intercept(image.Layer, tc.answer)
			wants(t, kinds.Apply(t.Context(), s), tc.cause)
			wants(t, kinds.Verify(t.Context(), s), fs.ErrNotExist)
			must(t, kinds.Undo(t.Context(), s)) // as the engine does with a step that failed
			wantPins(t, l.artifacts, image.Layer)
			l.intercept(image.Layer, nil)
			must(t, kinds.Apply(t.Context(), s))
			must(t, kinds.Verify(t.Context(), s))
		})
	}
}

// TestFetchGoesOn: a fetch that was cut off goes on from there, in the plugin's next process: kubelet's tries add up.
func TestFetchGoesOn(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	file := gbs(shell, nlb0)
	half := len(file) / 2
	s := l.fetchStep("team/nlb0", image)
	l.intercept(image.Layer, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_, _ = w.Write(file[:half])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	wants(t, step.Kinds{fetchKind: l.artifacts.kind()}.Apply(t.Context(), s), artifact.ErrUnavailable)
	kinds := step.Kinds{fetchKind: l.another().kind()}
	wants(t, kinds.Verify(t.Context(), s), fs.ErrNotExist) // half a file is none
	var from atomic.Value
	l.intercept(image.Layer, func(w http.ResponseWriter, r *http.Request) {
		from.Store(r.Header.Get("Range"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", half, len(file)-1, len(file)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(file[half:])
	})
	must(t, kinds.Apply(t.Context(), s))
	if want := fmt.Sprintf("bytes=%d-%d", half, len(file)-1); from.Load() != want {
		t.Errorf("asked for %v, want %s", from.Load(), want)
	}
	if got := digestOf(content(t, l.artifacts, image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
}

// TestOptionalFetch: a file that is only wanted in case of need keeps nobody waiting for its registry; one that there is is kept.
func TestOptionalFetch(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	p := fetchParams{Reference: l.host + "/team/nlb0@" + image.Manifest, Digest: image.Layer, Size: image.Size, Optional: true}
	s, err := p.step("u1")
	must(t, err)
	kinds := step.Kinds{fetchKind: l.artifacts.kind()}
	l.Down.Store(true)
	must(t, kinds.Apply(t.Context(), s))
	must(t, kinds.Verify(t.Context(), s))
	l.Down.Store(false)
	must(t, kinds.Apply(t.Context(), s))
	wantPins(t, l.artifacts, image.Layer, "u1")
	if got := digestOf(content(t, l.artifacts, image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
	must(t, kinds.Undo(t.Context(), s))
	wantPins(t, l.artifacts, image.Layer)
}

// TestFetchWithSecrets: those that the object names are read in the namespace that the step says, and only where something must be
// fetched.
func TestFetchWithSecrets(t *testing.T) {
	l := newLab(t)
	image := l.image("private/nlb0", shell, nlb0)
	auth := base64.StdEncoding.EncodeToString([]byte(fpgaregistry.User + ":" + fpgaregistry.Password))
	secret := func(name string, of corev1.SecretType, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Type: of, Data: data}
	}
	login := map[string][]byte{".dockerconfigjson": []byte(`{"auths":{"` + l.host + `":{"auth":"` + auth + `"}}}`)}
	l.put(secret("pull", corev1.SecretTypeDockerConfigJson, login))
	l.put(secret("opaque", corev1.SecretTypeOpaque, login))
	kinds := step.Kinds{fetchKind: l.artifacts.kind()}
	apply := func(secrets ...string) error {
		return kinds.Apply(t.Context(), l.fetchStep("private/nlb0", image, secrets...))
	}
	wants(t, apply(), artifact.ErrUnauthorized)
	wants(t, apply("pull", "lost"), nil, "Secret team-a/lost")
	wants(t, apply("opaque"), pullsecret.ErrUnusable, "Secret team-a/opaque", "Opaque", "kubernetes.io/dockerconfigjson")
	must(t, apply("pull"))
	l.setBroken(true)
	must(t, apply("pull")) // it is here: nobody is asked
}

// TestFetchParameters: parameters are read from a record on disk, which may be any.
func TestFetchParameters(t *testing.T) {
	l := newLab(t)
	kinds := step.Kinds{fetchKind: l.artifacts.kind()}
	digest := digestOf([]byte("x"))
	for _, params := range []string{
		`[]`, `{}`, `{"digest":"sha256:../../etc","reference":"r.example/a@` + digest + `","owner":"u1"}`,
		`{"digest":"` + digest + `","reference":"none","owner":"u1"}`,
		`{"digest":"` + digest + `","reference":"r.example/a@` + digest + `","owner":"../u1"}`,
	} {
		if err := kinds.Apply(t.Context(), step.Step{Kind: fetchKind, Params: []byte(params)}); err == nil {
			t.Errorf("%s was applied", params)
		}
	}
	for _, params := range []string{`[]`, `{}`} {
		s := step.Step{Kind: fetchKind, Params: []byte(params)}
		if kinds.Undo(t.Context(), s) == nil || kinds.Verify(t.Context(), s) == nil {
			t.Errorf("%s was undone or verified", params)
		}
	}
	if _, err := l.artifacts.open("sha256:../../etc/passwd"); err == nil {
		t.Error("opened something outside the store")
	}
}

// TestHeld: what an earlier process left is told without a fetch, and trouble with the disk is not taken for nothing.
func TestHeld(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	must(t, step.Kinds{fetchKind: l.artifacts.kind()}.Apply(t.Context(), l.fetchStep("team/nlb0", image)))
	next := l.another()
	held, err := next.held()
	must(t, err)
	if diff := cmp.Diff([]string{image.Layer}, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	must(t, next.destroy())
	must(t, os.WriteFile(next.dir, nil, 0o600)) // where the directory should be
	r := &reporter{plugin: &Plugin{fpgas: &fpgas{artifacts: next}}}
	if held, err := next.held(); err == nil {
		t.Errorf("holds %v", held)
	}
	before := &v1alpha1.AcceleratorNodeStatus{Bitstreams: []string{image.Layer}}
	if diff := cmp.Diff(before.Bitstreams, r.bitstreams(t.Context(), before)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if got := r.bitstreams(t.Context(), nil); got != nil {
		t.Errorf("told %v", got)
	}
	must(t, os.Remove(next.dir))
	if got := r.bitstreams(t.Context(), before); got != nil {
		t.Errorf("told %v", got)
	}
}

// TestStoreIsOpenedLate: a node without FPGAs has no store; and one that was retired has none left, until something is fetched again.
func TestStoreIsOpenedLate(t *testing.T) {
	l := newLab(t)
	gone := func() {
		t.Helper()
		if _, err := os.Stat(l.artifacts.dir); !os.IsNotExist(err) {
			t.Errorf("the store is there (%v)", err)
		}
	}
	gone()
	must(t, l.artifacts.destroy())
	if held, err := l.artifacts.held(); err != nil || len(held) > 0 {
		t.Errorf("holds %v (%v)", held, err)
	}
	gone()
	image := l.image("team/nlb0", shell, nlb0)
	for range 2 {
		must(t, step.Kinds{fetchKind: l.artifacts.kind()}.Apply(t.Context(), l.fetchStep("team/nlb0", image)))
		must(t, l.artifacts.destroy())
		gone()
	}
	must(t, os.WriteFile(l.artifacts.dir, nil, 0o600)) // where the directory should be
	if _, err := l.artifacts.store(); err == nil || !strings.Contains(err.Error(), filepath.Base(l.artifacts.dir)) {
		t.Errorf("got %v", err)
	}
	must(t, os.Remove(l.artifacts.dir))
	if _, err := l.artifacts.store(); err != nil {
		t.Errorf("a store that could once not be opened is not tried again: %v", err)
	}
}

// TestStoreIsTended: what nothing needs and there is no room for is deleted without anybody asking for room.
func TestStoreIsTended(t *testing.T) {
	l := newLab(t)
	kinds := step.Kinds{fetchKind: l.artifacts.kind()}
	fetched := l.fetchStep("team/nlb0", l.image("team/nlb0", shell, nlb0))
	must(t, kinds.Apply(t.Context(), fetched))
	must(t, kinds.Undo(t.Context(), fetched))
	next := l.another()
	next.limits.MaxBytes = 1
	if held, err := next.held(); err != nil || len(held) != 1 {
		t.Fatalf("holds %v (%v), want the one file", held, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); next.tend(ctx, time.Millisecond) }()
	for deadline := time.Now().Add(time.Minute); ; {
		held, err := next.held()
		must(t, err)
		if len(held) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still holds %v", held)
		}
		runtime.Gosched()
	}
	cancel()
	<-ended
}

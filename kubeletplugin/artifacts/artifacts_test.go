// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/pullsecret"
	"github.com/fettle-dev/fettle/test/check"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// TestEnsure: the file is there and kept for the claim until it is given back, for every claim that needs it; it is asked for once, and
// a later process has it, too.
func TestEnsure(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	p := s.file("team/nlb0", image)
	first, second := stepOf(t, p, "u1"), stepOf(t, p, "u2")
	if first.Kind != pin.StepKind || first.Target != image.Layer {
		t.Errorf("step %s", first)
	}
	kinds := s.kinds()
	wants(t, kinds.Verify(t.Context(), first), pin.ErrEvicted, p.Reference)
	check.Must(t, s.Ensure(t.Context(), p))
	s.wantPins(image.Layer) // that is the step's part
	check.Must(t, kinds.Apply(t.Context(), first))
	check.Must(t, kinds.Verify(t.Context(), first))
	s.wantPins(image.Layer, "u1")
	if got := digestOf(s.content(image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
	reads := s.Reads.Load()

	s.restart()
	kinds = s.kinds()
	s.Down.Store(true)
	for range 2 {
		check.Must(t, s.Ensure(t.Context(), p))
	}
	check.Must(t, kinds.Apply(t.Context(), first))
	check.Must(t, kinds.Apply(t.Context(), second))
	s.wantPins(image.Layer, "u1", "u2")
	if s.Reads.Load() != reads {
		t.Errorf("it was asked for %d times", s.Reads.Load())
	}
	for range 2 { // undoing twice is undoing once
		check.Must(t, kinds.Undo(t.Context(), first))
		s.wantPins(image.Layer, "u2")
	}
	check.Must(t, kinds.Undo(t.Context(), second))
	s.wantPins(image.Layer)
	check.Must(t, kinds.Verify(t.Context(), first)) // the next claim finds it
}

// TestStoreMetrics: a node without a store has no values, and gets no store by that. Afterwards they say what claims keep.
func TestStoreMetrics(t *testing.T) {
	s := newShelf(t)
	count := func() int { return testutil.CollectAndCount(s.Metrics()) }
	if _, err := os.Stat(s.Dir); count() != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d values; the store: %v", count(), err)
	}
	s.Limits.MaxBytes = 1 << 20
	image := s.Image(t, "team/nlb0", shell, nlb0)
	p := s.file("team/nlb0", image)
	check.Must(t, s.Ensure(t.Context(), p))
	wants := func(pinned, evictable int) {
		t.Helper()
		want := fmt.Sprintf(`# HELP fettle_store_bytes Bytes in the node's store of files from registries, by state: pinned, evictable, `+
			`partial (being fetched) or trash.
# TYPE fettle_store_bytes gauge
fettle_store_bytes{state="evictable"} %d
fettle_store_bytes{state="partial"} 0
fettle_store_bytes{state="pinned"} %d
fettle_store_bytes{state="trash"} 0
# HELP fettle_store_max_bytes The most that the node's store may take.
# TYPE fettle_store_max_bytes gauge
fettle_store_max_bytes 1.048576e+06
`, evictable, pinned)
		if err := testutil.CollectAndCompare(s.Metrics(), strings.NewReader(want), "fettle_store_bytes", "fettle_store_max_bytes"); err != nil {
			t.Error(err)
		}
	}
	size := len(s.content(image.Layer))
	wants(0, size)
	check.Must(t, s.kinds().Apply(t.Context(), stepOf(t, p, "u1")))
	wants(size, 0)
}

// TestEnsureReadable: a file of the store is no reason to believe that a repository has it.
func TestEnsureReadable(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "alice/nlb0", shell, nlb0)
	check.Must(t, s.EnsureReadable(t.Context(), s.file("alice/nlb0", image)))
	reads := s.Reads.Load()
	check.Must(t, s.EnsureReadable(t.Context(), s.file("alice/nlb0", image)))
	if s.Reads.Load() != reads {
		t.Error("a file was read again from the repository that it is from")
	}
	mallory := s.file("mallory/nlb0", image)
	s.Intercept(image.Layer, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", strconv.FormatInt(image.Size, 10))
			return
		}
		http.NotFound(w, r)
	})
	wants(t, s.EnsureReadable(t.Context(), mallory), ErrNotFetched, "mallory/nlb0", "not from this repository")
	check.Must(t, s.EnsureReadable(t.Context(), s.file("alice/nlb0", image))) // hers goes on
	s.Intercept(image.Layer, nil)
	check.Must(t, s.EnsureReadable(t.Context(), mallory))
	s.Down.Store(true)
	check.Must(t, s.EnsureReadable(t.Context(), mallory))
	s.restart()
	wants(t, s.EnsureReadable(t.Context(), mallory), ErrNotFetched, "mallory/nlb0")
}

// TestEnsureReadableWhileOthersFetch: a file that another claim fetched meanwhile, in whole or in part, is no reason either.
func TestEnsureReadableWhileOthersFetch(t *testing.T) {
	for name, others := range map[string]func(*shelf, *pin.Params) error{
		"in whole": func(s *shelf, p *pin.Params) error { return s.Ensure(s.t.Context(), p) },
		"until the plugin ended": func(s *shelf, p *pin.Params) error {
			check.Must(s.t, s.Ensure(s.t.Context(), p))
			digits := strings.TrimPrefix(p.Digest, "sha256:")
			return os.Rename(filepath.Join(s.Dir, "blobs", "sha256", digits),
				filepath.Join(s.Dir, "tmp", fmt.Sprintf("%s.%d", digits, p.Size)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			image := s.Image(t, "alice/nlb0", shell, nlb0)
			fetched := false
			s.kube.PrependReactor("get", "secrets", func(ktesting.Action) (bool, runtime.Object, error) { // the file was not there a moment ago
				if !fetched {
					fetched = true
					check.Must(t, others(s, s.file("alice/nlb0", image)))
				}
				s.Intercept(image.Layer, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
				return true, &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
					corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`),
				}}, nil
			})
			mallory := s.file("mallory/nlb0", image, "pull")
			for range 2 {
				wants(t, s.EnsureReadable(t.Context(), mallory), ErrNotFetched, "mallory/nlb0", "not from this repository")
			}
			s.Intercept(image.Layer, nil)
			check.Must(t, s.EnsureReadable(t.Context(), s.file("alice/nlb0", image)))
		})
	}
}

// TestEnsureFails: a registry that fails, or sends other bytes, leaves no file that anybody would open; and the same file comes when it is
// well again.
func TestEnsureFails(t *testing.T) {
	more := append(fpgaregistry.GBS(shell, nlb0), 0)
	for _, tc := range []struct {
		name   string
		cause  error
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		{"overloaded", artifact.ErrUnavailable, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }},
		{"gone", artifact.ErrNotFound, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }},
		{"refused", artifact.ErrUnauthorized, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }},
		{"other bytes", artifact.ErrMismatch, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(fpgaregistry.GBS(shell, nlb3)) }},
		{"more bytes", artifact.ErrMismatch, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(more) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShelf(t)
			image := s.Image(t, "team/nlb0", shell, nlb0)
			p := s.file("team/nlb0", image)
			made, kinds := stepOf(t, p, "u1"), s.kinds()
			s.Intercept(image.Layer, tc.answer)
			err := s.Ensure(t.Context(), p)
			wants(t, err, tc.cause)
			wants(t, err, ErrNotFetched, p.Reference)
			wants(t, kinds.Apply(t.Context(), made), pin.ErrEvicted)
			wants(t, kinds.Verify(t.Context(), made), pin.ErrEvicted)
			check.Must(t, kinds.Undo(t.Context(), made)) // as the engine does with a step that failed
			s.wantPins(image.Layer)
			s.Intercept(image.Layer, nil)
			check.Must(t, s.Ensure(t.Context(), p))
			check.Must(t, kinds.Apply(t.Context(), made))
			check.Must(t, kinds.Verify(t.Context(), made))
		})
	}
}

// TestEnsureGoesOn: a fetch that was cut off goes on from there, in the plugin's next process: kubelet's tries add up.
func TestEnsureGoesOn(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	file := fpgaregistry.GBS(shell, nlb0)
	half := len(file) / 2
	p := s.file("team/nlb0", image)
	s.Intercept(image.Layer, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_, _ = w.Write(file[:half])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	wants(t, s.Ensure(t.Context(), p), artifact.ErrUnavailable)
	s.restart()
	wants(t, s.kinds().Verify(t.Context(), stepOf(t, p, "u1")), pin.ErrEvicted) // half a file is none
	var from atomic.Value
	s.Intercept(image.Layer, func(w http.ResponseWriter, r *http.Request) {
		from.Store(r.Header.Get("Range"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", half, len(file)-1, len(file)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(file[half:])
	})
	check.Must(t, s.Ensure(t.Context(), p))
	if want := fmt.Sprintf("bytes=%d-%d", half, len(file)-1); from.Load() != want {
		t.Errorf("asked for %v, want %s", from.Load(), want)
	}
	if got := digestOf(s.content(image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
}

// TestEnsureOptional: a file that is only wanted in case of need keeps nobody waiting for its registry; one that there is is kept. A call
// that ended is no registry that is away.
func TestEnsureOptional(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	p := s.file("team/nlb0", image)
	p.Optional = true
	made, kinds := stepOf(t, p, "u1"), s.kinds()
	s.Down.Store(true)
	check.Must(t, s.Ensure(t.Context(), p))
	check.Must(t, kinds.Apply(t.Context(), made))
	check.Must(t, kinds.Verify(t.Context(), made))
	s.Down.Store(false)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wants(t, s.Ensure(ended, p), context.Canceled)
	check.Must(t, s.Ensure(t.Context(), p))
	check.Must(t, kinds.Apply(t.Context(), made))
	s.wantPins(image.Layer, "u1")
	if got := digestOf(s.content(image.Layer)); got != image.Layer {
		t.Errorf("the file has digest %s", got)
	}
	check.Must(t, kinds.Undo(t.Context(), made))
	s.wantPins(image.Layer)
}

// TestEnsureWithSecrets: those that the object names are read in its namespace, and only where something must be fetched.
func TestEnsureWithSecrets(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "private/nlb0", shell, nlb0)
	auth := base64.StdEncoding.EncodeToString([]byte(fpgaregistry.User + ":" + fpgaregistry.Password))
	put := func(name string, of corev1.SecretType, data map[string][]byte) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Type: of, Data: data}
		_, err := s.kube.CoreV1().Secrets("team-a").Create(t.Context(), secret, metav1.CreateOptions{})
		check.Must(t, err)
	}
	login := map[string][]byte{".dockerconfigjson": []byte(`{"auths":{"` + s.Host + `":{"auth":"` + auth + `"}}}`)}
	put("pull", corev1.SecretTypeDockerConfigJson, login)
	put("opaque", corev1.SecretTypeOpaque, login)
	ensure := func(secrets ...string) error { return s.Ensure(t.Context(), s.file("private/nlb0", image, secrets...)) }
	wants(t, ensure(), artifact.ErrUnauthorized)
	wants(t, ensure("pull", "lost"), nil, "Secret team-a/lost")
	wants(t, ensure("opaque"), pullsecret.ErrUnusable, "Secret team-a/opaque", "Opaque", "kubernetes.io/dockerconfigjson")
	check.Must(t, ensure("pull"))
	s.kube.PrependReactor("*", "*", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	check.Must(t, ensure("pull")) // it is here, so no registry is asked
}

// TestEnsureParameters: what objects say is not trusted with a path or a way out of the store.
func TestEnsureParameters(t *testing.T) {
	s := newShelf(t)
	digest := digestOf([]byte("x"))
	for _, p := range []pin.Params{
		{},
		{Digest: "sha256:../../etc", Reference: "r.example/a@" + digest},
		{Digest: digest, Reference: "none"},
	} {
		if err := s.Ensure(t.Context(), &p); err == nil {
			t.Errorf("%+v was fetched", p)
		}
	}
	if _, err := s.Open("sha256:../../etc/passwd"); err == nil {
		t.Error("opened something outside the store")
	}
}

// TestHeld: what an earlier process left is told without a fetch, and trouble with the disk is not taken for nothing.
func TestHeld(t *testing.T) {
	s := newShelf(t)
	image := s.Image(t, "team/nlb0", shell, nlb0)
	check.Must(t, s.Ensure(t.Context(), s.file("team/nlb0", image)))
	s.restart()
	held, err := s.Held()
	check.Must(t, err)
	if diff := cmp.Diff([]string{image.Layer}, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	check.Must(t, s.Destroy())
	check.Must(t, os.WriteFile(s.Dir, nil, 0o600)) // where the directory should be
	if held, err := s.Held(); err == nil {
		t.Errorf("holds %v", held)
	}
	check.Must(t, os.Remove(s.Dir))
	if held, err := s.Held(); err != nil || held != nil {
		t.Errorf("holds %v (%v)", held, err)
	}
}

// TestStoreIsOpenedLate: a node without FPGAs has no store; and one that was retired has none left, until something is fetched again.
func TestStoreIsOpenedLate(t *testing.T) {
	s := newShelf(t)
	gone := func() {
		t.Helper()
		if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
			t.Errorf("the store is there (%v)", err)
		}
	}
	gone()
	check.Must(t, s.Destroy())
	if held, err := s.Held(); err != nil || len(held) > 0 {
		t.Errorf("holds %v (%v)", held, err)
	}
	gone()
	image := s.Image(t, "team/nlb0", shell, nlb0)
	for range 2 {
		check.Must(t, s.Ensure(t.Context(), s.file("team/nlb0", image)))
		check.Must(t, s.Destroy())
		gone()
	}
	check.Must(t, os.WriteFile(s.Dir, nil, 0o600)) // where the directory should be
	if _, err := s.Store(); err == nil || !strings.Contains(err.Error(), filepath.Base(s.Dir)) {
		t.Errorf("got %v", err)
	}
	check.Must(t, os.Remove(s.Dir))
	if _, err := s.Store(); err != nil {
		t.Errorf("a store that could once not be opened is not tried again: %v", err)
	}
}

// TestStoreOfEmptiedNode: a claim that still fetches files when its node is emptied makes no store there, until the node serves again.
func TestStoreOfEmptiedNode(t *testing.T) {
	s := newShelf(t)
	retired := true
	s.Retired = func() bool { return retired }
	file := s.file("team/nlb0", s.Image(t, "team/nlb0", shell, nlb0))
	check.Must(t, s.Ensure(t.Context(), file)) // for a claim that the node has still
	check.Must(t, s.Destroy())
	wants(t, s.Ensure(t.Context(), file), retirement.ErrRetired)
	wants(t, s.EnsureReadable(t.Context(), file), retirement.ErrRetired)
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("the store is there (%v)", err)
	}
	retired = false
	check.Must(t, s.Ensure(t.Context(), file))
}

// TestStoreIsTended: what nothing needs and there is no room for is deleted without anybody asking for room.
func TestStoreIsTended(t *testing.T) {
	s := newShelf(t)
	p := s.file("team/nlb0", s.Image(t, "team/nlb0", shell, nlb0))
	made := stepOf(t, p, "u1")
	check.Must(t, s.Ensure(t.Context(), p))
	check.Must(t, s.kinds().Apply(t.Context(), made))
	check.Must(t, s.kinds().Undo(t.Context(), made))
	s.restart()
	s.Limits.MaxBytes = 1
	if held, err := s.Held(); err != nil || len(held) != 1 {
		t.Fatalf("holds %v (%v), want the one file", held, err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		time.Sleep(sweepInterval + time.Minute)
		synctest.Wait()
		if held, err := s.Held(); err != nil || len(held) > 0 {
			t.Errorf("still holds %v (%v)", held, err)
		}
		cancel()
		<-ended
	})
}

// TestPinnedWithoutStore: a store that could not be made, as on a full disk, keeps nothing for anybody. A claim whose record is lost ends.
func TestPinnedWithoutStore(t *testing.T) {
	s := newShelf(t)
	check.Must(t, os.Mkdir(s.Dir, 0o700), os.WriteFile(filepath.Join(s.Dir, "blobs"), nil, 0o600)) // in the way of the store's directories
	if _, err := s.Store(); !errors.Is(err, artifact.ErrNoStore) {
		t.Fatalf("the store: %v", err)
	}
	if pinned, err := s.PinnedBy("uid-1"); err != nil || len(pinned) > 0 {
		t.Errorf("kept for a claim: %v, %v", pinned, err)
	}
}

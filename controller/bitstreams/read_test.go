// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/seed"
)

const (
	shell = "9926ab6d6c925a68aabca7d84c545738"
	other = "ce48969398f05f33946d560708be108a"
	nlb0  = "d8424dc4a4a3c413f89e433683f9040b"
	repo  = "team/nlb0"
)

// file is one of the bitstreams of package fpga's tests.
func file(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../pkg/fpga/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// gbsFor is nlb0 for another interface; ids have the same length, so the file stays whole.
func gbsFor(t *testing.T, iface string) []byte {
	dashed := iface[:8] + "-" + iface[8:12] + "-" + iface[12:16] + "-" + iface[16:20] + "-" + iface[20:]
	return []byte(strings.Replace(string(file(t, "nlb0.gbs")), "9926AB6D-6C92-5A68-AABC-A7D84C545738", dashed, 1))
}

// reader reads from a registry, without many tries.
type reader struct {
	client  *registry.Client
	scratch *Scratch
}

func newReader(t *testing.T, r *fpgaregistry.Registry) (reader, string) {
	t.Helper()
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{r.Host}, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return reader{client, NewScratch(dir)}, dir
}

// read resolves and reads a reference.
func read(t *testing.T, p reader, text string, keys authn.Keychain) ([]v1alpha1.BitstreamImage, error) {
	t.Helper()
	ref, err := artifact.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	src := p.client.Source(ref, keys)
	d, err := src.Resolve(t.Context())
	if err != nil {
		return nil, err
	}
	return Read(t.Context(), "team", src, d, p.scratch)
}

func TestRead(t *testing.T) {
	r := fpgaregistry.Start(t)
	p, dir := newReader(t, r)
	layer := func(name string, format fpga.Format) string {
		return r.Blob(t, repo, format.LayerType(), file(t, name)).Digest
	}
	gbs := r.Push(t, repo, "gbs", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + shell + `","name":"nlb_400"}`, Format: fpga.GBS, File: file(t, "nlb0.gbs"),
	})
	signed := r.Push(t, repo, "signed", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: file(t, "nlb0-signed.gbs")})
	aocx := r.Push(t, repo, "aocx", fpgaregistry.Bitstream{Config: `{"format":"aocx"}`, Format: fpga.AOCX, File: file(t, "vector.aocx")})
	xclbin := r.Push(t, repo, "xclbin", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.Xclbin, File: file(t, "hello.xclbin")})
	raw := r.Push(t, repo, "rbf", fpgaregistry.Bitstream{
		Config: `{"format":"rbf","id":"` + nlb0 + `","interfaceID":"` + shell + `"}`, Format: fpga.RBF, File: file(t, "nlb0.rbf"),
	})
	second := r.Push(t, repo, "", fpgaregistry.Bitstream{Config: `{"interfaceID":"` + other + `"}`, Format: fpga.GBS, File: gbsFor(t, other)})
	r.Manifest(t, repo, "index", fpgaregistry.Manifest{Manifests: []fpgaregistry.Descriptor{second, gbs}})

	nlb := func(manifest fpgaregistry.Descriptor, layer, iface string, size int64) v1alpha1.BitstreamImage {
		return v1alpha1.BitstreamImage{
			Manifest: manifest.Digest, Layer: layer, Size: size, Format: "gbs", ID: nlb0, AFUID: nlb0, InterfaceID: iface, Name: "nlb_400",
		}
	}
	size := int64(len(file(t, "nlb0.gbs")))
	signedImage := nlb(signed, layer("nlb0-signed.gbs", fpga.GBS), shell, int64(len(file(t, "nlb0-signed.gbs"))))
	signedImage.CardSigned = true
	otherLayer := r.Blob(t, repo, fpga.GBS.LayerType(), gbsFor(t, other)).Digest
	for tag, want := range map[string][]v1alpha1.BitstreamImage{
		"gbs":    {nlb(gbs, layer("nlb0.gbs", fpga.GBS), shell, size)},
		"signed": {signedImage},
		"aocx": {{
			Manifest: aocx.Digest, Layer: layer("vector.aocx", fpga.AOCX), Size: int64(len(file(t, "vector.aocx"))), Format: "aocx",
			ID: "00112233445566778899aabbccddeeff01234567", AFUID: "18b79ffa2ee54aa096ef4230dafacb5f", InterfaceID: shell, Name: "nlb_400",
		}},
		"xclbin": {{
			Manifest: xclbin.Digest, Layer: layer("hello.xclbin", fpga.Xclbin), Size: int64(len(file(t, "hello.xclbin"))), Format: "xclbin",
			ID: "5005e1b0c0de4a6f9a1d2b3c4d5e6f70", AFUID: "5005e1b0c0de4a6f9a1d2b3c4d5e6f70", InterfaceID: shell,
		}},
		"rbf": {{
			Manifest: raw.Digest, Layer: layer("nlb0.rbf", fpga.RBF), Size: 100, Format: "rbf", ID: nlb0, AFUID: nlb0, InterfaceID: shell,
		}},
		"index": {nlb(gbs, layer("nlb0.gbs", fpga.GBS), shell, size), nlb(second, otherLayer, other, size)},
	} {
		t.Run(tag, func(t *testing.T) {
			got, err := read(t, p, r.Host+"/"+repo+":"+tag, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestReadRefuses: each has its reason, and says what is wrong.
func TestReadRefuses(t *testing.T) {
	r := fpgaregistry.Start(t)
	p, dir := newReader(t, r)
	config, layer := r.Blob(t, repo, fpga.ConfigType, []byte("{}")), r.Blob(t, repo, fpga.GBS.LayerType(), file(t, "nlb0.gbs"))
	container := r.Blob(t, repo, "application/vnd.oci.image.config.v1+json", []byte("{}"))
	push := func(tag, config string, format fpga.Format, content []byte) {
		r.Push(t, repo, tag, fpgaregistry.Bitstream{Config: config, Format: format, File: content})
	}
	push("mismatch", `{"interfaceID":"`+other+`"}`, fpga.GBS, file(t, "nlb0.gbs"))
	push("renamed", `{}`, fpga.Xclbin, file(t, "nlb0.gbs"))
	push("torn", `{}`, fpga.GBS, file(t, "nlb0.gbs")[:100])
	push("raw", `{}`, fpga.RBF, file(t, "nlb0.rbf"))
	push("prepended", `{}`, fpga.GBS, file(t, "nlb0-prepended.gbs"))
	r.Manifest(t, repo, "container", fpgaregistry.Manifest{Config: &container, Layers: []fpgaregistry.Descriptor{layer}})
	long := layer
	long.Size = fpga.MaxFile + 1
	r.Manifest(t, repo, "long",
		fpgaregistry.Manifest{ArtifactType: fpga.ArtifactType, Config: &config, Layers: []fpgaregistry.Descriptor{long}})
	lying := layer
	lying.Size++
	r.Manifest(t, repo, "lying",
		fpgaregistry.Manifest{ArtifactType: fpga.ArtifactType, Config: &config, Layers: []fpgaregistry.Descriptor{lying}})
	gone := layer
	gone.Digest = "sha256:" + strings.Repeat("ab", 32)
	r.Manifest(t, repo, "gone",
		fpgaregistry.Manifest{ArtifactType: fpga.ArtifactType, Config: &config, Layers: []fpgaregistry.Descriptor{gone}})
	r.Push(t, "private/nlb0", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: file(t, "nlb0.gbs")})
	var many []fpgaregistry.Descriptor
	for _, iface := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		c := r.Blob(t, repo, fpga.ConfigType, []byte(`{"interfaceID":"`+strings.Repeat(iface, 32)+`"}`))
		most := layer
		most.Size = fpga.MaxFile
		many = append(many, r.Manifest(t, repo, "", fpgaregistry.Manifest{
			ArtifactType: fpga.ArtifactType, Config: &c, Layers: []fpgaregistry.Descriptor{most},
		}))
	}
	r.Manifest(t, repo, "together", fpgaregistry.Manifest{Manifests: many})

	for _, test := range []struct{ ref, reason, want string }{
		{repo + ":mismatch", ReasonConfigMismatch, "interfaceID is " + other + " in the config and " + shell + " in the file"},
		{repo + ":renamed", ReasonConfigMismatch, "format is xclbin in the config and gbs in the file"},
		{repo + ":torn", ReasonNotABitstream, "gbs: 0x14: the metadata: want"},
		{repo + ":raw", ReasonNotABitstream, "a raw image needs id and interfaceID"},
		{repo + ":prepended", ReasonNotABitstream, "not known which bytes the card wants"},
		{repo + ":container", ReasonNotABitstream, "expected " + fpga.ArtifactType},
		{repo + ":long", artifacts.ReasonTooLarge, "536870913 bytes"},
		{repo + ":together", artifacts.ReasonTooLarge, "its files have 4831838208 bytes, expected at most 4294967296"},
		{repo + ":lying", artifacts.ReasonInvalid, "bytes are announced, expected"},
		{repo + ":gone", artifacts.ReasonNotFound, "404"},
		{repo + ":never", artifacts.ReasonNotFound, "404"},
		{"private/nlb0:v1", artifacts.ReasonUnauthorized, "give a pull secret"},
	} {
		t.Run(test.ref, func(t *testing.T) {
			_, err := read(t, p, r.Host+"/"+test.ref, nil)
			if err == nil || artifacts.ReasonOf(err) != test.reason || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want reason %s and %q", err, test.reason, test.want)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	r.Down.Store(true)
	if _, err := read(t, p, r.Host+"/"+repo+":torn", nil); artifacts.ReasonOf(err) != artifacts.ReasonRegistryUnavailable {
		t.Errorf("registry that is down: %v", err)
	}
	elsewhere := fpgaregistry.Start(t)
	if _, err := read(t, p, elsewhere.Host+"/"+repo+":v1", nil); artifacts.ReasonOf(err) != artifacts.ReasonPlainHTTPRefused {
		t.Errorf("plain http that is not allowed: %s, %v", artifacts.ReasonOf(err), err)
	}
}

// puller is a registry that sends a blob after a time, at the earliest.
type puller struct {
	content []byte
	after   time.Duration
}

func (p puller) layer() artifact.Descriptor {
	return artifact.Descriptor{Digest: artifact.DigestOf(p.content), Size: int64(len(p.content))}
}

func (p puller) Pull(ctx context.Context, _ artifact.Descriptor, to artifact.Sink) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(p.after):
	}
	_, err := to.Write(p.content)
	return err
}

// TestSlowRegistriesHoldUpEachOther: whatever number of namespaces have registries that never end, another's file is read soon, and one
// that takes half a minute is read, too, after those that came before it had their time.
func TestSlowRegistriesHoldUpEachOther(t *testing.T) {
	random := seed.New(t)
	synctest.Test(t, func(t *testing.T) {
		scratch := NewScratch(t.TempDir())
		const slow = 6
		var running sync.WaitGroup
		read := func(namespace string, p puller, most time.Duration, want error) {
			began := time.Now()
			err := scratch.File(t.Context(), namespace, p, p.layer(), func(io.ReaderAt) error { return nil })
			if took := time.Since(began); !errors.Is(err, want) || took > most {
				t.Errorf("%s, %s to send: %v after %s, want %v after at most %s", namespace, p.after, err, took, want, most)
			}
		}
		var waiting time.Duration
		for n := range slow {
			running.Go(func() {
				time.Sleep(time.Duration(n) * time.Nanosecond)
				read(fmt.Sprint("mallory-", n), puller{[]byte("never"), time.Hour}, slow*(quickRead+slowRead), artifact.ErrUnavailable)
			})
			waiting += quickRead
		}
		for n := range 4 {
			after := time.Duration(1 + random.Int64N(int64(slow*slowRead)))
			running.Go(func() {
				time.Sleep(after)
				read(fmt.Sprint("team-", n), puller{[]byte("soon"), time.Second}, waiting+4*(quickRead+time.Second), nil)
			})
		}
		running.Go(func() {
			time.Sleep(time.Second)
			read("far", puller{[]byte("late"), slowRead / 2}, slow*(quickRead+slowRead)+4*quickRead+slowRead, nil)
		})
		running.Wait()
	})
}

// TestReadsAreApart: bytes that one object's credentials read are not there for another, whose registry only names their digest.
func TestReadsAreApart(t *testing.T) {
	r := fpgaregistry.Start(t)
	p, _ := newReader(t, r)
	private := r.Push(t, "private/nlb0", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: file(t, "nlb0.gbs")})
	keys, err := registry.NewKeychain(registry.DockerConfig{Data: dockerConfig(t, r.Host)})
	if err != nil {
		t.Fatal(err)
	}
	images, err := read(t, p, r.Host+"/private/nlb0@"+private.Digest, keys)
	if err != nil {
		t.Fatal(err)
	}
	config := r.Blob(t, "thief/nlb0", fpga.ConfigType, []byte("{}"))
	stolen := fpgaregistry.Descriptor{MediaType: fpga.GBS.LayerType(), Digest: images[0].Layer, Size: images[0].Size}
	r.Manifest(t, "thief/nlb0", "v1", fpgaregistry.Manifest{
		ArtifactType: fpga.ArtifactType, Config: &config, Layers: []fpgaregistry.Descriptor{stolen},
	})
	before := r.Reads.Load()
	_, _ = read(t, p, r.Host+"/thief/nlb0:v1", nil)
	if got := r.Reads.Load() - before; got != 2 {
		t.Errorf("the registry was asked for %d blobs, want the config and the layer", got)
	}
}

// dockerConfig is the content of a pull secret.
func dockerConfig(t *testing.T, host string) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{"auths": map[string]any{
		host: map[string]string{"username": fpgaregistry.User, "password": fpgaregistry.Password},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestResolveReadsOnce: a tag that did not move costs no blob.
func TestResolveReadsOnce(t *testing.T) {
	r := fpgaregistry.Start(t)
	p, _ := newReader(t, r)
	r.Push(t, repo, "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: file(t, "nlb0.gbs")})
	b := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Generation: 3}}
	b.Spec.Image = r.Host + "/" + repo + ":v1"
	look := func() (*artifacts.Outcome, []v1alpha1.BitstreamImage) {
		t.Helper()
		kind := artifacts.Kind{ReadTimeout: time.Minute, PolicyOptional: true}
		o := &object{CommonFPGABitstream: b.Common(), resolver: &resolver{scratch: p.scratch}}
		out, err := resolving(p).Resolve(t.Context(), &kind, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		artifacts.Record(&kind, o, out, start)
		return out, slices.Clone(b.Status.Images)
	}
	first, images := look()
	if first.Err != nil || r.Reads.Load() == 0 || len(images) != 1 {
		t.Fatalf("first look: %+v, %+v after %d reads", first, images, r.Reads.Load())
	}
	reads := r.Reads.Load()
	if again, same := look(); again.Err != nil || again.Digest != first.Digest || cmp.Diff(images, same) != "" || r.Reads.Load() != reads {
		t.Errorf("second look: %+v, %+v after %d reads more", again, same, r.Reads.Load()-reads)
	}
	r.Push(t, repo, "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbsFor(t, other)})
	if moved, images := look(); moved.Err != nil || moved.Digest == first.Digest || images[0].InterfaceID != other {
		t.Errorf("moved tag: %+v, %+v", moved, images)
	}
	b.Spec.Image = "../etc"
	if out, _ := look(); !errors.Is(out.Err, artifact.ErrInvalid) || artifacts.ReasonOf(out.Err) != artifacts.ReasonInvalid {
		t.Errorf("no reference: %+v", out)
	}
}

// resolving asks the registry for objects without pull secrets.
func resolving(p reader) artifacts.Resolver {
	api := fake.NewClientBuilder().Build()
	return artifacts.NewResolver(reconciler.Services{Client: api, Live: api, Namespace: "fettle"}, p.client)
}

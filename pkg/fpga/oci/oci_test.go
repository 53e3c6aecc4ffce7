// SPDX-License-Identifier: Apache-2.0

package oci_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

const (
	shellA = "9926ab6d6c925a68aabca7d84c545738"
	shellB = "ce48969398f05f33946d560708be108a"
	repo   = "team/nlb0"
)

// list lists the bitstreams of a reference.
func list(t *testing.T, r *fpgaregistry.Registry, identifier string) ([]oci.Image, error) {
	t.Helper()
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{r.Host}, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := artifact.ParseReference(r.Host + "/" + repo + identifier)
	if err != nil {
		t.Fatal(err)
	}
	src := client.Source(ref, nil)
	d, err := src.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return oci.List(t.Context(), src, d)
}

func image(d, layer fpgaregistry.Descriptor, config fpga.Config) oci.Image {
	manifest, _ := artifact.ParseDigest(d.Digest)
	digest, _ := artifact.ParseDigest(layer.Digest)
	return oci.Image{
		Manifest: manifest, Config: config, Layer: artifact.Descriptor{MediaType: layer.MediaType, Digest: digest, Size: layer.Size},
	}
}

func TestList(t *testing.T) {
	r := fpgaregistry.Start(t)
	file := r.Blob(t, repo, fpga.GBS.LayerType(), []byte("a file"))
	empty := r.Blob(t, repo, fpgaregistry.EmptyType, []byte("{}"))
	plain := r.Blob(t, repo, fpga.ConfigType, []byte("{}"))

	one := r.Push(t, repo, "one", fpgaregistry.Bitstream{
		Config: `{"format":"gbs","name":"nlb_400"}`, Format: fpga.GBS, File: []byte("a file"),
	})
	bare := r.Manifest(t, repo, "bare", fpgaregistry.Manifest{
		ArtifactType: fpga.ArtifactType, Config: &empty, Layers: []fpgaregistry.Descriptor{file},
	})
	typed := r.Manifest(t, repo, "typed", fpgaregistry.Manifest{Config: &plain, Layers: []fpgaregistry.Descriptor{file}})
	second := r.Push(t, repo, "", fpgaregistry.Bitstream{Config: `{"interfaceID":"` + shellB + `"}`, Format: fpga.GBS, File: []byte("a file")})
	first := r.Push(t, repo, "", fpgaregistry.Bitstream{Config: `{"interfaceID":"` + shellA + `"}`, Format: fpga.GBS, File: []byte("a file")})
	second.ArtifactType = fpga.ArtifactType
	r.Manifest(t, repo, "index", fpgaregistry.Manifest{Manifests: []fpgaregistry.Descriptor{second, first}})

	for tag, want := range map[string][]oci.Image{
		"one":   {image(one, file, fpga.Config{Format: fpga.GBS, Name: "nlb_400"})},
		"bare":  {image(bare, file, fpga.Config{Format: fpga.GBS})},
		"typed": {image(typed, file, fpga.Config{Format: fpga.GBS})},
		"index": {
			image(second, file, fpga.Config{Format: fpga.GBS, InterfaceID: shellB}),
			image(first, file, fpga.Config{Format: fpga.GBS, InterfaceID: shellA}),
		},
	} {
		t.Run(tag, func(t *testing.T) {
			got, err := list(t, r, ":"+tag)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestListRefuses(t *testing.T) {
	r := fpgaregistry.Start(t)
	type descriptors = []fpgaregistry.Descriptor
	file := r.Blob(t, repo, fpga.GBS.LayerType(), []byte("a file"))
	config := func(text string) *fpgaregistry.Descriptor {
		d := r.Blob(t, repo, fpga.ConfigType, []byte(text))
		return &d
	}
	as := func(d fpgaregistry.Descriptor, mediaType string, size int64) fpgaregistry.Descriptor {
		d.MediaType, d.Size = mediaType, size
		return d
	}
	manifest := func(c *fpgaregistry.Descriptor, layers ...fpgaregistry.Descriptor) fpgaregistry.Manifest {
		return fpgaregistry.Manifest{ArtifactType: fpga.ArtifactType, Config: c, Layers: layers}
	}
	container := r.Blob(t, repo, "application/vnd.oci.image.config.v1+json", []byte("{}"))
	forA := r.Push(t, repo, "", fpgaregistry.Bitstream{Config: `{"interfaceID":"` + shellA + `"}`, Format: fpga.GBS, File: []byte("a file")})
	alsoA := r.Push(t, repo, "", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + shellA + `","name":"other"}`, Format: fpga.GBS, File: []byte("a file"),
	})
	forNone := r.Push(t, repo, "", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: []byte("a file")})
	index := r.Manifest(t, repo, "", fpgaregistry.Manifest{Manifests: descriptors{forA}})
	signature := forA
	signature.ArtifactType = "application/vnd.example.signature"
	var many descriptors
	for i := range 65 {
		many = append(many, r.Push(t, repo, "", fpgaregistry.Bitstream{
			Config: fmt.Sprintf(`{"interfaceID":"%032x"}`, i+1), Format: fpga.GBS, File: []byte("a file"),
		}))
	}
	for i, test := range []struct {
		name     string
		manifest fpgaregistry.Manifest
		is       error
		want     string
	}{
		{
			"container image",
			fpgaregistry.Manifest{Config: &container, Layers: descriptors{file}},
			oci.ErrNotBitstream,
			"expected " + fpga.ArtifactType,
		},
		{
			"another type",
			fpgaregistry.Manifest{ArtifactType: "a/b", Config: config("{}"), Layers: descriptors{file}},
			oci.ErrNotBitstream,
			"artifactType a/b",
		},
		{"another config", manifest(&container, file), oci.ErrNotBitstream, "its config is application/vnd.oci.image.config.v1+json"},
		{"no layer", manifest(config("{}")), oci.ErrNotBitstream, "0 layers, expected 1"},
		{"two layers", manifest(config("{}"), file, file), oci.ErrNotBitstream, "2 layers, expected 1"},
		{"overlay", manifest(config("{}"), file, as(file, fpga.LayerTypeDTBO, 6)), oci.ErrNotBitstream, "device tree overlay"},
		{"packed", manifest(config("{}"), as(file, fpga.GBS.LayerType()+"+gzip", 6)), oci.ErrNotBitstream, "expected the file as it is"},
		{"long file", manifest(config("{}"), as(file, fpga.GBS.LayerType(), fpga.MaxFile+1)), artifact.ErrTooLarge, "expected at most 536870912"},
		{"long config", manifest(config(strings.Repeat(" ", fpga.MaxConfig)+"{}"), file), artifact.ErrTooLarge, "expected at most 16384"},
		{
			"format", manifest(config(`{"format":"rbf"}`), file), oci.ErrNotBitstream,
			"format is rbf in the config and gbs in the layer's media type",
		},
		{"unknown field", manifest(config(`{"afuID":"1"}`), file), oci.ErrNotBitstream, `unknown field "afuID"`},
		{"index of too many", fpgaregistry.Manifest{Manifests: many}, oci.ErrNotBitstream, "it has 65 manifests, expected 1 to 64"},
		{"index of an index", fpgaregistry.Manifest{Manifests: descriptors{index}}, oci.ErrNotBitstream, "manifests[0] of index"},
		{"index with a signature", fpgaregistry.Manifest{Manifests: descriptors{forA, signature}}, oci.ErrNotBitstream, "manifests[1] of index"},
		{
			"index for one interface twice",
			fpgaregistry.Manifest{Manifests: descriptors{forA, alsoA}},
			oci.ErrNotBitstream,
			"which manifests[0] is for already",
		},
		{"index without interface", fpgaregistry.Manifest{Manifests: descriptors{forA, forNone}}, oci.ErrNotBitstream, "no interfaceID"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tag := fmt.Sprintf("t%d", i)
			r.Manifest(t, repo, tag, test.manifest)
			_, err := list(t, r, ":"+tag)
			check.WantErr(t, err, test.is, test.want)
		})
	}
}

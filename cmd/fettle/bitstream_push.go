// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

const bitstreamPushHelp = `
Pushes a bitstream's file as an OCI artifact, or several, each for an interface id of its own, as one artifact for several shells.
REF is REGISTRY/REPOSITORY:TAG, or oci:DIR[:TAG] for a directory in the OCI image layout. The registry's credentials are those of
docker login. The same files give the same digest. Prints REPOSITORY@sha256:DIGEST, which a claim can name.`

// packing is what the flags say of the artifact.
type packing struct {
	sidecars list
	about    oci.About
	place    artifactPlace
	access   *access
}

// pushed is the result.
type pushed struct {
	// Reference names the artifact by its digest.
	Reference string          `json:"reference"`
	Tag       string          `json:"tag,omitempty"`
	Digest    artifact.Digest `json:"digest"`
	Images    []pushedImage   `json:"images"`
}

type pushedImage struct {
	Manifest artifact.Digest `json:"manifest"`
	Layer    artifact.Digest `json:"layer"`
	fpga.Config
}

const bitstreamPushExamples = `
fettle bitstream push nlb0.gbs registry.example/team-a/nlb0:v1
fettle bitstream push nlb0.gbs oci:nlb0:v1`

func bitstreamPush(flags *arguments) action {
	p := packing{access: flags.bitstreamAccess()}
	flags.Var(&p.sidecars, "sidecar", "`file` in JSON or YAML that describes a raw image; one for each FILE, in their order")
	flags.StringVar(&p.about.Name, "name", "", "`name` of the image, where the file has none")
	flags.StringVar(&p.about.Platform, "platform", "", "`platform` of the image, where the file has none")
	flags.Var((*list)(&p.about.BlankFor), "blank-for", "`interface` id whose regions the image wipes; may be repeated")
	flags.where("name", fpga.CheckText)
	flags.where("platform", fpga.CheckText)
	format := flags.formatOf("text", "json")
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) error {
		names, ref := operands[:len(operands)-1], operands[len(operands)-1]
		place, err := p.check(ref, len(names))
		if err != nil {
			return flags.misused(err)
		}
		p.place = place
		a, err := p.push(ctx, names, stderr)
		if err != nil {
			return fmt.Errorf("bitstream push: %w", err)
		}
		result := p.result(a)
		return show(*format, result, stdout, func(stdout io.Writer) error {
			_, err := fmt.Fprintln(stdout, result.Reference)
			return err
		})
	}
}

// check wants a tag to push to, and makes the ids canonical.
func (p *packing) check(ref string, files int) (artifactPlace, error) {
	place, err := writable(ref)
	if err != nil {
		return place, err
	}
	if n := len(p.sidecars); n > 0 && n != files {
		return place, fmt.Errorf("got %d sidecars for %d files: want one for each", n, files)
	}
	for i, id := range p.about.BlankFor {
		if p.about.BlankFor[i], err = v1alpha1.CanonicalID(id); err != nil {
			return place, fmt.Errorf("--blank-for %q: %w", id, err)
		}
	}
	return place, nil
}

func (p *packing) push(ctx context.Context, names []string, stderr io.Writer) (*oci.Artifact, error) {
	files := make([]oci.File, len(names))
	for i, name := range names {
		sidecar := ""
		if len(p.sidecars) > 0 {
			sidecar = p.sidecars[i]
		}
		file, b, err := openBitstream(name, sidecar)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		files[i] = oci.File{Name: name, Content: file, Bitstream: b}
	}
	a, err := oci.Pack(files, p.about)
	if err != nil {
		return nil, err
	}
	to, err := p.access.target(p.place)
	if err != nil {
		return nil, err
	}
	err = a.Push(ctx, to, tagOf(p.place))
	if !errors.Is(err, push.ErrRefused) {
		return a, err
	}
	// Some registries take no artifactType. The config's media type then says what the artifact is.
	fmt.Fprintf(stderr, "%v; pushing it without artifactType, which changes the digest\n", err)
	p.about.Untyped = true
	if a, err = oci.Pack(files, p.about); err != nil {
		return nil, err
	}
	return a, a.Push(ctx, to, tagOf(p.place))
}

// openBitstream reads what a file says, and leaves it open.
func openBitstream(name, sidecar string) (*os.File, fpga.Bitstream, error) {
	b, err := inspectFile(name, sidecar)
	if err != nil {
		return nil, fpga.Bitstream{}, err
	}
	file, _, err := openRegular(name)
	return file, b, err
}

func (p *packing) result(a *oci.Artifact) pushed {
	result := pushed{Reference: p.place.named(a.Root.Digest), Tag: tagOf(p.place), Digest: a.Root.Digest}
	for _, image := range a.Images {
		result.Images = append(result.Images, pushedImage{Manifest: image.Manifest, Layer: image.Layer.Digest, Config: image.Config})
	}
	return result
}

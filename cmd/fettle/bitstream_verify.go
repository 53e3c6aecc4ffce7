// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

const bitstreamVerifyHelp = `
Checks a bitstream: the artifact REF, a file, or a directory as oci:DIR[:TAG]. All bytes are read and hashed, the file is read as inspect
reads it, and what the artifact's config says is compared with it. --digest is the artifact's, or that of the one manifest or file in it.
Without --interface all bitstreams of the artifact are checked.

With --policy the artifact's signatures are checked by TrustPolicies in files, as the controller and the nodes check them: each policy that
is for the repository and the namespace has to be satisfied, and where none is the artifact is refused.`

// verification is what the flags ask for.
type verification struct {
	interfaceID string
	digest      artifact.Digest
	sidecar     string
	access      *access
	policies    *policyFlags
}

// verified is one bitstream that was checked.
type verified struct {
	// Digest is the artifact's, Manifest the bitstream's; both empty for a file.
	Digest   artifact.Digest `json:"digest,omitzero"`
	Manifest artifact.Digest `json:"manifest,omitzero"`
	// File is the digest of the file's bytes.
	File artifact.Digest `json:"file"`
	// Policies are what the policies said of the artifact; empty if none was given.
	Policies []policyVerdict `json:"policies,omitempty"`
	fpga.Bitstream
}

const bitstreamVerifyExamples = `
fettle bitstream verify nlb0.gbs
fettle bitstream verify registry.example/team-a/nlb0:v1 --policy policy.yaml
fettle bitstream verify oci:nlb0:v1 --policy policy.yaml --as registry.example/team-a/nlb0`

func bitstreamVerify(flags *arguments) action {
	v := verification{access: flags.bitstreamAccess(), policies: flags.policies()}
	iface := flags.String("interface", "", "interface `id` that the bitstream must be for")
	digest := flags.String("digest", "", "`digest` that it must have, sha256:HEX")
	flags.where("digest", unless(isDigest))
	flags.StringVar(&v.sidecar, "sidecar", "", "`file` in JSON or YAML that describes a raw image")
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, _ io.Writer) error {
		if err := v.set(*iface, *digest); err != nil {
			return flags.misused(err)
		}
		all, err := v.run(ctx, operands[0])
		if err != nil {
			return fmt.Errorf("bitstream verify: %w", err)
		}
		return show(*format, all, stdout, func(stdout io.Writer) error { return showVerifiedTable(all, stdout) })
	}
}

func (v *verification) set(iface, digest string) (err error) {
	if iface != "" {
		if v.interfaceID, err = v1alpha1.CanonicalID(iface); err != nil {
			return fmt.Errorf("--interface %q: %w", iface, err)
		}
	}
	if p := v.policies; len(p.files) == 0 && p.root+p.namespace+p.as != "" {
		return errors.New("--trusted-root, --namespace and --as go with --policy")
	}
	if digest != "" {
		v.digest, err = artifact.ParseDigest(digest)
	}
	return err
}

// run takes what exists as a file for one.
func (v *verification) run(ctx context.Context, name string) ([]verified, error) {
	if _, err := os.Stat(name); err == nil {
		if len(v.policies.files) > 0 {
			return nil, errors.New("--policy is for an artifact: push the file and sign what it becomes")
		}
		return v.file(name)
	}
	place, err := parsePlace(name)
	if err != nil {
		return nil, fmt.Errorf("there is no file of that name, and no reference: %w", err)
	}
	if v.sidecar != "" {
		return nil, errors.New("--sidecar is for a file; an artifact's config says what is in it")
	}
	as := artifact.Reference{}
	if len(v.policies.files) > 0 {
		if as, err = v.policies.reference(place); err != nil {
			return nil, err
		}
	}
	if place.dir != "" {
		src := layout.At(place.dir).Source(place.tag, place.digest, as)
		return v.artifact(ctx, src, func(d artifact.Descriptor) (content, error) {
			f, err := src.File(d)
			return content{f, f}, err
		})
	}
	return v.remote(ctx, place)
}

func (v *verification) file(name string) ([]verified, error) {
	file, b, err := openBitstream(name, v.sidecar)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	digest, size, err := hash(file)
	if err != nil {
		return nil, err
	}
	if err := v.wanted(b, digest); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if size != b.Size {
		return nil, fmt.Errorf("%s: size: %d bytes when it was read, then %d", name, b.Size, size)
	}
	return []verified{{File: digest, Bitstream: b}}, nil
}

// wanted compares with the flags. Any of the digests may be the one.
func (v *verification) wanted(b fpga.Bitstream, digests ...artifact.Digest) error {
	if v.interfaceID != "" && b.InterfaceID != v.interfaceID {
		return fmt.Errorf("interfaceID: got %s, want %s", orNone(b.InterfaceID), v.interfaceID)
	}
	if v.digest.IsZero() {
		return nil
	}
	text := ""
	for _, d := range digests {
		if d == v.digest {
			return nil
		}
		text += ", " + d.String()
	}
	return fmt.Errorf("digest: got %s, want %s", text[2:], v.digest)
}

func orNone(s string) string { return cmp.Or(s, "none") }

// remote pulls into a store that is gone afterwards.
func (v *verification) remote(ctx context.Context, place artifactPlace) (all []verified, err error) {
	src, err := v.access.remote(place)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fettle-verify-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := artifact.OpenStore(dir, artifact.StoreConfig{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return v.artifact(ctx, countedSource{src}, func(d artifact.Descriptor) (content, error) {
		if err := store.Fetch(ctx, countedPuller{src}, d); err != nil {
			return content{}, err
		}
		b, err := store.Open(d.Digest)
		if err != nil {
			return content{}, err
		}
		return content{b, b}, nil
	})
}

// content is an open layer.
type content struct {
	io.ReaderAt
	io.Closer
}

// judge finds out which artifact a source is, and asks the policies about it if there are any.
func (v *verification) judge(ctx context.Context, src imageSource) (artifact.Descriptor, []policyVerdict, error) {
	if len(v.policies.files) == 0 {
		d, err := src.Resolve(ctx)
		return d, nil, err
	}
	d, verdict, err := v.policies.judge(ctx, src, v.access)
	return d, verdicts(verdict), err
}

// artifact checks the bitstreams of one. It opens one layer at a time.
func (v *verification) artifact(
	ctx context.Context, src imageSource, open func(artifact.Descriptor) (content, error),
) ([]verified, error) {
	d, policies, err := v.judge(ctx, src)
	if err != nil {
		return nil, err
	}
	images, err := oci.List(ctx, src, d)
	if err != nil {
		return nil, err
	}
	var all []verified
	for _, image := range images {
		if v.interfaceID != "" && len(images) > 1 && image.Config.InterfaceID != v.interfaceID {
			continue
		}
		one, err := v.image(image, open)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", image.Manifest, err)
		}
		one.Digest, one.Policies = d.Digest, policies
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("interfaceID: none of the %d bitstreams is for %s", len(images), v.interfaceID)
	}
	for _, one := range all {
		digests := []artifact.Digest{one.Digest}
		if len(all) == 1 {
			digests = append(digests, one.Manifest, one.File)
		}
		if err := v.wanted(one.Bitstream, digests...); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// image reads a layer twice: once for its digest, once for what is in it.
func (v *verification) image(image oci.Image, open func(artifact.Descriptor) (content, error)) (verified, error) {
	layer, err := open(image.Layer)
	if err != nil {
		return verified{}, err
	}
	defer layer.Close()
	digest, size, err := hash(layer)
	if err != nil {
		return verified{}, err
	}
	if digest != image.Layer.Digest || size != image.Layer.Size {
		return verified{}, fmt.Errorf("layer: got %d bytes with digest %s, the manifest says %d with %s",
			size, digest, image.Layer.Size, image.Layer.Digest)
	}
	b, err := image.Config.Inspect(layer, size)
	if err != nil {
		return verified{}, err
	}
	return verified{Manifest: image.Manifest, File: digest, Bitstream: b}, nil
}

// hash reads all there is.
func hash(r io.ReaderAt) (artifact.Digest, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(r, 0, fpga.MaxFile+1))
	if err == nil && n > fpga.MaxFile {
		err = fmt.Errorf("size: expected at most %d bytes", int64(fpga.MaxFile))
	}
	return artifact.Digest(h.Sum(nil)), n, err
}

// showVerifiedTable shows what inspect does, and the digests.
func showVerifiedTable(all []verified, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	line := lineWriter(table)
	for i, one := range all {
		if i > 0 {
			fmt.Fprintln(table)
		}
		line("DIGEST", one.Digest.String())
		line("MANIFEST", one.Manifest.String())
		line("FILE", one.File.String())
		bitstreamLines(one.Bitstream, "CARD SIGNATURE", line)
		if one.Policies == nil {
			line("SIGNATURE", "not checked")
		}
		policyLines(one.Policies, line)
	}
	return table.Flush()
}

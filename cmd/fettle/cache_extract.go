// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache/image"
)

const cacheExtractHelp = `
Verifies an image and brings its cache to DIR, which must be empty or not be there: what the image has in io.TYPE.cache is what DIR has, for
everybody to read. All of it is read, compared and synced first; then DIR is there, whole. Who is to be believed is said by --policy, or the
digest that somebody verified is given with --digest.

With --into, DIR is there already and may be a volume's root. Entries of an earlier extraction are replaced, others stay, and the file
.fettle-digest is written last; if it names the digest already, nothing is done. It may be cut off at any point and begun anew.`

// extracting is what the flags ask for.
type extracting struct {
	access    *access
	policies  *policyFlags
	digest    artifact.Digest
	skip      bool
	into      bool
	mountPath string
}

// extractedCache is the result.
type extractedCache struct {
	Digest artifact.Digest `json:"digest"`
	Dir    string          `json:"dir"`
	// Present: it was there, and nothing was read.
	Present   bool  `json:"present,omitempty"`
	Files     int   `json:"files,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`
	Rewritten int   `json:"rewritten,omitempty"`
}

const cacheExtractExamples = `
fettle cache extract registry.example/team/kernels:v1 kernels --policy policy.yaml
fettle cache extract oci:kernels:v1 kernels --insecure-skip-verify`

func cacheExtract(flags *arguments) action {
	x := extracting{access: flags.cacheAccess(), policies: flags.policies()}
	digest := flags.String("digest", "", "`digest`, sha256:HEX, that was verified: of the image, or of the index that it is in")
	flags.where("digest", unless(isDigest))
	flags.BoolVar(&x.skip, "insecure-skip-verify", false, "believe whoever may push to the repository; what is in the image runs in pods")
	flags.BoolVar(&x.into, "into", false, "fill a directory that is there")
	flags.StringVar(&x.mountPath, "mount-path", "", "`path` where programs will find the cache; files that name another are rewritten for it")
	flags.where("mount-path", unless(mountpath.Check))
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) error {
		place, err := x.check(operands[0], *digest)
		if err != nil {
			return flags.misused(err)
		}
		result, err := x.run(ctx, place, operands[1], stderr)
		if err != nil {
			return fmt.Errorf("cache extract: %w", err)
		}
		return show(*format, result, stdout, func(w io.Writer) error {
			text := fmt.Sprintf("%d files with %d bytes", result.Files, result.Bytes)
			if result.Present {
				text = "was there already"
			}
			_, err := fmt.Fprintf(w, "%s: %s %s\n", result.Dir, result.Digest, text)
			return err
		})
	}
}

// check wants one way to know whom to believe.
func (x *extracting) check(ref, digest string) (artifactPlace, error) {
	place, err := parsePlace(ref)
	if err != nil {
		return place, err
	}
	ways := 0
	for _, way := range []bool{len(x.policies.files) > 0, digest != "", x.skip} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		return place, errors.New("want one of --policy, --digest and --insecure-skip-verify")
	}
	if digest == "" {
		return place, nil
	}
	if x.digest, err = artifact.ParseDigest(digest); err != nil {
		return place, err
	}
	if named := max(place.digest.String(), place.remote.Digest().String()); named != "" && named != digest {
		return place, fmt.Errorf("--digest %s is not that of %s", digest, ref)
	}
	if place.dir != "" {
		place.digest = x.digest
	} else {
		place.remote = place.remote.WithDigest(x.digest)
	}
	return place, nil
}

func (x *extracting) run(ctx context.Context, place artifactPlace, dir string, stderr io.Writer) (*extractedCache, error) {
	if x.into && !x.digest.IsZero() {
		// Nobody has to be asked about what is there.
		present, err := image.Present(dir, x.digest, x.mountPath)
		if err != nil || present {
			return &extractedCache{Digest: x.digest, Dir: dir, Present: true}, err
		}
	}
	source, resolved, err := x.verified(ctx, place, stderr)
	if err != nil {
		return nil, err
	}
	from, err := artifact.ReadImage(ctx, source, resolved, platform())
	if err != nil {
		return nil, err
	}
	done, err := readTwice(source, func(source imageSource) (*image.Extracted, error) {
		e := image.Extraction{Source: source, Image: from, MountPath: x.mountPath}
		if x.into {
			return e.Into(ctx, dir, resolved.Digest)
		}
		return e.Extract(ctx, dir)
	})
	if err != nil {
		return nil, err
	}
	return &extractedCache{
		Digest: resolved.Digest, Dir: dir, Present: done.Present, Files: done.Cache.Files, Bytes: done.Cache.Bytes, Rewritten: done.Rewritten,
	}, nil
}

// verified is the source, with the digest that may be extracted from it.
func (x *extracting) verified(ctx context.Context, place artifactPlace, stderr io.Writer) (imageSource, artifact.Descriptor, error) {
	if len(x.policies.files) == 0 {
		source, err := x.access.source(place, artifact.Reference{})
		if err != nil {
			return nil, artifact.Descriptor{}, err
		}
		d, err := source.Resolve(ctx)
		if err == nil && !x.digest.IsZero() && d.Digest != x.digest {
			err = fmt.Errorf("got digest %s, want %s", d.Digest, x.digest)
		}
		return source, d, err
	}
	as, err := x.policies.reference(place)
	if err != nil {
		return nil, artifact.Descriptor{}, err
	}
	source, err := x.access.source(place, as)
	if err != nil {
		return nil, artifact.Descriptor{}, err
	}
	d, verdict, err := x.policies.judge(ctx, source, x.access)
	for _, warning := range verdict.Warnings {
		fmt.Fprintf(stderr, "warning: %v\n", warning)
	}
	return source, d, err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
)

// layoutPrefix begins a REF that is a directory.
const layoutPrefix = "oci:"

// place of an artifact: a directory or a registry's repository.
type artifactPlace struct {
	// dir is an OCI layout; empty: remote counts.
	dir    string
	tag    string
	digest artifact.Digest
	remote artifact.Reference
}

// layoutSuffix is the tag or digest after a directory.
var layoutSuffix = regexp.MustCompile(`^(.+?)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?$`)

// parsePlace reads a REF. It must name its registry, as the objects of the cluster must: nothing is taken from docker.io by omission.
func parsePlace(text string) (artifactPlace, error) {
	rest, isLayout := strings.CutPrefix(text, layoutPrefix)
	if !isLayout {
		if !namesRegistry(text) {
			return artifactPlace{}, fmt.Errorf("%q: expected REGISTRY/REPOSITORY:TAG, with a registry that has a dot or a port, or oci:DIR", text)
		}
		ref, err := artifact.ParseReference(text)
		return artifactPlace{remote: ref}, err
	}
	m := layoutSuffix.FindStringSubmatch(rest)
	if m == nil {
		return artifactPlace{}, fmt.Errorf("%q: expected oci:DIR, oci:DIR:TAG or oci:DIR@sha256:DIGEST", text)
	}
	p := artifactPlace{dir: m[1], tag: m[2]}
	var err error
	if m[3] != "" {
		p.digest, err = artifact.ParseDigest(m[3])
	}
	return p, err
}

// isDigest wants the digest of something.
func isDigest(value string) error {
	_, err := artifact.ParseDigest(value)
	return err
}

// namesRegistry says whether a text begins with a registry, and could be a REF at all.
func namesRegistry(text string) bool {
	host, _, found := strings.Cut(text, "/")
	return found && host != "." && host != ".." && (strings.ContainsAny(host, ".:") || host == "localhost")
}

// named is the place with a digest, as users paste it into objects: a registry's without the tag, which FPGAConfig refuses.
func (p artifactPlace) named(d artifact.Digest) string {
	if p.dir != "" {
		return layoutPrefix + p.dir + "@" + d.String()
	}
	return p.remote.WithDigest(d).String()
}

// layoutTarget makes the directory of a place a layout where it is none, to be written to.
func (p artifactPlace) layoutTarget() (push.Target, error) {
	l := layout.At(p.dir)
	return l, l.Create()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// access is how registries are reached, from the flags.
type access struct {
	plainHTTP               bool
	registries, credentials string
}

// bitstreamAccess declares the flags of the commands for bitstreams, which always use the credentials of docker login.
func (a *arguments) bitstreamAccess() *access {
	c := &access{}
	a.BoolVar(&c.plainHTTP, "plain-http", false, "speak plain http with the registry of REF")
	a.StringVar(&c.registries, "config", "", "`file` that says how registries are reached: plainHTTP, mirrors, caFile")
	return c
}

// cacheAccess declares the flags of the commands for caches.
func (a *arguments) cacheAccess() *access {
	c := &access{}
	a.BoolVar(&c.plainHTTP, "plain-http", false, "speak plain http with the registries that are named here")
	a.StringVar(&c.registries, "registries", "", "`file` that says how registries are reached: plainHTTP, mirrors, caFile")
	a.StringVar(&c.credentials, "registry-config", "",
		"`file` of credentials, a .dockerconfigjson, or directory of such files; unset: those of docker login")
	return c
}

func (c *access) config(p artifactPlace) (registry.Config, error) {
	config, err := registry.LoadConfig(c.registries)
	if c.plainHTTP {
		config.PlainHTTP = append(config.PlainHTTP, p.remote.Registry())
	}
	config.UserAgent = "fettle"
	return config, err
}

func (c *access) keys() (authn.Keychain, error) {
	if c.credentials == "" {
		return authn.DefaultKeychain, nil
	}
	all, err := readCredentials(c.credentials)
	if err != nil {
		return nil, fmt.Errorf("read the credentials: %w", err)
	}
	return registry.NewKeychain(all...)
}

// readCredentials reads a file, or those of a directory in the order of their names. Kubernetes has hidden ones of its own in directories.
func readCredentials(name string) ([]registry.DockerConfig, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	names := []string{name}
	if info.IsDir() {
		entries, err := os.ReadDir(name)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				names = append(names, filepath.Join(name, e.Name()))
			}
		}
	}
	var all []registry.DockerConfig
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, registry.DockerConfig{Name: name, Data: data, Legacy: filepath.Ext(name) == ".dockercfg"})
	}
	return all, nil
}

// imageSource is where an image is read, with its signatures and layers.
type imageSource interface {
	trust.Source
	push.Source
}

// source opens a REF to read. Where as is given, it is the repository that the image is taken to be of.
func (c *access) source(p artifactPlace, as artifact.Reference) (imageSource, error) {
	if p.dir != "" {
		return countedSource{layout.At(p.dir).Source(p.tag, p.digest, as)}, nil
	}
	source, err := c.remote(p)
	if err != nil {
		return nil, err
	}
	return countedSource{source}, nil
}

// readTwice reads an image. If that fails for good after a mirror was asked, it reads the image once more at the registry itself, or at
// the next mirror, as a node does: what a mirror brings of a layer is compared only when all of it was read.
func readTwice[T any](source imageSource, read func(imageSource) (T, error)) (T, error) {
	out, err := read(source)
	counted, ok := source.(countedSource)
	if err == nil || !ok {
		return out, err
	}
	from, ok := counted.imageSource.(*registry.Source)
	_, refused := errors.AsType[*unpack.Error](err)
	if !ok || artifact.IsRetryable(err) && !refused && !from.Mixed() {
		return out, err
	}
	for again := from.Again(); err != nil && again != nil; again = again.Again() {
		out, err = read(countedSource{again})
	}
	return out, err
}

// remote opens the repository of a REF to read.
func (c *access) remote(p artifactPlace) (*registry.Source, error) {
	config, err := c.config(p)
	if err != nil {
		return nil, err
	}
	client, err := registry.NewClient(config)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	return client.Source(p.remote, keys), nil
}

// target opens a REF to write.
func (c *access) target(p artifactPlace) (push.Target, error) {
	to, err := c.plainTarget(p)
	if err != nil {
		return nil, err
	}
	return countedTarget{to}, nil
}

func (c *access) plainTarget(p artifactPlace) (push.Target, error) {
	if p.dir != "" {
		return p.layoutTarget()
	}
	config, err := c.config(p)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	return push.NewRepository(p.remote, config, keys)
}

// tagOf is the tag that a REF names, empty where it has none.
func tagOf(p artifactPlace) string {
	if p.dir != "" {
		return p.tag
	}
	return p.remote.Tag()
}

// writable wants a REF that something can be written to: the digest is what comes out.
func writable(text string) (artifactPlace, error) {
	p, err := parsePlace(text)
	if err == nil && (!p.digest.IsZero() || p.dir == "" && p.remote.Tag() == "") {
		err = fmt.Errorf("%s: expected a tag; the digest is what a push gives", text)
	}
	return p, err
}

// foundImage is an image with the place that it is read from.
type foundImage struct {
	source imageSource
	// resolved is what the reference means: the image, or an index that it is in.
	resolved artifact.Descriptor
	image    *artifact.Image
}

// platform is that of the image that counts in an index for several.
func platform() string { return "linux/" + runtime.GOARCH }

func (c *access) find(ctx context.Context, p artifactPlace) (foundImage, error) {
	source, err := c.source(p, artifact.Reference{})
	if err != nil {
		return foundImage{}, err
	}
	d, err := source.Resolve(ctx)
	if err != nil {
		return foundImage{}, err
	}
	image, err := artifact.ReadImage(ctx, source, d, platform())
	return foundImage{source, d, image}, err
}

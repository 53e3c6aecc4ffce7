// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// remoteImage opens the blobs of a registry's repository. It is the one place that knows how.
type remoteImage struct{ *artifact.Source }

// Open fetches a blob into a store of its own, which is gone when it is closed.
func (r remoteImage) Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	dir, err := os.MkdirTemp("", "fettle-cache-")
	if err != nil {
		return nil, err
	}
	blob := &fetched{dir: dir}
	if err := blob.open(ctx, r.Source, d); err != nil {
		return nil, errors.Join(err, blob.Close())
	}
	return blob, nil
}

type fetched struct {
	io.Reader
	dir   string
	store *artifact.Store
	blob  *artifact.Blob
}

func (f *fetched) open(ctx context.Context, src *artifact.Source, d artifact.Descriptor) (err error) {
	if f.store, err = artifact.OpenStore(f.dir, artifact.StoreConfig{}); err != nil {
		return err
	}
	if err = f.store.Fetch(ctx, src, d); err != nil {
		return err
	}
	if f.blob, err = f.store.Open(d.Digest); err != nil {
		return err
	}
	f.Reader = io.NewSectionReader(f.blob, 0, f.blob.Size())
	return nil
}

// Close removes all.
func (f *fetched) Close() error {
	var errs []error
	if f.blob != nil {
		errs = append(errs, f.blob.Close())
	}
	if f.store != nil {
		errs = append(errs, f.store.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

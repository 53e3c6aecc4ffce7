// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// restore fetches the image of a cache that a claim has, where it is not in the store any more: its digest says what it is.
func (f *Feature) restore(ctx context.Context, u *cachemount.Use) error {
	store, err := f.Store()
	if err != nil {
		return err
	}
	if _, err := store.OpenTree(u.Tree); !errors.Is(err, fs.ErrNotExist) {
		return err // it is here, and was used just now: nothing evicts it before the step pins it
	}
	ref, err := artifact.ParseReference(u.Reference)
	if err != nil {
		return err
	}
	keys, err := f.Credentials(ctx, u.SecretsIn, u.Secrets)
	if err != nil {
		return fmt.Errorf("%s %w: %w", u, cachemount.ErrNotReady, err)
	}
	src := f.Client.Source(ref, keys)
	image, err := artifact.ReadImage(ctx, src, artifact.Descriptor{Digest: u.Tree}, "linux/"+runtime.GOARCH)
	if err == nil {
		_, err = f.unpack(ctx, src, image, false)
	}
	if err != nil {
		return unavailable(&object{kind: u.Kind, namespace: u.Namespace, name: u.Name}, err)
	}
	return nil
}

// restoreAll restores what is missing of a claim's caches.
func (f *Feature) restoreAll(ctx context.Context, uses map[string][]cachemount.Use) error {
	var errs []error
	for _, request := range slices.Sorted(maps.Keys(uses)) {
		for i := range uses[request] {
			if err := f.restore(ctx, &uses[request][i]); err != nil {
				errs = append(errs, fmt.Errorf("request %s: %w", request, err))
			}
		}
	}
	return errors.Join(errs...)
}

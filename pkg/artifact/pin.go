// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
)

// ownerForm matches a UID, or a word and a device's name, but not ".", ".." or a path.
var ownerForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func pinDir(d Digest) string { return pinsDir + "/" + d.Hex() }

// Pin keeps a blob or tree from being evicted until its owner unpins it, also over restarts. It may be called before Fetch, so that
// nothing is evicted between the two. Pins are not synced: after a power loss the claim is prepared again and pins again, and a blob that
// was evicted meanwhile is fetched again.
func (s *Store) Pin(ctx context.Context, d Digest, owner string) error {
	return pin(ctx, s, d, owner, "")
}

// clusterPin stands in a pin for the namespace of what belongs to the cluster.
const clusterPin = "."

// PinFor is Pin for an owner whose object is of a namespace, or of the cluster if that is empty. A tree that only others pin than the
// namespace that it was made for does not count for the share of that namespace.
func (s *Store) PinFor(ctx context.Context, d Digest, owner, namespace string) error {
	return pin(ctx, s, d, owner, cmp.Or(namespace, clusterPin))
}

func pin(ctx context.Context, s *Store, d Digest, owner, namespace string) error {
	return s.changePin(ctx, "pin", d, owner, func(pin string) error {
		err := makePin(&s.directory, pin, namespace)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		dir := s.path(pinDir(d))
		if err := s.fs.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err = makePin(&s.directory, pin, namespace); err != nil {
			_ = s.fs.Remove(dir)
		}
		return err
	})
}

// makePin makes the file of a pin. It holds the tree without the namespace, too, as a full disk or an earlier version leaves it: the tree
// then counts for the namespace that it was made for.
func makePin(s *directory, pin, namespace string) error {
	f, err := s.fs.OpenFile(s.path(pin), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if namespace != "" {
		_, _ = f.Write([]byte(namespace))
	}
	return f.Close()
}

// heldByOthers reports whether a tree is pinned, and only by other namespaces than the one that it was made for.
func heldByOthers(s *directory, tree item) bool {
	for _, owner := range tree.pins {
		namespace, err := s.root.ReadFile(pinDir(tree.digest) + "/" + owner)
		if err != nil || len(namespace) == 0 || string(namespace) == tree.namespace {
			return false
		}
	}
	return len(tree.pins) > 0
}

// Unpin removes the owner's pin. The blob or tree was in use until now. Unpin needs no space on the disk. The directory stays as long as
// the blob, since making it for the next owner takes longer than everything else in Pin.
func (s *Store) Unpin(ctx context.Context, d Digest, owner string) error {
	return s.changePin(ctx, "unpin", d, owner, func(pin string) error {
		s.touch(d) // one of the two is there
		s.touchName(treeName(d))
		return s.remove(pin)
	})
}

// dropPinDirs removes empty pin directories of blobs and trees that are not there. The caller holds the lock of the names.
func (s *directory) dropPinDirs() error {
	return s.each(pinsDir, func(name string, _ fs.FileInfo) {
		var d Digest
		if !parseHex(&d, name) {
			return
		}
		for _, there := range []string{blobName(d), treeName(d)} {
			if _, err := s.root.Lstat(there); err == nil {
				return
			}
		}
		_ = s.fs.Remove(s.path(pinDir(d))) // fails unless it is empty
	})
}

func (s *Store) changePin(ctx context.Context, verb string, d Digest, owner string, do func(pin string) error) error {
	if d.IsZero() || !ownerForm.MatchString(owner) {
		return fmt.Errorf("%s the blob %s for %s is %w: expected a digest, and an owner of at most 128 letters, digits, ., _ and -",
			verb, quote(d.String()), quote(owner), ErrInvalid)
	}
	unlock, err := s.lockNames(ctx)
	if err == nil {
		defer unlock()
		err = onDisk(do(pinDir(d) + "/" + owner))
	}
	if err != nil {
		return fmt.Errorf("%s the blob %s for %s: %w", verb, d, owner, err)
	}
	return nil
}

// Pins returns the owners of a blob's pins, sorted, whether the blob is there or not.
func (s *Store) Pins(d Digest) ([]string, error) {
	owners, err := s.pinsOf(d)
	if err != nil {
		return nil, fmt.Errorf("read the pins of the blob %s: %w", d, err)
	}
	return owners, nil
}

func (s *directory) pinsOf(d Digest) ([]string, error) {
	f, err := s.root.Open(pinDir(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, onDisk(err)
	}
	defer f.Close()
	owners, err := f.Readdirnames(-1)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(owners) == 0 {
		return nil, nil // the last pin may have been removed between the two calls
	}
	slices.Sort(owners)
	return owners, onDisk(err)
}

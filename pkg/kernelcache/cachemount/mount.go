// SPDX-License-Identifier: Apache-2.0

// Package cachemount mounts kernel caches for claims. It is the code of the step: it fetches nothing, and imports nothing of Kubernetes.
package cachemount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Mounter mounts caches on one node.
type Mounter struct {
	// Mounts is the directory of mounts, Dir one of the mounter's own, which outlives the process.
	Mounts *hostmount.Dir
	Dir    string
	// Context is the SELinux context of what containers see. Empty: none.
	Context string
	// MaxEntries is the most files, links and directories that the plugin makes in memory for one cache of a claim. 0: no limit.
	MaxEntries int64
	// Turns limits how many caches are looked through and seeds made at once. Nil: no limit.
	Turns *budget.Turns

	inspector inspector
}

// Stored is a cache in the node's store.
type Stored struct {
	Store *artifact.Store
	Tree  *artifact.Tree
	// Cache is what Inspect found in the tree.
	Cache *kernelcache.Cache
}

// read calls do with the tree's files.
func (s *Stored) read(do func(fs.FS) error) error { return s.Store.ReadTree(s.Tree, do) }

// Kind does and undoes the step. open opens the node's store, which most nodes do not have before they need it.
func (m *Mounter) Kind(open func() (*artifact.Store, error)) step.Kind {
	return step.Kind{
		Apply: func(ctx context.Context, raw json.RawMessage) error {
			u, err := decodeUse(raw)
			if err != nil {
				return err
			}
			store, err := open()
			if err != nil {
				return err
			}
			return m.apply(ctx, store, u)
		},
		Undo: func(ctx context.Context, raw json.RawMessage) error {
			u, err := decodeUse(raw)
			if err != nil {
				return err
			}
			if err := m.detach(u); err != nil { // whatever becomes of the store
				return err
			}
			store, err := open()
			if errors.Is(err, artifact.ErrNoStore) {
				return nil // the claim was refused because the disk has no space for a store
			}
			if err != nil {
				return err
			}
			return store.Unpin(ctx, u.Tree, u.Owner)
		},
		Needs: needs,
	}
}

func decodeUse(raw json.RawMessage) (*Use, error) {
	var u Use
	if err := json.Unmarshal(raw, &u); err != nil {
		return nil, fmt.Errorf("decode the parameters: %w", err)
	}
	if u.Tree.IsZero() || u.Owner == "" || u.Owner == treeMounts {
		return nil, fmt.Errorf("the parameters name no image or no claim")
	}
	return &u, nil
}

// apply keeps the tree from being evicted, and mounts it. Whatever of it is there stays.
func (m *Mounter) apply(ctx context.Context, store *artifact.Store, u *Use) error {
	if err := store.PinFor(ctx, u.Tree, u.Owner, u.Namespace); err != nil {
		return err
	}
	tree, err := openTree(store, u)
	if err != nil {
		return err
	}
	found, err := m.Inspect(ctx, store, tree, u.Namespace, u.Type)
	if err != nil {
		return err
	}
	plan, err := found.Plan(u.Want)
	if err != nil {
		return err
	}
	if len(plan.Mounts) != len(u.Mounts) {
		return fmt.Errorf("%s %w: its image is to be mounted in another way than was recorded: delete the pod", u, ErrRefused)
	}
	s := &Stored{Store: store, Tree: tree, Cache: found}
	if u.Access == Seed {
		done, err := m.turn(ctx, u.Namespace)
		if err != nil {
			return err
		}
		err = atLowPriority(func() error { return m.fillSeeds(s, u, &plan) })
		if done(); err != nil {
			return err
		}
	}
	unlock, err := m.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	root, err := m.root(tree)
	if err != nil {
		return err
	}
	for i := range plan.Mounts {
		if err := m.mount(s, u, i, root, &plan.Mounts[i]); err != nil {
			return fmt.Errorf("%s: mount %s: %w", u, u.Mounts[i].Target, err)
		}
	}
	return nil
}

// openTree opens what was in the store when the claim was planned.
func openTree(store *artifact.Store, u *Use) (*artifact.Tree, error) {
	tree, err := store.OpenTree(u.Tree)
	if artifact.NeedsUnpack(err) {
		return nil, fmt.Errorf("%s %w: its image is not in the node's store any more: kubelet asks again, and it is fetched again",
			u, ErrNotReady)
	}
	return tree, err
}

// root is where the tree's files are: in both forms by way of a mount, which says that they are in use. The caller holds the lock of trees.
func (m *Mounter) root(tree *artifact.Tree) (string, error) {
	name := treeName(tree.Digest)
	if root := tree.Root(); root != "" {
		return m.Mounts.Path(name), m.Mounts.BindReadOnly(name, root)
	}
	index, data := tree.Image()
	return m.Mounts.MountImage(name, index, data, m.Context)
}

// mount makes one of the claim's mounts.
func (m *Mounter) mount(s *Stored, u *Use, i int, root string, dir *kernelcache.Mount) error {
	lower := filepath.Join(root, dir.Source)
	if u.Access == Seed {
		return m.Mounts.BindReadOnly(u.filesName(i), lower)
	}
	if u.Access == ReadOnly && dir.Relocation == nil {
		return m.Mounts.BindReadOnly(u.name(i), lower)
	}
	return m.Mounts.MountOverlay(u.name(i), m.layers(s, u, lower, dir))
}

// detach takes the claim's mounts away. The tree stays mounted for the next claim.
func (m *Mounter) detach(u *Use) error {
	for i := range u.Mounts {
		names := []string{u.name(i)}
		if u.Access == Seed {
			names = append(names, u.filesName(i))
		}
		for _, name := range names {
			if err := m.Mounts.Detach(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Edits are what the claim's containers get.
func (m *Mounter) Edits(u *Use) container.Edits {
	var out container.Edits
	seeded := u.Access == Seed
	for i, at := range u.Mounts {
		out.Mounts = append(out.Mounts, container.Mount{
			HostPath: m.Mounts.Path(u.name(i)), ContainerPath: at.Target, ReadOnly: u.Access == ReadOnly, NonRecursive: true,
		})
		if seeded {
			out.Mounts = append(out.Mounts, container.Mount{
				HostPath: m.Mounts.Path(u.filesName(i)), ContainerPath: u.filesPlace(i), ReadOnly: true, NonRecursive: true,
			})
		}
	}
	for _, e := range u.Env {
		out.Env = append(out.Env, e.Name+"="+e.Value)
	}
	return out
}

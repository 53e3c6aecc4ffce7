// SPDX-License-Identifier: Apache-2.0

package caches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step that mounts a cache for a claim, and takes it away.
const StepKind = "cache.mount"

// treeMounts is where images are mounted, once for all claims, as if it were a claim's name: a UID has no such form.
const treeMounts = "trees"

// treeName is that of the mount of an image.
func treeName(d artifact.Digest) string { return path.Join(treeMounts, d.Hex()) }

// Use is a cache as one claim has it. It is what is decided, recorded, and the parameters of the step.
type Use struct {
	// Kind, Namespace, Name and UID are the object's.
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Digest is what the object resolved to, Tree the image that the node has.
	Digest artifact.Digest `json:"digest"`
	Tree   artifact.Digest `json:"tree"`
	// Owner is what the tree is kept for: the claim's UID. Key tells its caches apart.
	Owner string `json:"owner"`
	Key   string `json:"key"`
	// Reference is where the tree comes from, should it have been evicted. Secrets are pull secrets in the namespace SecretsIn.
	Reference string   `json:"reference"`
	SecretsIn string   `json:"secretsIn,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
	// Type is what the cache is taken for, Want the directory that somebody asked for. Both decide how it is mounted.
	Type   v1alpha1.CacheType   `json:"type,omitempty"`
	Want   string               `json:"want,omitempty"`
	Access v1alpha1.CacheAccess `json:"access"`
	// Bytes is how much the claim may add.
	Bytes  int64             `json:"bytes"`
	Mounts []Mount           `json:"mounts,omitempty"`
	Env    []kernelcache.Env `json:"env,omitempty"`
}

// Mount is one directory of a cache and its place in containers.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

func (u *Use) of() string {
	if u.Namespace == "" {
		return u.Kind + " " + u.Name
	}
	return u.Kind + " " + u.Namespace + "/" + u.Name
}

// name is that of one of the mounts.
func (u *Use) name(i int) string { return path.Join(u.Owner, u.Key+"-"+strconv.Itoa(i)) }

// Step is the step that gives the claim the cache.
func (u *Use) Step() (step.Step, error) {
	raw, err := json.Marshal(u)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode step %s: %w", StepKind, err)
	}
	return step.Step{Kind: StepKind, Target: u.Key, Params: raw}, nil
}

// Edits are what the claim's containers get.
func (k *Keeper) Edits(u *Use) container.Edits {
	var out container.Edits
	seeded := u.Access == v1alpha1.CacheAccessSeed
	for i, m := range u.Mounts {
		out.Mounts = append(out.Mounts, container.Mount{
			HostPath: k.Mounts.At(u.name(i)), ContainerPath: m.Target, ReadOnly: u.Access == v1alpha1.CacheAccessReadOnly, Alone: true,
		})
		if seeded {
			out.Mounts = append(out.Mounts, container.Mount{
				HostPath: k.Mounts.At(u.filesName(i)), ContainerPath: u.filesPlace(i), ReadOnly: true, Alone: true,
			})
		}
	}
	for _, e := range u.Env {
		out.Env = append(out.Env, e.Name+"="+e.Value)
	}
	return out
}

// Kind does and undoes the step.
func (k *Keeper) Kind() step.Kind {
	return step.Kind{
		Apply: func(ctx context.Context, raw json.RawMessage) error {
			u, err := decodeUse(raw)
			if err != nil {
				return err
			}
			return k.apply(ctx, u)
		},
		Undo: func(ctx context.Context, raw json.RawMessage) error {
			u, err := decodeUse(raw)
			if err != nil {
				return err
			}
			return k.undo(ctx, u)
		},
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

// apply keeps the tree from being evicted, brings it back where it was, and mounts it. Whatever of it is there stays.
func (k *Keeper) apply(ctx context.Context, u *Use) error {
	store, err := k.Store()
	if err != nil {
		return err
	}
	if err := store.Pin(ctx, u.Tree, u.Owner); err != nil {
		return err
	}
	tree, err := k.tree(ctx, store, u)
	if err != nil {
		return err
	}
	found, err := k.inspect(store, tree, kernelcache.Type(u.Type))
	if err != nil {
		return err
	}
	plan, err := found.Plan(u.Want)
	if err != nil {
		return err
	}
	if len(plan.Mounts) != len(u.Mounts) {
		return fmt.Errorf("%s %w: its image is to be mounted in another way than was recorded: delete the pod", u.of(), errRefused)
	}
	if u.Access == v1alpha1.CacheAccessSeed {
		if err := k.sow(store, tree, found, u, &plan); err != nil {
			return err
		}
	}
	unlock, err := k.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	root, err := k.root(tree)
	if err != nil {
		return err
	}
	for i := range plan.Mounts {
		if err := k.mount(store, tree, u, i, root, &plan.Mounts[i]); err != nil {
			return fmt.Errorf("%s: mount %s: %w", u.of(), u.Mounts[i].Target, err)
		}
	}
	return nil
}

// tree opens what is here. What was evicted since it was decided, as after a reboot, is brought again: its digest says what it is.
func (k *Keeper) tree(ctx context.Context, store *artifact.Store, u *Use) (*artifact.Tree, error) {
	tree, err := store.OpenTree(u.Tree)
	if !errors.Is(err, fs.ErrNotExist) {
		return tree, err
	}
	ref, err := artifact.ParseReference(u.Reference)
	if err != nil {
		return nil, err
	}
	keys, err := k.Credentials(ctx, u.SecretsIn, u.Secrets)
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", u.of(), errNotReady, err)
	}
	src := k.Client.Source(ref, keys)
	o := &object{kind: u.Kind, namespace: u.Namespace, name: u.Name}
	image, err := artifact.ReadImage(ctx, src, artifact.Descriptor{Digest: u.Tree}, "linux/"+runtime.GOARCH)
	if err == nil {
		err = k.unpack(ctx, src, image, false)
	}
	if err != nil {
		return nil, unavailable(o, err)
	}
	return store.OpenTree(u.Tree)
}

// root is where the tree's files are: in both forms by way of a mount, which says that they are in use. The caller holds the lock of trees.
func (k *Keeper) root(tree *artifact.Tree) (string, error) {
	name := treeName(tree.Digest)
	if root := tree.Root(); root != "" {
		return k.Mounts.At(name), k.Mounts.Share(name, root)
	}
	index, data := tree.Image()
	return k.Mounts.Image(name, index, data, k.Context)
}

// mount makes one of the claim's mounts.
func (k *Keeper) mount(store *artifact.Store, tree *artifact.Tree, u *Use, i int, root string, m *kernelcache.Mount) error {
	lower := filepath.Join(root, m.Source)
	if u.Access == v1alpha1.CacheAccessSeed {
		return k.Mounts.Share(u.filesName(i), lower)
	}
	readOnly := u.Access == v1alpha1.CacheAccessReadOnly
	if readOnly && m.Relocation == nil {
		return k.Mounts.Share(u.name(i), lower)
	}
	return k.Mounts.Layer(u.name(i), layers(store, tree, u.Bytes, lower, readOnly, k.Context, m))
}

// undo takes the claim's mounts away and gives up its need of the tree, which stays mounted for the next claim.
func (k *Keeper) undo(ctx context.Context, u *Use) error {
	for i := range u.Mounts {
		names := []string{u.name(i)}
		if u.Access == v1alpha1.CacheAccessSeed {
			names = append(names, u.filesName(i))
		}
		for _, name := range names {
			if err := k.Mounts.Detach(name); err != nil {
				return err
			}
		}
	}
	store, err := k.Store()
	if err != nil {
		return err
	}
	return store.Unpin(ctx, u.Tree, u.Owner)
}

// lockTrees keeps others, in other processes too, from mounting and unmounting images.
func (k *Keeper) lockTrees() (unlock func(), err error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of caches: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(k.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "lock", Path: file.Name(), Err: err}, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// InUse says whether a tree must stay: somebody needs it, or it cannot be unmounted. The mount of one that nobody needs goes first.
func (k *Keeper) InUse(tree artifact.Digest) bool {
	there, err := k.Mounts.Has(treeName(tree))
	if !there && err == nil {
		return false
	}
	return err != nil || k.unmountIdle(tree) != nil
}

// errNeeded is about a tree that claims have.
var errNeeded = errors.New("is needed by claims")

// unmountIdle takes the mount of a tree away, unless somebody needs it. Who pins it meanwhile mounts it again: it has to wait for the lock.
func (k *Keeper) unmountIdle(tree artifact.Digest) error {
	store, err := k.Store()
	if err != nil {
		return err
	}
	unlock, err := k.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	pins, err := store.Pins(tree)
	if err != nil {
		return err
	}
	if len(pins) > 0 {
		return fmt.Errorf("image %s %w", tree, errNeeded)
	}
	return k.Mounts.Detach(treeName(tree))
}

// tidy removes the places of images that are not mounted, as a reboot leaves them.
func (k *Keeper) tidy() error {
	names, err := k.Mounts.Names(treeMounts)
	if err != nil || len(names) == 0 {
		return err
	}
	unlock, err := k.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		there, looked := k.Mounts.Has(name)
		if looked == nil && !there {
			looked = k.Mounts.Detach(name)
		}
		err = errors.Join(err, looked)
	}
	return err
}

// Remains are the steps that a claim whose record is lost may have had: by what is kept for it.
func (k *Keeper) Remains(uid string) ([]step.Step, error) {
	trees, err := k.trees()
	var out []step.Step
	for i := range trees {
		if !slices.Contains(trees[i].Pins, uid) {
			continue
		}
		u := Use{Tree: trees[i].Digest, Owner: uid, Key: trees[i].Digest.Hex()}
		s, err := u.Step()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, err
}

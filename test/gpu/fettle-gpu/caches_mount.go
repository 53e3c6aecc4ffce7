// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/step"
)

const (
	// claimBytes is how much a claim may write into its view of a cache: the driver's default.
	claimBytes = 1 << 30
	// spaceForTree is what the tree of an image may take.
	spaceForTree = 1 << 30
	// lookTime is how long a run of Triton takes at most. With less time left it is not begun.
	lookTime = 25 * time.Second
)

// mounted mounts the image as the kubelet plugin does for a claim, and runs Triton with it.
func (k *kernelCaches) mounted(ctx context.Context) (err error) {
	const what = "the cache in an overlay"
	if os.Geteuid() != 0 {
		k.f.check(what, impossible("only root may mount"))
		return nil
	}
	n, err := newCacheNode(filepath.Join(k.dir, "node"))
	if errors.Is(err, unix.EPERM) {
		k.f.check(what, impossible("%w", err))
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	begin := time.Now()
	tree, form, err := n.unpack(ctx, k.layout)
	if err != nil {
		return err
	}
	k.f.fact("unpack into the node's store, s", time.Since(begin).Seconds())
	k.f.fact("form of the store's tree", form)
	for _, access := range []cachemount.Access{cachemount.Overlay, cachemount.ReadOnly} {
		if err := k.claim(ctx, n, tree, access); err != nil {
			return err
		}
	}
	return nil
}

// claim gives a claim the cache in another directory than it was made in, and runs Triton there.
func (k *kernelCaches) claim(ctx context.Context, n *cacheNode, tree *artifact.Tree, access cachemount.Access) (err error) {
	at := filepath.Join(k.dir, "claim-"+string(access))
	begin := time.Now()
	use, err := n.use(ctx, tree, at, access)
	if err != nil {
		return err
	}
	edits, undo, err := n.apply(ctx, use)
	defer func() { err = errors.Join(err, undo()) }()
	if err != nil {
		return err
	}
	name := "cache mounted " + string(access)
	k.f.fact(name+": mount, s", time.Since(begin).Seconds())
	k.f.fact(name+": files written anew for the directory", use.Fill)
	k.hit(ctx, name, at, edits.Env)
	if access == cachemount.Overlay {
		k.miss(ctx, name, at, edits.Env)
	}
	k.f.check(name+": the image below it is as it was packed", k.unchanged(n, tree))
	return nil
}

// unchanged compares what is mounted of the image, below the views of claims, with what was packed.
func (k *kernelCaches) unchanged(n *cacheNode, tree *artifact.Tree) error {
	image, err := filesOf(filepath.Join(n.mounter.Mounts.Path("trees/"+tree.Digest.Hex()), "io.triton.cache"))
	if err != nil {
		return err
	}
	return differences(image, k.files)
}

// hit runs the kernels of the cache. Triton must find all of them, and write nothing.
func (k *kernelCaches) hit(ctx context.Context, name, at string, env []string) {
	what := name + ": Triton finds each kernel"
	r, before, after, err := k.look(ctx, at, pairOfKernels, env)
	if err != nil {
		k.f.check(what, err)
		return
	}
	k.facts(name, r)
	fresh := subset(after, added(after, before))
	k.f.fact(name+": new files", len(fresh))
	if n := compiled(fresh); n > 0 || r.Compiled != nil && *r.Compiled > 0 {
		err = fmt.Errorf("it compiled %d kernels (by its own count: %s)", n, ownCount(r.Compiled))
	}
	k.f.check(what, err)
	k.f.check(name+": Triton writes nothing", differences(after, before))
	k.f.check(name+": results are torch's", rightness(r))
	k.f.check(name+": the first call is faster than cold", k.faster(r))
}

func (k *kernelCaches) faster(r kernelRun) error {
	if r.First >= k.first.First {
		return fmt.Errorf("got %.3f s, cold %.3f s", r.First, k.first.First)
	}
	return nil
}

// miss runs a kernel that the cache has not. Triton must compile it, and keep it in the claim's view.
func (k *kernelCaches) miss(ctx context.Context, name, at string, env []string) {
	name += ", another kernel"
	what := name + ": Triton compiles it"
	r, before, after, err := k.look(ctx, at, otherKernel, env)
	if err != nil {
		k.f.check(what, err)
		return
	}
	k.facts(name, r)
	fresh := subset(after, added(after, before))
	k.f.fact(name+": new files by ending", endings(fresh))
	if n := compiled(fresh); n == 0 || r.Compiled != nil && *r.Compiled == 0 {
		err = fmt.Errorf("%d kernels are new (by its own count: %s)", n, ownCount(r.Compiled))
	}
	k.f.check(what, err)
	k.f.check(name+": results are torch's", rightness(r))
}

// look runs kernels with a mounted cache, and returns the files that were there before and after.
func (k *kernelCaches) look(
	ctx context.Context, at, kernels string, env []string,
) (r kernelRun, before, after map[string]string, err error) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < lookTime {
		return r, nil, nil, impossible("only %.0f s are left for this part", time.Until(deadline).Seconds())
	}
	if before, err = filesOf(at); err != nil {
		return r, nil, nil, err
	}
	if r, err = k.python(ctx, kernels, env...); err != nil {
		return r, nil, nil, err
	}
	after, err = filesOf(at)
	return r, before, after, err
}

func rightness(r kernelRun) error {
	if r.Right {
		return nil
	}
	return errors.New("they are not close to torch's")
}

func ownCount(n *int) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}

// subset keeps the files of these names.
func subset(files map[string]string, names []string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		out[name] = files[name]
	}
	return out
}

// cacheNode is a node's store and mounts of caches, as the kubelet plugin has them.
type cacheNode struct {
	dir     string
	store   *artifact.Store
	mounter *cachemount.Mounter
	kind    step.Kind
}

// newCacheNode makes the directory a shared mount of its own, which the plugin's volume is.
func newCacheNode(dir string) (n *cacheNode, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return nil, &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	n = &cacheNode{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return nil, &os.PathError{Op: "share", Path: dir, Err: err}
	}
	n.mounter = &cachemount.Mounter{Mounts: hostmount.In(filepath.Join(dir, "mounts"), "/"), Dir: filepath.Join(dir, "caches")}
	n.store, err = artifact.OpenStore(filepath.Join(dir, "artifacts"), artifact.StoreConfig{InUse: n.mounter.InUse, Pace: time.Nanosecond})
	n.kind = n.mounter.Kind(func() (*artifact.Store, error) { return n.store, nil })
	return n, err
}

// close takes all mounts away.
func (n *cacheNode) close() error {
	var errs []error
	if n.mounter != nil {
		errs = append(errs, n.mounter.Destroy())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(append(errs, unix.Unmount(n.dir, unix.MNT_DETACH))...)
}

// unpack brings the image of a layout into the store, in the form that this kernel can mount.
func (n *cacheNode) unpack(ctx context.Context, dir string) (*artifact.Tree, artifact.TreeForm, error) {
	source := layout.At(dir).Source("v1", artifact.Digest{}, artifact.Reference{})
	d, err := source.Resolve(ctx)
	if err != nil {
		return nil, "", err
	}
	image, err := artifact.ReadImage(ctx, source, d, "linux/amd64")
	if err != nil {
		return nil, "", err
	}
	form, err := n.store.Form(hostmount.CanMount)
	if err != nil {
		return nil, "", err
	}
	tree, err := n.store.Unpack(ctx, artifact.TreeSpec{
		Digest: image.Digest, Layers: image.Layers, Options: unpack.Options{Paths: kernelcache.ImagePaths()}, Room: spaceForTree, Form: form,
		Labels: image.Labels, Origin: kernelRepository,
	}, func(ctx context.Context, i int) (io.ReadCloser, error) {
		return source.Open(ctx, image.Layers[i].Descriptor)
	})
	return tree, form, err
}

// use plans how a claim has the cache at a path, as the plugin decides it.
func (n *cacheNode) use(ctx context.Context, tree *artifact.Tree, at string, access cachemount.Access) (*cachemount.Use, error) {
	found, err := n.mounter.Inspect(ctx, n.store, tree, "", "")
	if err != nil {
		return nil, err
	}
	plan, err := found.Plan(at)
	if err != nil {
		return nil, err
	}
	u := &cachemount.Use{
		Kind: "GPUKernelCache", Namespace: "team", Name: "kernels", UID: "uid", Digest: tree.Digest, Tree: tree.Digest,
		Owner: "claim-" + string(access), Want: at, Access: access, Bytes: claimBytes, Size: tree.Size, Env: plan.Env,
	}
	for _, m := range plan.Mounts {
		u.Mounts = append(u.Mounts, cachemount.Mount{Source: m.Source, Target: m.Target})
	}
	u.Key = u.NewKey()
	u.Fill, err = n.mounter.Measure(ctx, &cachemount.Stored{Store: n.store, Tree: tree, Cache: found}, u, &plan)
	return u, err
}

// apply does the step, and binds its mounts to where a container would have them. undo may be called whatever the error is.
func (n *cacheNode) apply(ctx context.Context, u *cachemount.Use) (edits container.Edits, undo func() error, err error) {
	var bound []string
	s, err := u.Step()
	if err != nil {
		return edits, func() error { return nil }, err
	}
	undo = func() error {
		var errs []error
		for _, at := range bound {
			errs = append(errs, unix.Unmount(at, unix.MNT_DETACH))
		}
		// The context may have ended, which must leave no mount.
		return errors.Join(append(errs, n.kind.Undo(context.WithoutCancel(ctx), s.Params))...)
	}
	if err := n.kind.Apply(ctx, s.Params); err != nil {
		return edits, undo, err
	}
	edits = n.mounter.Edits(u)
	for _, m := range edits.Mounts {
		if err := os.MkdirAll(m.ContainerPath, 0o755); err != nil {
			return edits, undo, err
		}
		if err := unix.Mount(m.HostPath, m.ContainerPath, "", unix.MS_BIND, ""); err != nil {
			return edits, undo, &os.PathError{Op: "bind", Path: m.ContainerPath, Err: err}
		}
		bound = append(bound, m.ContainerPath)
		if !m.ReadOnly {
			continue
		}
		flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
		if err := unix.Mount("", m.ContainerPath, "", flags, ""); err != nil {
			return edits, undo, &os.PathError{Op: "make read-only", Path: m.ContainerPath, Err: err}
		}
	}
	return edits, undo, nil
}

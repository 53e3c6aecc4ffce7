// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/test/signed"
)

var seeded = v1alpha1.KernelCacheSource{Name: "add", Access: v1alpha1.CacheAccessSeed}

// inContainer is where a path of a container with a claim's mounts is on the node: links lead through the container.
func (n *node) inContainer(u *cachemount.Use, name string) string {
	n.Helper()
	for range 8 {
		on := ""
		for _, m := range n.Mounter.Edits(u).Mounts {
			if inside, ok := strings.CutPrefix(name+"/", m.ContainerPath+"/"); ok {
				on = filepath.Join(m.HostPath, inside)
			}
		}
		if on == "" {
			n.Fatalf("%s is in none of the claim's mounts", name)
		}
		to, err := os.Readlink(on)
		if err != nil {
			return on
		}
		name = to
	}
	n.Fatalf("%s leads nowhere", name)
	return ""
}

// TestSeed: a program finds its kernels where it had them by links, and what it misses or replaces is its own.
func TestSeed(t *testing.T) { inBothForms(t, testSeed) }

func testSeed(n *node) {
	t := n.T
	n.trusting()
	files := triton(90, 32)
	files["locks/add.lock"] = ""
	image, digest := n.push("team/add", "v1", files)
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", seeded))
	at := n.apply(u)
	want := container.Edits{
		Env: []string{"TRITON_CACHE_DIR=" + home}, Mounts: []container.Mount{
			{HostPath: at, ContainerPath: home, NonRecursive: true},
			{HostPath: at + "-files", ContainerPath: "/.fettle/" + u.Key + "-0", ReadOnly: true, NonRecursive: true},
		},
	}
	if diff := cmp.Diff(want, n.Mounter.Edits(u)); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	inside := path.Join(home, kernel)
	n.reads(n.inContainer(u, inside), signed.TritonText)
	if err := os.WriteFile(n.inContainer(u, inside), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to where a link leads: %v", err)
	}
	n.must(os.WriteFile(filepath.Join(at, "locks/add.lock"), []byte("1"), 0o600)) // programs open it to write

	other := n.only(n.decide("team-a", "claim-2", seeded))
	n.apply(other)
	n.must(
		os.Mkdir(filepath.Join(at, "MISSED"), 0o777), os.WriteFile(filepath.Join(at, "MISSED/kernel"), []byte("new"), 0o600),
		os.WriteFile(filepath.Join(at, "other"), []byte("another"), 0o600), os.Rename(filepath.Join(at, "other"), filepath.Join(at, kernel)),
	)
	n.restart()
	n.apply(u)
	n.reads(n.inContainer(u, inside), "another")
	n.reads(n.inContainer(other, inside), signed.TritonText)
	if _, err := os.Stat(n.inContainer(other, home+"/MISSED")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what one claim wrote, another sees: %v", err)
	}
	n.whole(u.Tree)
	n.undo(u)
	n.reads(n.inContainer(other, inside), signed.TritonText)
	n.undo(other)
	n.empty()
}

// TestSeedElsewhere: every file that a group names is found, by any path, and the file system of what is rewritten is the claim's.
func TestSeedElsewhere(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	source := seeded
	source.MountPath = "/cache"
	u := n.only(n.decide("team-a", "claim-1", source))
	at := n.apply(u)
	n.must(os.Chmod(at, 0o777)) // it is writable
	for name, child := range n.children(at) {
		if _, err := os.Stat(n.inContainer(u, child)); err != nil || !strings.HasPrefix(child, "/cache/") {
			t.Errorf("%s is said to be at %s: %v", name, child, err)
		}
	}
	n.must(os.WriteFile(filepath.Join(at, signed.TritonGroup), []byte("own"), 0o600))
	n.undo(u)
	n.empty()
}

// TestSeedUsers: containers run as any user.
func TestSeedUsers(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", seeded))
	dir, err := os.Open(n.apply(u))
	n.must(err)
	defer dir.Close()
	done := make(chan error)
	go func() { // its thread ends with it, as another user's
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1000, 1000, 1000); errno != 0 {
			done <- errno
			return
		}
		at := int(dir.Fd())
		missed, err := unix.Openat(at, signed.TritonEntry+"/missed", unix.O_WRONLY|unix.O_CREAT, 0o600)
		done <- errors.Join(err, unix.Close(missed), unix.Mkdirat(at, "new", 0o700),
			unix.Renameat(at, signed.TritonEntry+"/missed", at, kernel))
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.undo(u)
	n.empty()
}

// TestSeedInterrupted: whatever a process that was killed had made, the next one goes on from there, and can take it away.
func TestSeedInterrupted(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	for name, half := range map[string]func(u *cachemount.Use) error{
		"nothing":  func(*cachemount.Use) error { return nil },
		"a pin":    func(u *cachemount.Use) error { return n.host.Pin(t.Context(), u.Tree, u.Owner) },
		"no links": func(u *cachemount.Use) error { return n.Mounter.Mounts.Detach(n.names(u)[0]) },
		"no files": func(u *cachemount.Use) error { return n.Mounter.Mounts.Detach(n.names(u)[1]) },
		"no image": func(u *cachemount.Use) error { return n.Mounter.Mounts.Detach(imageName(u.Tree)) },
		"a place":  func(u *cachemount.Use) error { return placeOnly(n.Mounter.Edits(u).Mounts[0].HostPath) },
		"image alone": func(u *cachemount.Use) error {
			return errors.Join(n.Mounter.Mounts.Detach(n.names(u)[0]), n.Mounter.Mounts.Detach(n.names(u)[1]))
		},
	} {
		for _, then := range []string{"apply", "undo"} {
			t.Run(name+", "+then, func(t *testing.T) {
				u := n.only(n.decide("team-a", "claim-1", seeded))
				if strings.HasPrefix(name, "no ") || name == "image alone" {
					n.apply(u)
				}
				n.must(half(u))
				n.restart()
				if then == "apply" {
					n.apply(u)
					n.reads(n.inContainer(u, path.Join(home, kernel)), signed.TritonText)
				}
				n.undo(u)
				n.empty()
			})
		}
	}
}

// placeOnly makes the directory over which a mount would have been put.
func placeOnly(at string) error { return os.MkdirAll(at, 0o700) }

// TestSeedRemains: of a claim whose record is lost, the mounts are found by what is there.
func TestSeedRemains(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", seeded))
	n.apply(u)
	left, err := n.Mounter.Mounts.LeftoverSteps("claim-1")
	n.must(err)
	for _, s := range left {
		n.must(n.Mounter.Mounts.Kind().Undo(t.Context(), s.Params))
	}
	kept, err := n.leftovers("claim-1")
	if err != nil || len(kept) != 1 || len(left) != 2 {
		t.Fatalf("of the claim there remain %v and %v, %v", left, kept, err)
	}
	n.must(n.Kinds().Undo(t.Context(), kept[0]))
	n.empty()
}

// TestSeedBounds: the links are beside what a claim may add, which is bounded.
func TestSeedBounds(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	limit := resource.MustParse("1Mi")
	n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Spec.Mount = &v1alpha1.CacheMount{WritableLimit: &limit} })
	u := n.only(n.decide("team-a", "claim-1", seeded))
	at := n.apply(u)
	n.must(os.WriteFile(filepath.Join(at, "all"), make([]byte, 1<<20), 0o600))
	if err := os.WriteFile(filepath.Join(at, "more"), []byte("x"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the limit was written: %v", err)
	}
	n.undo(u)
	n.empty()
}

// TestSeedOfManyFiles: a cache with more files than the node makes for one claim is refused before anything is made, at each try, and can
// be had in another way. What is made for a smaller one is recorded with the claim.
func TestSeedOfManyFiles(t *testing.T) {
	n := newNode(t)
	n.trusting()
	files := triton(90, 32)
	for i := range 40 {
		files[fmt.Sprint("EMPTY/f", i)] = ""
	}
	image, digest := n.push("team/add", "v1", files)
	n.cache("team-a", "add", image, digest)
	n.Mounter.MaxEntries = 40
	for range 2 {
		if _, err := n.decide("team-a", "claim-1", seeded); !IsRefused(err) || !strings.Contains(err.Error(), "more than 40 files") {
			t.Fatalf("a seed of too many files: %v", err)
		}
	}
	if names, err := n.Mounter.Mounts.Names("claim-1"); err != nil || len(names) > 0 {
		t.Errorf("of the refused claim there are %v, %v", names, err)
	}
	other := v1alpha1.KernelCacheSource{Name: "add", Access: v1alpha1.CacheAccessOverlay}
	if u := n.only(n.decide("team-a", "claim-1", other)); u.Fill.Entries != 0 || u.Size == 0 {
		t.Errorf("for an overlay: %+v in memory, %d bytes in the store", u.Fill, u.Size)
	}
	n.restart()
	n.Mounter.MaxEntries = 100
	u := n.only(n.decide("team-a", "claim-1", seeded))
	at := n.apply(u)
	var stat unix.Statfs_t
	n.must(unix.Statfs(at, &stat))
	const top = 1
	if used := int64(stat.Files - stat.Ffree); used != u.Fill.Entries+top {
		t.Errorf("%d files are in memory, recorded are %d", used, u.Fill.Entries)
	}
	n.undo(u)
	n.empty()
}

// TestMaxWritable: an object that asks for more than the node allows is refused, and one that says nothing gets no more.
func TestMaxWritable(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	limit := resource.MustParse("3Mi")
	n.cache("team-a", "large", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Spec.Mount = &v1alpha1.CacheMount{WritableLimit: &limit} })
	n.cache("team-a", "add", image, digest)
	n.MaxWritable = 2 << 20
	_, err := n.decide("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "large"})
	if !IsRefused(err) || !strings.Contains(err.Error(), "spec.mount.writableLimit: 3Mi is more than") {
		t.Errorf("a limit above that of the node: %v", err)
	}
	if u := n.only(n.decide("team-a", "claim-1", named)); u.Bytes != 2<<20 {
		t.Errorf("without a limit the claim may write %d bytes", u.Bytes)
	}
}

// TestAccess: where nobody says how a claim has its caches, its pods tell; they are read once, and only then.
func TestAccess(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.cache("team-a", "says", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Mount = &v1alpha1.CacheMount{Access: v1alpha1.CacheAccessReadOnly}
	})
	n.cache("team-a", "second", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Mount = &v1alpha1.CacheMount{Path: "/second", Env: v1alpha1.CacheEnvNone}
	})
	pod := func(name string, hostUsers *bool) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{HostUsers: hostUsers},
		}
	}
	n.known = map[string]*corev1.Pod{}
	for name, hostUsers := range map[string]*bool{"unset": nil, "host": new(true), "own": new(false), "own-2": new(false)} {
		n.known[name] = pod(name, hostUsers)
	}
	const overlay, seed, readOnly = v1alpha1.CacheAccessOverlay, v1alpha1.CacheAccessSeed, v1alpha1.CacheAccessReadOnly
	for name, c := range map[string]struct {
		pods    []string
		sources []v1alpha1.KernelCacheSource
		want    v1alpha1.CacheAccess
		asked   []string
	}{
		"a pod of the host's users": {[]string{"host"}, nil, overlay, []string{"host"}},
		"a pod that says nothing":   {[]string{"unset"}, nil, overlay, []string{"unset"}},
		"a pod with its own users":  {[]string{"own"}, nil, seed, []string{"own"}},
		"one of several":            {[]string{"host", "own", "unset"}, nil, seed, []string{"host", "own"}},
		"for nobody yet":            {nil, nil, overlay, nil},
		"a pod that is gone":        {[]string{"gone", "host"}, nil, overlay, []string{"gone", "host"}},
		"another pod of its name":   {[]string{"own-2:other"}, nil, overlay, []string{"own-2"}},
		"two caches":                {[]string{"own"}, []v1alpha1.KernelCacheSource{named, {Name: "second"}}, seed, []string{"own"}},
		"the claim says Overlay":    {[]string{"own"}, []v1alpha1.KernelCacheSource{{Name: "add", Access: overlay}}, overlay, nil},
		"the claim says Seed":       {[]string{"host"}, []v1alpha1.KernelCacheSource{{Name: "says", Access: seed}}, seed, nil},
		"the object says":           {[]string{"own"}, []v1alpha1.KernelCacheSource{{Name: "says"}}, readOnly, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n.asked, n.reserved = nil, []resourceapi.ResourceClaimConsumerReference{{APIGroup: "batch", Resource: "jobs", Name: "own", UID: "own"}}
			for _, of := range c.pods {
				pod, uid, ok := strings.Cut(of, ":")
				if !ok {
					uid = pod
				}
				n.reserved = append(n.reserved, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(uid)})
			}
			if c.sources == nil {
				c.sources = []v1alpha1.KernelCacheSource{named}
			}
			uses, err := n.decide("team-a", "claim-1", c.sources...)
			if err != nil || len(uses) != len(c.sources) {
				t.Fatalf("decided %v, %v", uses, err)
			}
			var asked []string
			for _, name := range c.asked {
				asked = append(asked, "team-a/"+name)
			}
			for _, u := range uses {
				if string(u.Access) != string(c.want) {
					t.Errorf("%s: access %s, want %s", u.Name, u.Access, c.want)
				}
			}
			if diff := cmp.Diff(asked, n.asked); diff != "" {
				t.Errorf("pods that were read (-want +got):\n%s", diff)
			}
		})
	}
	n.unread = fmt.Errorf("the API server is away")
	n.reserved = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "own", UID: "own"}}
	if _, err := n.decide("team-a", "claim-1", named); !IsNotReady(err) || !strings.Contains(err.Error(), "pod own") {
		t.Errorf("pods cannot be read: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
	"github.com/fettle-dev/fettle/test/treesum"
)

const (
	// home is where the producer had its cache.
	home   = "/opt/app-root/src/.triton/cache"
	kernel = signed.TritonFile
)

// node is a node with a store, mounts that are seen outside, a registry and an API server.
type node struct {
	*testing.T
	*Feature
	registry *signed.Registry
	client   *dynamicfake.FakeDynamicClient
	root     string
	host     *artifact.Store
	// password is whether the credentials of objects with pull secrets are right.
	password bool
	// directories has trees lie as directories.
	directories bool
	clock       *clocktesting.FakePassiveClock
	// publicRoot is the trusted root of policies that have none of their own.
	publicRoot []byte

	// kube has pods, known by their names, and reserved is what claims are reserved for. unread is why pods cannot be read.
	kube     *kubefake.Clientset
	known    map[string]*corev1.Pod
	reserved []resourceapi.ResourceClaimConsumerReference
	unread   error

	mu   sync.Mutex
	told []string
	// asked are the pods that were read.
	asked []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		T: t, registry: signed.Start(t, true), root: t.TempDir(), password: true, clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	check.Mount(t, n.root, check.Filesystem{Source: n.root, Flags: unix.MS_BIND})
	n.must(unix.Mount("", n.root, "", unix.MS_SHARED, ""))
	n.client = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.GroupVersion.WithResource(cacheResource):        "GPUKernelCacheList",
		v1alpha1.GroupVersion.WithResource(clusterCacheResource): "ClusterGPUKernelCacheList",
		v1alpha1.GroupVersion.WithResource("trustpolicies"):      "TrustPolicyList",
	})
	n.kube = kubefake.NewClientset()
	n.kube.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get, ok := action.(clienttesting.GetAction)
		if !ok {
			return false, nil, nil
		}
		pod, err := n.pod(get.GetNamespace(), get.GetName())
		return true, pod, err
	})
	n.limit(0)
	n.restart()
	return n
}

// limit opens the store with a quota, 0 for none.
func (n *node) limit(quota int64) {
	n.Helper()
	store, err := artifact.OpenStore(filepath.Join(n.root, "artifacts"), artifact.StoreConfig{
		InUse: func(s *artifact.Store, d artifact.Digest) bool { return n.Mounter.InUse(s, d) }, Pace: time.Nanosecond, MaxBytes: quota,
	})
	n.must(err)
	n.host = store
	n.Cleanup(func() { n.must(store.Close()) })
}

// restart is another process with the same directories.
func (n *node) restart() {
	n.Helper()
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{n.registry.Host}, Tries: 1})
	n.must(err)
	mounter := &cachemount.Mounter{Mounts: hostmount.In(n.mounts(), n.root), Dir: filepath.Join(n.root, "caches")}
	policies, err := trustpolicies.NewReader(n.client, n.publicRoot, nil)
	n.must(err)
	feature, err := New(Config{
		Node: "node-1", Enabled: true, Kube: n.kube, Dynamic: n.client, Namespace: "fettle", Client: client,
		Store: func() (*artifact.Store, error) { return n.host, nil }, Credentials: n.credentials, Mounter: mounter, CanMount: n.canMount,
		Policies: policies, Changed: func() {}, Clock: n.clock, Unpacking: Lanes(budget.Limit{Node: 4, Namespace: 2}),
		Event: func(_ *resourceapi.ResourceClaim, _, eventType, reason, note string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.told = append(n.told, eventType+" "+reason+" "+note)
		},
		ObjectEvent: func(o *corev1.ObjectReference, eventType, reason, note string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.told = append(n.told, eventType+" "+reason+" "+o.Namespace+"/"+o.Name+" "+note)
		},
	})
	n.must(err)
	n.Feature = feature
	n.Cleanup(func() { feature.stop(); feature.running.Wait() })
}

// later is so much time later.
func (n *node) later(by time.Duration) { n.clock.SetTime(n.clock.Now().Add(by)) }

func (n *node) pod(namespace, name string) (*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, namespace+"/"+name)
	pod := n.known[name]
	switch {
	case n.unread != nil:
		return nil, n.unread
	case pod == nil:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return pod, nil
}

func (n *node) canMount(index, data string) error {
	if n.directories {
		return errors.ErrUnsupported
	}
	return hostmount.CanMount(index, data)
}

func (n *node) credentials(_ context.Context, _ string, names []string) (*registry.Keychain, error) {
	if len(names) == 0 {
		return registry.NewKeychain()
	}
	password := fpgaregistry.Password
	if !n.password {
		password = "guessed"
	}
	config := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, n.registry.Host, fpgaregistry.User, password)
	return registry.NewKeychain(registry.DockerConfig{Data: []byte(config)})
}

func (n *node) must(errs ...error) {
	n.Helper()
	if err := errors.Join(errs...); err != nil {
		n.Fatal(err)
	}
}

// triton is a cache of one kernel for an architecture, as its producer had it at home.
func triton(arch, warp int) map[string]string {
	return signed.Triton(home, "cuda", strconv.Itoa(arch), warp)
}

// push makes an image of a cache, and returns the reference and digest.
func (n *node) push(repository, tag string, files map[string]string) (image, digest string) {
	n.Helper()
	d := n.registry.Files(n.T, repository, tag, files, map[string]string{"cache.triton.image/cache-size-bytes": "4096"})
	return n.registry.Host + "/" + repository + ":" + tag, d.String()
}

// cache is an object that the controller resolved and verified.
func (n *node) cache(namespace, name, image, digest string, change ...func(*v1alpha1.GPUKernelCache)) {
	n.Helper()
	c := &v1alpha1.GPUKernelCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name), Generation: 1},
		Spec:       v1alpha1.GPUKernelCacheSpec{Image: image}, Status: resolved(digest),
	}
	for _, do := range change {
		do(c)
	}
	c.Status.ObservedGeneration = c.Generation
	n.put(cacheResource, v1alpha1.KindGPUKernelCache, c)
}

// added is such an object of team-a, add, whose image the registry has.
func (n *node) added() *object {
	n.Helper()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	o, err := n.objects.get(n.Context(), v1alpha1.KindGPUKernelCache, "team-a", "add")
	n.must(err)
	return o
}

func resolved(digest string) v1alpha1.GPUKernelCacheStatus {
	return v1alpha1.GPUKernelCacheStatus{
		ResolvedDigest: digest, Verification: &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictVerified},
	}
}

// trusting is a policy that lets all images of the registry pass.
func (n *node) trusting() {
	n.Helper()
	n.policy("trusting", 1, v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: []string{n.registry.Host + "/**"}})
}

func (n *node) policy(name string, generation int64, spec v1alpha1.TrustPolicySpec) {
	n.Helper()
	n.put("trustpolicies", v1alpha1.KindTrustPolicy, &v1alpha1.TrustPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: generation}, Spec: spec,
	})
}

// put makes or replaces an object.
func (n *node) put(resource, kind string, object metav1.Object) {
	n.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	n.must(err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	client := n.client.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(object.GetNamespace())
	if _, err = client.Update(n.Context(), u, metav1.UpdateOptions{}); err != nil {
		_, err = client.Create(n.Context(), u, metav1.CreateOptions{})
	}
	n.must(err)
}

// decide asks for caches as a claim of one GPU with compute capability 9.0, and returns what is recorded of the answer.
func (n *node) decide(namespace, uid string, sources ...v1alpha1.KernelCacheSource) ([]cachemount.Use, error) {
	n.Helper()
	c, err := n.plan(namespace, uid, sources...)
	if err != nil {
		return nil, err
	}
	uses, err := decodeUses(c.Decision)
	if len(c.Steps) != len(uses["gpu"]) {
		n.Errorf("%d steps for the caches %+v", len(c.Steps), uses)
	}
	return uses["gpu"], err
}

// plan is for a claim whose one GPU has compute capability 9.0.
func (n *node) plan(namespace, uid string, sources ...v1alpha1.KernelCacheSource) (prepare.Contribution, error) {
	n.Helper()
	return n.Plan(n.Context(), n.request(namespace, uid, sources...))
}

// request is what the engine asks for such a claim.
func (n *node) request(namespace, uid string, sources ...v1alpha1.KernelCacheSource) prepare.Request {
	n.Helper()
	for i := range sources {
		sources[i].Default()
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: uid, UID: types.UID(uid)}}
	c.Status.ReservedFor = n.reserved
	a := claim.Allocation{Namespace: namespace, Name: uid, UID: c.UID, Results: []claim.Result{{
		Request: "gpu", BaseRequest: "gpu", Pool: "node/gpu", Device: "gpu-0", Kind: device.KindGPU,
		Config: claim.Effective{GPU: &claim.GPUEffective{KernelCaches: sources}},
	}}}
	return prepare.Request{Claim: c, Allocation: a, Find: func(*claim.Result) (device.Device, bool) { return hopper(), true }}
}

func hopper() device.Device {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	return device.Device{Kind: device.KindGPU, Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		device.AttributeVendor: text("nvidia"), device.AttributeComputeCapability: version("9.0.0"),
		device.AttributeDriverVersion: version("580.65.6"),
	}}
}

// again plans for a claim that was prepared in an earlier boot.
func (n *node) again(decision json.RawMessage) (prepare.Contribution, error) {
	n.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "claim-1", UID: "claim-1"}}
	return n.Plan(n.Context(), prepare.Request{Claim: c, AfterReboot: true, Decision: decision})
}

// evict has a tree go, as the store does that needs its room.
func (n *node) evict(tree artifact.Digest) {
	n.Helper()
	n.must(os.RemoveAll(filepath.Join(n.root, "artifacts/trees/sha256", tree.Hex())))
}

// only is the one cache that a decision has to have.
func (n *node) only(uses []cachemount.Use, err error) *cachemount.Use {
	n.Helper()
	if err != nil || len(uses) != 1 {
		n.Fatalf("decided on %+v, %v, want one cache", uses, err)
	}
	return &uses[0]
}

// apply mounts a cache twice, as whoever did not hear of the first time, and returns where.
func (n *node) apply(u *cachemount.Use) string {
	n.Helper()
	n.do(u, step.Kinds.Apply)
	return n.Mounter.Edits(u).Mounts[0].HostPath
}

// mounts is the directory of mounts.
func (n *node) mounts() string { return filepath.Join(n.root, "mounts") }

// names are those of the mounts that a claim has of a cache, relative to the directory of mounts.
func (n *node) names(u *cachemount.Use) []string {
	n.Helper()
	var out []string
	for _, m := range n.Mounter.Edits(u).Mounts {
		name, err := filepath.Rel(n.mounts(), m.HostPath)
		n.must(err)
		out = append(out, name)
	}
	return out
}

// imageName is that of the mount of an image, relative to the directory of mounts.
func imageName(tree artifact.Digest) string { return path.Join("trees", tree.Hex()) }

func (n *node) inUse(tree artifact.Digest) bool { return n.Mounter.InUse(n.host, tree) }

// leftovers are the steps of a claim whose record is lost.
func (n *node) leftovers(uid string) ([]step.Step, error) {
	return n.Leftovers(n.Context(), uid, device.Device{})
}

func (n *node) undo(u *cachemount.Use) {
	n.Helper()
	n.do(u, step.Kinds.Undo)
}

func (n *node) do(u *cachemount.Use, what func(step.Kinds, context.Context, step.Step) error) {
	n.Helper()
	s, err := u.Step()
	n.must(err)
	for range 2 {
		n.must(what(n.Kinds(), n.Context(), s))
	}
}

// whole fails unless each file of a tree in the store is what its image has.
func (n *node) whole(tree artifact.Digest) {
	n.Helper()
	found, err := n.host.OpenTree(tree)
	n.must(err)
	n.must(n.host.ReadTree(found, func(fsys fs.FS) error {
		is, err := treesum.Of(fsys)
		if diff := cmp.Diff(n.registry.Tree(tree), is); diff != "" {
			n.Errorf("the tree in the store (-image +is):\n%s", diff)
		}
		return err
	}))
}

// inBothForms runs a test on a node whose trees lie as the kernel takes them, and on one where they are directories.
func inBothForms(t *testing.T, test func(*node)) {
	t.Helper()
	t.Run("as the kernel takes it", func(t *testing.T) { test(newNode(t)) })
	t.Run("as directories", func(t *testing.T) {
		n := newNode(t)
		n.directories = true
		test(n)
	})
}

// children are the three files that the group of a cache of Triton names, and where it says that they are.
func (n *node) children(at string) map[string]string {
	n.Helper()
	data, err := os.ReadFile(filepath.Join(at, signed.TritonGroup))
	n.must(err)
	var read struct {
		Children map[string]string `json:"child_paths"`
	}
	n.must(json.Unmarshal(data, &read))
	if len(read.Children) != 3 {
		n.Errorf("the group has %d files, want 3", len(read.Children))
	}
	return read.Children
}

// empty wants nothing mounted but images that nobody needs, which go when the store asks for them.
func (n *node) empty() {
	n.Helper()
	usage, err := n.host.Usage()
	n.must(err)
	for i := range usage.Trees {
		if d := usage.Trees[i].Digest; n.inUse(d) {
			n.Errorf("image %s is in use, pinned by %v", d, usage.Trees[i].Pins)
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, n.mounts()) {
			n.Errorf("still mounted: %s", line)
		}
	}
	if left, err := os.ReadDir(n.mounts()); err != nil || len(left) > 0 {
		n.Errorf("left in the directory of mounts: %v, %v", left, err)
	}
}

// mountID tells the mount of an image from one that comes after it.
func (n *node) mountID(tree artifact.Digest) uint64 {
	n.Helper()
	var stat unix.Statx_t
	n.must(unix.Statx(unix.AT_FDCWD, n.Mounter.Mounts.Path(imageName(tree)), 0, unix.STATX_MNT_ID_UNIQUE, &stat))
	return stat.Mnt_id
}

func (n *node) reads(file, want string) {
	n.Helper()
	got, err := os.ReadFile(file)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		n.Errorf("%s: %v (-want +got):\n%s", file, err, diff)
	}
}

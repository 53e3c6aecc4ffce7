// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/lazylayer"
	"github.com/fettle-dev/fettle/test/signed"
)

var named = v1alpha1.KernelCacheSource{Name: "add"}

// TestWarm: a program finds its kernels where it had them, and what it misses is its own.
func TestWarm(t *testing.T) { inBothForms(t, testWarm) }

func testWarm(n *node) {
	t := n.T
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", named))
	at := n.apply(u)
	want := container.Edits{
		Env: []string{"TRITON_CACHE_DIR=" + home}, Mounts: []container.Mount{{HostPath: at, ContainerPath: home, NonRecursive: true}},
	}
	if diff := cmp.Diff(want, n.Mounter.Edits(u)); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	n.reads(filepath.Join(at, kernel), signed.TritonText)
	n.must(os.Mkdir(filepath.Join(at, "MISSED"), 0o777), os.WriteFile(filepath.Join(at, "MISSED/kernel"), []byte("new"), 0o600))
	other := n.only(n.decide("team-a", "claim-2", named))
	elsewhere := n.apply(other)
	if _, err := os.Stat(filepath.Join(elsewhere, "MISSED")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what one claim wrote, another sees: %v", err)
	}
	n.whole(u.Tree)
	n.undo(u)
	n.reads(filepath.Join(elsewhere, kernel), signed.TritonText)
	n.undo(other)
	n.empty()
	if n.registry.Reads.Load() != 2 { // config and layer
		t.Errorf("%d blobs were read", n.registry.Reads.Load())
	}
}

// TestLazyLayers: images of many compressed parts are caches as any other. Of the formats for lazy pulling programs see no file.
func TestLazyLayers(t *testing.T) {
	for name, convert := range map[string]func(plain []byte) (lazylayer.Layer, error){
		"eStargz":      func(plain []byte) (lazylayer.Layer, error) { return lazylayer.EStargz(plain, 100, 1) },
		"zstd:chunked": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdChunked(plain, 100) },
		"gzip members": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.GzipMembers(plain, 1000) },
		"zstd frames":  func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdFrames(plain, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(n *node) {
				n.trusting()
				layer, err := convert(signed.Tar(n.T, triton(90, 32)))
				n.must(err)
				digest := n.registry.Layer(n.T, "team/lazy", "v1", layer, signed.Labels("90")).String()
				n.cache("team-a", "lazy", n.registry.Host+"/team/lazy:v1", digest)
				u := n.only(n.decide("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "lazy"}))
				at := n.apply(u)
				n.reads(filepath.Join(at, kernel), signed.TritonText)
				entries, err := os.ReadDir(at)
				n.must(err)
				if len(entries) != 1 {
					n.Errorf("the cache has %v, expected the directory of one kernel", entries)
				}
				n.undo(u)
				n.empty()
			})
		})
	}
}

// TestElsewhere: wherever it is mounted, every file that an entry names is found.
func TestElsewhere(t *testing.T) {
	for _, access := range []v1alpha1.CacheAccess{v1alpha1.CacheAccessOverlay, v1alpha1.CacheAccessReadOnly} {
		t.Run(string(access), func(t *testing.T) {
			n := newNode(t)
			n.trusting()
			image, digest := n.push("team/add", "v1", triton(90, 32))
			n.cache("team-a", "add", image, digest)
			u := n.only(n.decide("team-a", "claim-1", v1alpha1.KernelCacheSource{Name: "add", MountPath: "/cache", Access: access}))
			at := n.apply(u)
			for name, child := range n.children(at) {
				inside, ok := strings.CutPrefix(child, "/cache/")
				if _, err := os.Stat(filepath.Join(at, inside)); !ok || err != nil {
					t.Errorf("%s is said to be at %s: %v", name, child, err)
				}
			}
			edits, readOnly := n.Mounter.Edits(u), access == v1alpha1.CacheAccessReadOnly
			if edits.Mounts[0].ReadOnly != readOnly || edits.Env[0] != "TRITON_CACHE_DIR=/cache" {
				t.Errorf("edits are %+v", edits)
			}
			err := os.WriteFile(filepath.Join(at, "file"), nil, 0o600)
			if (err == nil) != (access == v1alpha1.CacheAccessOverlay) {
				t.Errorf("written with access %s: %v", access, err)
			}
			n.undo(u)
			n.empty()
		})
	}
}

// TestElsewhereInManyDirectories: files that are written anew find room, however many directories of the cache they are in. All that is
// made is recorded with the claim.
func TestElsewhereInManyDirectories(t *testing.T) {
	n := newNode(t)
	n.trusting()
	files := triton(90, 32)
	for i := range 40 {
		dir := fmt.Sprintf("of/%d/in/its/own", i)
		files[dir+"/__grp__k.json"] = fmt.Sprintf(`{"child_paths":{"k.json":"%s/%s/k.json"}}`, home, dir)
	}
	image, digest := n.push("team/add", "v1", files)
	n.cache("team-a", "add", image, digest)
	readOnly := v1alpha1.KernelCacheSource{Name: "add", MountPath: "/cache", Access: v1alpha1.CacheAccessReadOnly}
	u := n.only(n.decide("team-a", "claim-1", readOnly))
	const groups, dirs = 41, 2 + 40*4
	if u.Fill.Entries != groups+dirs {
		t.Errorf("%d files and directories are recorded", u.Fill.Entries)
	}
	at := n.apply(u)
	n.reads(filepath.Join(at, "of/39/in/its/own/__grp__k.json"), `{"child_paths":{"k.json":"/cache/of/39/in/its/own/k.json"}}`)
	n.undo(u)
	n.empty()
}

// TestRefused: each says which object, which field and what next.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	wrongArch, archDigest := n.push("team/arch", "v1", triton(80, 32))
	wrongWarp, warpDigest := n.push("team/warp", "v1", triton(90, 64))
	foreign, foreignDigest := n.push("team/foreign", "v1", map[string]string{"../../etc/passwd": "root"})
	parts := func(name, subPath string) {
		labels := map[string]string{"io.kserve.km/cache-mounts": `[{"subPath":"` + subPath + `","absPath":"/part"}]`}
		d := n.registry.Files(t, "team/"+name, "v1", triton(90, 32), labels).String()
		n.cache("team-a", name, n.registry.Host+"/team/"+name+":v1", d)
	}
	parts("part", "nowhere")
	parts("file", signed.TritonGroup)
	bare, bareDigest := n.push("team/bare", "v1", map[string]string{"data": "anything"})
	n.cache("team-a", "bare", bare, bareDigest, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Compatibility = &v1alpha1.CacheCompatibility{Targets: []v1alpha1.CacheTarget{{Backend: "cuda", Arch: "sm_90"}}}
	})
	n.cache("team-a", "image", "Not An Image", digest)
	n.cache("team-a", "digest", image, "sha256:none")
	n.cache("team-a", "arch", wrongArch, archDigest)
	n.cache("team-a", "warp", wrongWarp, warpDigest)
	n.cache("team-a", "foreign", foreign, foreignDigest)
	n.cache("team-a", "unresolved", image, "")
	n.cache("team-a", "unsigned", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Status.Verification = &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictRefused, Message: "no signature by release"}
	})
	n.cache("team-a", "moved", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Status.Verification.Digest = archDigest })
	n.cache("team-a", "gone", n.registry.Host+"/team/gone:v1", digest)
	n.put(clusterCacheResource, v1alpha1.KindClusterGPUKernelCache, &v1alpha1.ClusterGPUKernelCache{
		ObjectMeta: metav1.ObjectMeta{Name: "shared", UID: "shared"}, Status: resolved(digest), Spec: v1alpha1.ClusterGPUKernelCacheSpec{
			GPUKernelCacheSpec: v1alpha1.GPUKernelCacheSpec{Image: image}, WorkloadNamespaces: []string{"team-b"},
		},
	})
	cluster := v1alpha1.KindClusterGPUKernelCache
	for name, c := range map[string]struct {
		source v1alpha1.KernelCacheSource
		want   string
		later  bool
	}{
		"no such object":     {v1alpha1.KernelCacheSource{Name: "nothing"}, "GPUKernelCache team-a/nothing is refused: it does not exist", false},
		"another namespace":  {v1alpha1.KernelCacheSource{Name: "shared", Kind: cluster}, "spec.workloadNamespaces", false},
		"not resolved":       {v1alpha1.KernelCacheSource{Name: "unresolved"}, "its image is not resolved", true},
		"not verified":       {v1alpha1.KernelCacheSource{Name: "moved"}, "its signatures are not verified yet", true},
		"unsigned":           {v1alpha1.KernelCacheSource{Name: "unsigned"}, "no signature by release", false},
		"wrong architecture": {v1alpha1.KernelCacheSource{Name: "arch"}, "for cuda sm_80, but device gpu-0 (cuda sm_90) is another", false},
		"wrong warp":         {v1alpha1.KernelCacheSource{Name: "warp"}, "warps of 64", false},
		"no place":           {v1alpha1.KernelCacheSource{Name: "bare"}, "say where to mount it", false},
		"no image":           {v1alpha1.KernelCacheSource{Name: "image"}, "spec.image", false},
		"no digest":          {v1alpha1.KernelCacheSource{Name: "digest"}, "status.resolvedDigest", true},
		"hostile":            {v1alpha1.KernelCacheSource{Name: "foreign"}, "names", false},
		"no part":            {v1alpha1.KernelCacheSource{Name: "part"}, "there is no directory io.triton.cache/nowhere", false},
		"a file as part":     {v1alpha1.KernelCacheSource{Name: "file"}, "there is no directory io.triton.cache/" + signed.TritonGroup, false},
		"not in registry":    {v1alpha1.KernelCacheSource{Name: "gone"}, "not found", false},
	} {
		t.Run(name, func(t *testing.T) {
			uses, err := n.decide("team-a", "claim", c.source)
			if err == nil || !strings.Contains(err.Error(), c.want) || IsNotReady(err) != c.later || IsRefused(err) == c.later {
				t.Errorf("decided %v, %v, want %q (later: %v)", uses, err, c.want, c.later)
			}
			c.source.Optional = true
			n.told = nil
			if uses, err := n.decide("team-a", "claim", c.source); err != nil || len(uses) > 0 || len(n.told) != 1 ||
				!strings.Contains(n.told[0], c.want) || !strings.HasPrefix(n.told[0], "Warning "+ReasonSkipped) {
				t.Errorf("optional: decided %v, %v, told %q", uses, err, n.told)
			}
		})
	}
	n.Enabled = false
	if _, err := n.decide("team-a", "claim", named); err == nil || !strings.Contains(err.Error(), "kernelCaches.enabled") {
		t.Errorf("on a node that gives nobody a cache: %v", err)
	}
}

// TestMismatch: the object says what becomes of a claim that it does not fit.
func TestMismatch(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/arch", "v1", triton(80, 32))
	for how, want := range map[v1alpha1.CacheMismatch]struct {
		uses   int
		reason string
	}{v1alpha1.CacheMismatchSkip: {0, ReasonSkipped}, v1alpha1.CacheMismatchMount: {1, ReasonMisfit}} {
		n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) {
			c.Spec.Compatibility = &v1alpha1.CacheCompatibility{OnMismatch: how}
		})
		n.told = nil
		uses, err := n.decide("team-a", "claim", named)
		if err != nil || len(uses) != want.uses || len(n.told) != 1 || !strings.Contains(n.told[0], want.reason) {
			t.Errorf("%s: decided %v, %v, told %q", how, uses, err, n.told)
		}
	}
}

// TestOwnCredentials: what is here already is given to another object only if its own credentials could read it, and costs no blob.
func TestOwnCredentials(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("private/add", "v1", triton(90, 32))
	secret := func(c *v1alpha1.GPUKernelCache) {
		c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	}
	n.cache("team-a", "add", image, digest, secret)
	n.only(n.decide("team-a", "claim-a", named))
	n.cache("team-b", "add", image, digest)
	if _, err := n.decide("team-b", "claim-b", named); !IsRefused(err) {
		t.Errorf("without credentials: %v", err)
	}
	n.cache("team-b", "add", image, digest, secret, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
	n.password = false
	if _, err := n.decide("team-b", "claim-b", named); !IsRefused(err) {
		t.Errorf("with wrong credentials: %v", err)
	}
	n.password = true
	n.later(refusalTTL)
	n.registry.Reads.Store(0)
	n.only(n.decide("team-b", "claim-b", named))
	if reads := n.registry.Reads.Load(); reads > 0 {
		t.Errorf("%d blobs were read for a second namespace", reads)
	}
}

// TestDigestIsNoRight: a registry that serves the manifest and the config of another tenant's image, and says that it has the layers, gets
// none of the files that the node has of it.
func TestDigestIsNoRight(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("alice/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.only(n.decide("team-a", "claim-a", named))

	stolen, same := n.push("mallory/add", "v1", triton(90, 32))
	if same != digest {
		t.Fatalf("the same files are %s, then %s", digest, same)
	}
	parsed, err := artifact.ParseDigest(digest)
	n.must(err)
	layer := n.registry.LayerOf(parsed)
	answers := map[string]http.HandlerFunc{
		"has no layer":    http.NotFound,
		"has other bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other bytes") },
		"only says so": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Length", "1000")
				w.Header().Set("Docker-Content-Digest", layer)
				return
			}
			http.NotFound(w, r)
		},
	}
	generation := int64(0)
	for name, answer := range answers {
		n.registry.Around(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/mallory/add/blobs/"+layer) {
					answer(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		generation++
		n.cache("team-b", "add", stolen, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = generation })
		if _, err := n.decide("team-b", "claim-b", named); !IsRefused(err) && !IsNotReady(err) {
			t.Errorf("a registry that %s: %v", name, err)
		}
	}
	n.registry.Around(nil)
	n.cache("team-b", "add", stolen, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = generation + 1 })
	n.only(n.decide("team-b", "claim-b", named)) // it has the layers after all
	n.registry.Reads.Store(0)
	n.cache("team-c", "add", stolen, digest)
	n.only(n.decide("team-c", "claim-c", named))
	if reads := n.registry.Reads.Load(); reads > 0 {
		t.Errorf("%d blobs were read for another object of a repository that was seen to have them", reads)
	}
}

// TestRefusedUnasked: what the policies refuse in any case is refused without a packet to the host that the object names, although the
// controller let it pass.
func TestRefusedUnasked(t *testing.T) {
	n := newNode(t)
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	for name, policy := range map[string]*v1alpha1.TrustPolicySpec{
		"no policy":        nil,
		"for others":       {Mode: v1alpha1.VerificationSkip, Images: []string{"other.example/**"}},
		"other namespace":  {Mode: v1alpha1.VerificationSkip, Images: []string{"**"}, Namespaces: []string{"team-b"}},
		"does not compile": {Mode: v1alpha1.VerificationSkip, Images: []string{"**"}, Authorities: []v1alpha1.TrustAuthority{{Name: "a"}}},
	} {
		if policy != nil {
			n.policy("policy", 1, *policy)
		}
		n.restart()
		before := n.registry.Connections()
		if _, err := n.decide("team-a", "claim", named); !IsRefused(err) {
			t.Errorf("%s: %v", name, err)
		}
		if got := n.registry.Connections() - before; got != 0 {
			t.Errorf("%s: %d connections", name, got)
		}
	}
}

// TestOneReason: a claim reads the same whatever keeps the node from a registry's answer to a tenant's object.
func TestOneReason(t *testing.T) {
	n := newNode(t)
	n.policy("all", 1, v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: []string{"**"}})
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.registry.Around(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	n.cache("team-a", "add", image, digest)
	_, page := n.decide("team-a", "claim", named)
	nobody := check.ClosedAddress(t)
	n.cache("team-a", "add", nobody+"/team/add:v1", digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
	_, closed := n.decide("team-a", "claim", named)
	if !IsNotReady(page) || !IsNotReady(closed) || page.Error() != strings.ReplaceAll(closed.Error(), nobody, n.registry.Host) {
		t.Errorf("a page: %v\na closed port: %v", page, closed)
	}
}

// TestPolicies: a claim costs no request as long as nothing changed, and a policy that changed is asked anew.
func TestPolicies(t *testing.T) {
	n := newNode(t)
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	if _, err := n.decide("team-a", "claim", named); !IsRefused(err) {
		t.Errorf("without a policy: %v", err)
	}
	n.trusting()
	n.only(n.decide("team-a", "claim", named))
	n.registry.Down.Store(true)
	n.only(n.decide("team-a", "claim", named))
	n.restart()
	n.only(n.decide("team-a", "claim", named))
	enforcing := v1alpha1.TrustPolicySpec{Images: []string{n.registry.Host + "/**"}, Authorities: []v1alpha1.TrustAuthority{{
		Name: "release", Key: &v1alpha1.TrustKey{PEM: publicKey},
	}}}
	n.policy("trusting", 2, enforcing)
	if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) {
		t.Errorf("with a policy that changed and no registry: %v", err)
	}
	n.registry.Down.Store(false)
	if _, err := n.decide("team-a", "claim", named); !IsRefused(err) || !strings.Contains(err.Error(), "release") {
		t.Errorf("with a policy that wants a signature: %v", err)
	}
}

const publicKey = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
`

// TestPublicRoot: what policies said by one public root is nothing by another, while those that do not ask it are not asked again.
func TestPublicRoot(t *testing.T) {
	const root = `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1","tlogs":[]}`
	n := newNode(t)
	n.publicRoot = []byte(root)
	n.restart()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	keyless := func(ownRoot string) v1alpha1.TrustPolicySpec {
		return v1alpha1.TrustPolicySpec{
			Images: []string{n.registry.Host + "/**"}, Mode: v1alpha1.VerificationWarn, Authorities: []v1alpha1.TrustAuthority{{
				Name: "ci", TrustedRoot: ownRoot, Keyless: &v1alpha1.TrustKeyless{Identities: []v1alpha1.TrustIdentity{{
					Issuer: "https://issuer.example", Subject: "https://ci.example",
				}}},
			}},
		}
	}
	n.policy("ci", 1, keyless(""))
	n.only(n.decide("team-a", "claim", named))
	n.registry.Down.Store(true)
	n.restart()
	n.only(n.decide("team-a", "claim", named))
	n.publicRoot = []byte(root + "\n")
	n.restart()
	if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) {
		t.Errorf("with another public root and no registry: %v", err)
	}
	n.publicRoot = nil
	n.restart()
	n.registry.Down.Store(false)
	if _, err := n.decide("team-a", "claim", named); !IsRefused(err) || !strings.Contains(err.Error(), "trusted root") {
		t.Errorf("without the public root: %v", err)
	}
	n.policy("ci", 2, keyless(root))
	n.only(n.decide("team-a", "claim", named))
	n.registry.Down.Store(true)
	n.publicRoot = []byte(root)
	n.restart()
	n.only(n.decide("team-a", "claim", named))
}

// TestRefusalHolds: kubelet, which asks again and again, costs the registry nothing, and whoever changed something need not wait.
func TestRefusalHolds(t *testing.T) {
	n := newNode(t)
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	enforcing := v1alpha1.TrustPolicySpec{Images: []string{n.registry.Host + "/**"}, Authorities: []v1alpha1.TrustAuthority{{
		Name: "release", Key: &v1alpha1.TrustKey{PEM: publicKey},
	}}}
	n.policy("release", 1, enforcing)
	n.registry.Down.Store(true)
	if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) {
		t.Errorf("without the registry: %v", err)
	}
	n.registry.Down.Store(false)
	_, refused := n.decide("team-a", "claim", named)
	if !IsRefused(refused) {
		t.Fatalf("what is not ready is remembered: %v", refused)
	}
	n.registry.Down.Store(true) // asked anew it is not known
	n.later(refusalTTL - time.Nanosecond)
	if _, err := n.decide("team-a", "claim", named); err == nil || err.Error() != refused.Error() {
		t.Errorf("a moment later: %v, want %v", err, refused)
	}
	anew := func(when string, change func()) {
		t.Helper()
		n.registry.Down.Store(false)
		n.later(time.Hour)
		if _, err := n.decide("team-a", "claim", named); !IsRefused(err) {
			t.Fatalf("before %s: %v", when, err)
		}
		n.registry.Down.Store(true)
		change()
		if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) || IsRefused(err) {
			t.Errorf("%s: %v", when, err)
		}
	}
	anew("after a while", func() { n.later(refusalTTL) })
	anew("a changed policy", func() { n.policy("release", 2, enforcing) })
	anew("another policy", func() { n.policy("ci", 1, enforcing) })
	anew("a changed object", func() {
		n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) { c.Generation = 2 })
	})
	anew("another process", n.restart)
	o, err := n.objects.get(t.Context(), v1alpha1.KindGPUKernelCache, "team-a", "add")
	n.must(err)
	n.registry.Down.Store(false)
	if e := n.startFetch(o, fetchOptions{opportunistic: true}); e != nil {
		<-e.done
	}
	n.registry.Down.Store(true)
	if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) {
		t.Errorf("what was given up ahead of claims is a claim's refusal: %v", err)
	}
}

// TestIdle: an image that nobody needs stays mounted for the next claim, until the store wants its room.
func TestIdle(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	first, second := n.only(n.decide("team-a", "claim-1", named)), n.only(n.decide("team-a", "claim-2", named))
	n.apply(first)
	mount := n.mountID(first.Tree)
	n.undo(first)
	n.apply(second)
	if again := n.mountID(second.Tree); again != mount {
		t.Errorf("the image was mounted anew, as %d after %d", again, mount)
	}
	if !n.inUse(second.Tree) || n.mountID(second.Tree) != mount {
		t.Error("the image of a claim is not in use")
	}
	n.undo(second)
	n.must(n.host.Sweep(t.Context())) // which lacks no room
	if n.mountID(second.Tree) != mount {
		t.Error("an image went that is in nobody's way")
	}
	n.empty()
	n.reads(filepath.Join(n.apply(n.only(n.decide("team-a", "claim-3", named))), kernel), signed.TritonText)
}

// TestPlaces: neither a reboot nor an image that went leaves anything where images were mounted.
func TestPlaces(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", named))
	at := n.Mounter.Mounts.Path(imageName(u.Tree))
	n.apply(u)
	n.undo(u)
	n.must(unix.Unmount(at, 0), n.maintain(t.Context()))
	if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a reboot: %v", err)
	}
	n.apply(u)
	n.undo(u)
	n.must(n.maintain(t.Context()))
	if there, err := n.Mounter.Mounts.Has(imageName(u.Tree)); !there || err != nil {
		t.Errorf("the mount of the image is there: %v, %v", there, err)
	}
	n.evict(u.Tree)
	n.must(n.Destroy())
	n.empty()
}

// TestTogether: many claims at once fetch a cache once, and none takes the image's mount from another.
func TestTogether(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	var wg sync.WaitGroup
	for _, uid := range strings.Split("abcdefghijklmnop", "") {
		wg.Go(func() {
			uses, err := n.decide("team-a", "claim-"+uid, named)
			if err != nil || len(uses) != 1 {
				t.Errorf("decided %v, %v", uses, err)
				return
			}
			u := &uses[0]
			s, encoded := u.Step()
			kinds := n.Kinds()
			err = errors.Join(encoded, kinds.Apply(t.Context(), s), kinds.Undo(t.Context(), s), kinds.Apply(t.Context(), s))
			_, read := os.ReadFile(filepath.Join(n.Mounter.Edits(u).Mounts[0].HostPath, signed.TritonGroup))
			if err := errors.Join(err, read, kinds.Undo(t.Context(), s)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n.empty()
	if reads := n.registry.Reads.Load(); reads != 2 {
		t.Errorf("%d blobs were read", reads)
	}
}

// TestEvicted: a tree that went since it was decided on, as before a reboot, comes back by its digest, whatever the tag means now.
func TestEvicted(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", named))
	n.push("team/add", "v1", triton(80, 32))
	n.evict(u.Tree)
	n.restart()
	before, err := json.Marshal(map[string][]cachemount.Use{"gpu": {*u}})
	n.must(err)
	again, err := n.again(before)
	n.must(err)
	s, err := u.Step()
	n.must(err)
	if diff := cmp.Diff([]step.Step{s}, again.Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	at := n.apply(u)
	n.reads(filepath.Join(at, kernel), signed.TritonText)
	if !n.inUse(u.Tree) {
		t.Error("a tree that is mounted counts as not in use")
	}
	left, err := n.leftovers("claim-1")
	if err != nil || len(left) != 1 {
		t.Errorf("of a claim whose record is lost there remain %v, %v", left, err)
	}
	n.undo(u)
	n.empty()
	if left, err := n.leftovers("claim-1"); err != nil || len(left) > 0 {
		t.Errorf("of a claim that is gone there remain %v, %v", left, err)
	}
}

// TestConflict: two caches for one place are refused, since one would hide the other.
func TestConflict(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.cache("team-a", "other", image, digest)
	_, err := n.decide("team-a", "claim", named, v1alpha1.KernelCacheSource{Name: "other"})
	if !IsRefused(err) || !strings.Contains(err.Error(), "both want "+home) {
		t.Errorf("two at one place: %v", err)
	}
	for _, nested := range []string{home + "/below", path.Dir(home)} {
		_, err = n.decide("team-a", "claim", named, v1alpha1.KernelCacheSource{Name: "other", MountPath: nested})
		if !IsRefused(err) || !strings.Contains(err.Error(), "both want "+max(nested, home)) {
			t.Errorf("one at %s: %v", nested, err)
		}
	}
	// Each at a place of its own: Triton still has one variable.
	_, err = n.decide("team-a", "claim", named, v1alpha1.KernelCacheSource{Name: "other", MountPath: "/other"})
	if !IsRefused(err) || !strings.Contains(err.Error(), "TRITON_CACHE_DIR") {
		t.Errorf("two with one variable: %v", err)
	}
}

// TestObjectSays: the object's mount counts where the claim says nothing.
func TestObjectSays(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	limit := resource.MustParse("2Mi")
	n.cache("team-a", "add", image, digest, func(c *v1alpha1.GPUKernelCache) {
		c.Spec.Mount = &v1alpha1.CacheMount{
			Path: "/kernels", Access: v1alpha1.CacheAccessReadOnly, WritableLimit: &limit, Env: v1alpha1.CacheEnvNone,
		}
	})
	u := n.only(n.decide("team-a", "claim", named))
	if u.Want != "/kernels" || u.Access != cachemount.ReadOnly || u.Bytes != 2<<20 || len(u.Env) > 0 {
		t.Errorf("as the object says: %+v", u)
	}
	u = n.only(n.decide("team-a", "claim", v1alpha1.KernelCacheSource{Name: "add", MountPath: "/mine", Access: v1alpha1.CacheAccessOverlay}))
	if u.Want != "/mine" || u.Access != cachemount.Overlay {
		t.Errorf("as the claim says: %+v", u)
	}
}

// TestDestroyEndsFetches: a node that was emptied gets no cache from a fetch that goes on.
func TestDestroyEndsFetches(t *testing.T) {
	n := newNode(t)
	n.trusting()
	o := n.added()
	asked := make(chan struct{})
	n.Credentials = func(ctx context.Context, _ string, _ []string) (*registry.Keychain, error) {
		close(asked)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	e := n.startFetch(o, fetchOptions{opportunistic: true})
	<-asked
	n.must(n.Destroy())
	select {
	case <-e.done:
	default:
		t.Error("a fetch goes on after the node was emptied")
	}
}

// TestWatched: what the API server has, and gets later, is known without asking it, and the end of it is orderly.
func TestWatched(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	ctx, cancel := context.WithCancel(t.Context())
	changed := notify.New()
	n.Changed = changed.Send
	policiesStopped, stopped := n.Policies.Watch(ctx), n.Watch(ctx)
	check.Eventually(t, "all that is there is known", func() bool {
		return n.objects.synced() && n.Policies.Synced() && len(n.objects.list()) == 1
	})
	check.Eventually(t, "caches of both kinds and policies are watched", func() bool { return n.watches() == 3 })
	select {
	case <-changed:
	case <-time.After(check.Patience):
		t.Error("that caches are known is not told of")
	}
	n.client.ClearActions()
	n.only(n.decide("team-a", "claim", named))
	if asked := n.client.Actions(); len(asked) > 0 {
		t.Errorf("the API server was asked: %v", asked)
	}
	wanted := n.prefetchJobs([]device.Device{hopper()})
	if len(wanted) != 1 || wanted[0].Digest != digest {
		t.Errorf("to be fetched ahead: %+v", wanted)
	}
	n.must(wanted[0].Fetch(ctx))
	status := n.NodeStatus([]device.Device{hopper()}, nil)
	want := []v1alpha1.NodeCache{{
		Namespace: "team-a", Name: "add", Digest: digest, Phase: v1alpha1.NodeCacheExtracted, CompatibleDevices: 1, Bytes: status[0].Bytes,
	}}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	n.must(n.maintain(ctx))
	cancel()
	stopped()
	policiesStopped()
}

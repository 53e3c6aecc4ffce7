// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/test/lone"
)

// The series of claims with a cache that the node has, and of the same claims without one, by what is in front of them.
const (
	warmPrepare   = "cache.warm.prepare"
	warmUnprepare = "cache.warm.unprepare"
	// warmAdded is what the cache adds to a Prepare at the median.
	warmAdded = "cache.warm.added_ms"
	// caseCache has a cache, casePlain none.
	caseCache = "cache"

	targetWarmAdded = 1 // ms
	// warmMachine is a file of test/machines, and warmGPUs how many it has.
	warmMachine = "8xmi300x"
	warmGPUs    = 8
	// warmHome is where the producer of the caches had them.
	warmHome = "/root/.triton/cache"
)

// warmConfiguration lets the plugin give caches.
const warmConfiguration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: 1h
kernelCaches:
  enabled: true
`

// The claim says how it has its cache, or the plugin asks the API server for the claim's pod, which is one request more.
const (
	podsUnasked = "unasked"
	podsAsked   = "asked"
)

// measureWarm prepares claims whose cache is on the node already, in turn with claims without any.
func (b *bench) measureWarm(ctx context.Context, image *cacheImage, host, pods string) (err error) {
	at := point{Machine: "caches", Devices: 1, Parallel: 1, Bytes: int(image.plain), Files: image.files, Pods: pods}
	name := fmt.Sprintf("warm-%d-%s", image.files, pods) // of the objects, too
	n, err := b.newNode(ctx, "bench-"+name, unlimited()...)
	if err != nil {
		return err
	}
	unmount, err := shareMounts(n.Disk)
	if err != nil {
		return b.report.nothing(warmAdded, &at, err)
	}
	defer func() { err = errors.Join(err, unmount()) }()
	b.say("caches of kernels: claims of %d files that are on the node, the pod is %s", image.files, pods)
	p, err := b.startWarmPlugin(ctx, &n, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := b.cluster.makeCache(ctx, image, host, name); err != nil {
		return err
	}
	source := v1alpha1.KernelCacheSource{Name: name}
	if pods == podsUnasked {
		source.Access = v1alpha1.CacheAccess(cachemount.Overlay)
	}
	plain, err := b.warmClaims(ctx, p, casePlain, v1alpha1.KernelCacheSource{Name: name})
	if err != nil {
		return err
	}
	cached, err := b.warmClaims(ctx, p, caseCache, source)
	if err != nil {
		return err
	}
	if err := b.fetched(ctx, p, cached[0]); err != nil {
		return err
	}
	return b.compareWarm(ctx, p, at, plain, cached)
}

// shareMounts has what is mounted below a directory be seen by others, as kubelet's Bidirectional does for the plugin.
func shareMounts(dir string) (unmount func() error, err error) {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mounts for claims need a machine that lets us mount: %w", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("share the mounts of %s: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH) }, nil
}

func (b *bench) startWarmPlugin(ctx context.Context, n *node, host string) (*plugin, error) {
	if err := expandFile(b.root, warmMachine, n.Host); err != nil {
		return nil, err
	}
	config, registries := filepath.Join(n.Disk, "config.yaml"), filepath.Join(n.Disk, "registries.yaml")
	err := errors.Join(os.WriteFile(config, []byte(warmConfiguration), 0o600),
		os.WriteFile(registries, fmt.Appendf(nil, "plainHTTP: [%q]\n", host), 0o600))
	if err != nil {
		return nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	n.Flags = append(n.Flags, "--config="+config, "--registries="+registries)
	p, err := b.start(ctx, *n)
	if err != nil {
		return nil, err
	}
	if _, err = b.cluster.published(ctx, p, warmGPUs); err == nil {
		p.standing, err = p.files()
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// makeCache makes the objects as the controller leaves them.
func (api *controlPlane) makeCache(ctx context.Context, image *cacheImage, host, name string) error {
	digest := artifact.DigestOf(image.manifest).String()
	cache := &v1alpha1.GPUKernelCache{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUKernelCache},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1alpha1.GPUKernelCacheSpec{Image: host + "/" + cacheRepository + ":v1"},
		Status: v1alpha1.GPUKernelCacheStatus{
			ObservedGeneration: 1, ResolvedDigest: digest,
			Verification: &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictSkipped},
		},
	}
	policy := &v1alpha1.TrustPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindTrustPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: []string{host + "/**"}},
	}
	return errors.Join(api.Create(ctx, "trustpolicies", "", policy), api.Create(ctx, "gpukernelcaches", namespace, cache))
}

// warmClaims are a claim for each GPU.
func (b *bench) warmClaims(ctx context.Context, p *plugin, what string, cache v1alpha1.KernelCacheSource) ([]claim, error) {
	found, err := b.cluster.published(ctx, p, warmGPUs)
	if err != nil {
		return nil, err
	}
	var shapes []shape
	for i, name := range found.of("gpu") {
		s := shape{name: fmt.Sprintf("%s-%s-%d", what, cache.Name, i), node: p.node.Name, pool: "gpu", devices: []string{name}}
		if what == caseCache {
			config, err := opaque(resourceapi.AllocationConfigSourceClaim, nil, v1alpha1.GPUConfig{
				TypeMeta:     metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUConfig},
				KernelCaches: []v1alpha1.KernelCacheSource{cache},
			})
			if err != nil {
				return nil, err
			}
			s.configs = append(s.configs, config)
			if s.pod, err = b.cluster.makePod(ctx, s.name, s.node); err != nil {
				return nil, err
			}
		}
		shapes = append(shapes, s)
	}
	return b.cluster.createClaims(ctx, shapes)
}

// makePod makes a pod that is on a node, as far as the API server knows.
func (api *controlPlane) makePod(ctx context.Context, name, node string, claims ...corev1.PodResourceClaim) (types.UID, error) {
	pod, err := api.Kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "kernels", Image: "kernels"}}, ResourceClaims: claims,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create pod %s: %w", name, err)
	}
	return pod.UID, nil
}

// fetched waits until a claim could have its cache, so that it is on the node.
func (b *bench) fetched(ctx context.Context, p *plugin, c claim) error {
	var last error
	_, err := lone.Await(ctx, time.Now(), "the cache to be on the node", func() (bool, error) {
		_, last = p.prepare(ctx, c)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	_, err = p.unprepare(ctx, c)
	return err
}

// compareWarm measures claims of one GPU with and without the cache, in an order that changes.
func (b *bench) compareWarm(ctx context.Context, p *plugin, at point, plain, cached []claim) error {
	measured := map[string]samples{casePlain: {}, caseCache: {}}
	claims := map[string][]claim{casePlain: plain, caseCache: cached}
	random := rand.New(rand.NewPCG(7, 8))
	begin := time.Now()
	for n := -1; n < 0 || b.form.more(n, begin, b.form.limit); n++ {
		for i := range plain {
			order := []string{casePlain, caseCache}
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, what := range order {
				s := measured[what]
				if n < 0 { // nothing is open yet
					s = samples{}
				}
				if err := s.warmCycle(ctx, p, claims[what][i]); err != nil {
					return fmt.Errorf("case %s: %w", what, err)
				}
			}
		}
	}
	for _, what := range slices.Sorted(slices.Values([]string{casePlain, caseCache})) {
		at.Case = what
		if err := b.report.series(at, measured[what]); err != nil {
			return err
		}
	}
	at.Case = ""
	added := measured[caseCache].median(warmPrepare) - measured[casePlain].median(warmPrepare)
	target := targetIf(at.Pods == podsUnasked, targetWarmAdded)
	return b.report.against(target, warmAdded, &at, len(measured[caseCache].of(warmPrepare)), added)
}

func (s samples) warmCycle(ctx context.Context, p *plugin, c claim) error {
	if err := s.time(ctx, warmPrepare, c, p.prepare); err != nil {
		return err
	}
	return s.time(ctx, warmUnprepare, c, p.unprepare)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/lone"
	"github.com/fettle-dev/fettle/test/signed"
)

// serveImages is a registry on loopback.
func (s *scale) serveImages() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.registryHost = listener.Addr().String()
	s.registry = &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: lone.Patience}
	go func() { _ = s.registry.Serve(listener) }()
	return nil
}

// push makes an image of a small cache of kernels for the nodes' GPUs.
func (s *scale) push(repository string) (image string, err error) {
	const home = "/root/.triton/cache"
	files := signed.Triton(home, "cuda", "90", 32)
	files["of"] = repository // so that each has a digest of its own
	var content bytes.Buffer
	out := tar.NewWriter(&content)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: path.Join("io.triton.cache", file), Size: int64(len(files[file])), Mode: 0o644, Typeflag: tar.TypeReg}
		if err := out.WriteHeader(header); err != nil {
			return "", err
		}
		if _, err := io.WriteString(out, files[file]); err != nil {
			return "", err
		}
	}
	if err := out.Close(); err != nil {
		return "", err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		return "", err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return "", err
	}
	image = s.registryHost + "/caches/" + repository + ":v1"
	ref, err := name.ParseReference(image, name.Insecure)
	if err != nil {
		return "", err
	}
	return image, remote.Write(ref, made)
}

// rollout has all nodes fetch caches of kernels that are made at once.
func (s *scale) rollout(ctx context.Context) error {
	if err := s.makePolicy(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.settle(ctx), s.audit.update()); err != nil {
		return err
	}
	before, begin := maps.Clone(s.audit.calls), time.Now()
	took := time.Duration(0)
	seen, _, err := s.during(func() (err error) {
		for i := range s.caches {
			if err := s.makeCache(ctx, fmt.Sprintf("rollout-%03d", i)); err != nil {
				return err
			}
		}
		if took, err = s.allHave(ctx, begin); err != nil {
			return err
		}
		return s.settle(ctx)
	})
	if err := errors.Join(err, s.audit.update()); err != nil {
		return err
	}
	controller := s.audit.calls.since(before)
	s.tell(controller)
	watched := 0
	for kind, count := range controller {
		if strings.HasPrefix(kind.resource, "clustergpukernelcaches") && (tally{kind: count}).writes() > 0 {
			watched += count
		}
	}
	const writes, nodeWrites = 12, 3
	return errors.Join(
		s.report.say("all nodes have all", "s", took.Seconds()),
		s.report.want("lists of slices", "calls", float64(seen[call{"list", "resourceslices"}]), 0),
		s.report.want("writes a cache to what nodes watch", "calls", float64(watched)/float64(s.caches), writes),
		s.report.want("writes a node", "calls", s.perNode(seen.writes()), nodeWrites),
		s.report.say("deliveries a node", "calls", s.perNode(seen.of("deliver"))),
		s.wantMemory(),
	)
}

func (s *scale) makePolicy(ctx context.Context) error {
	return s.cluster.Create(ctx, "trustpolicies", "", &v1alpha1.TrustPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindTrustPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: "scale"},
		Spec:       v1alpha1.TrustPolicySpec{Mode: v1alpha1.VerificationSkip, Images: []string{s.registryHost + "/**"}},
	})
}

func (s *scale) makeCache(ctx context.Context, name string) error {
	image, err := s.push(name)
	if err != nil {
		return fmt.Errorf("push an image: %w", err)
	}
	_, err = s.cluster.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clustergpukernelcaches")).Create(ctx,
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindClusterGPUKernelCache, "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"image": image, "workloadNamespaces": []any{"*"}, "distribution": map[string]any{"prewarm": string(v1alpha1.CachePrewarmAll)},
			},
		}}, metav1.CreateOptions{})
	return err
}

// allHave waits until each node reports each cache, and returns how long after begin.
func (s *scale) allHave(ctx context.Context, begin time.Time) (time.Duration, error) {
	missing := ""
	took, err := await(ctx, begin, "all nodes to have all caches", func() (bool, error) {
		list, err := s.cluster.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes")).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		if err := s.program.Running(); err != nil {
			return false, err
		}
		missing = ""
		for i := range list.Items {
			var node v1alpha1.AcceleratorNode
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &node); err != nil {
				return false, err
			}
			if have := s.has(&node); have < s.caches {
				missing = fmt.Sprintf(": %s has %d of %d: %+v", node.Name, have, s.caches, node.Status.KernelCaches)
			}
		}
		return missing == "", nil
	})
	if err != nil {
		return 0, fmt.Errorf("%w%s", err, missing)
	}
	return took, nil
}

// has counts the caches that a node reports to have.
func (s *scale) has(node *v1alpha1.AcceleratorNode) (n int) {
	for i := range s.caches {
		for _, entry := range node.Status.CachesOf("", fmt.Sprintf("rollout-%03d", i)) {
			if entry.Phase == v1alpha1.NodeCacheExtracted {
				n++
			}
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// cachesDir is the directory below the state directory of what is known about caches.
const cachesDir = "caches"

// containerContext is the SELinux context of files that any container may read and write.
const containerContext = "system_u:object_r:container_file_t:s0"

func (p *Plugin) newCaches() *caches.Keeper {
	c := caches.Config{
		Enabled: p.config.File.KernelCaches.Enabled, Dynamic: p.clients.Dynamic, Namespace: p.config.Namespace,
		Client: p.fpgas.artifacts.client, Store: p.fpgas.artifacts.store, Credentials: p.fpgas.artifacts.credentials,
		Pod:    p.pods.find,
		Mounts: p.mounts, CanMount: hostmount.CanMount, Dir: filepath.Join(p.config.StateDir, cachesDir), PublicRoot: p.config.PublicTrustRoot,
		Tell: func(c *resourceapi.ResourceClaim, eventType, reason, note string) {
			p.teller.event(c, eventType, reason, truncate(note, maxEventMessage))
		},
		TellObject: func(o corev1.ObjectReference, eventType, reason, note string) {
			p.teller.events.Eventf(&o, nil, eventType, reason, "Keep", "%s", truncate("node "+p.config.Node+": "+note, maxEventMessage))
		},
		Changed: func() { signal(p.claims) },
	}
	if _, err := os.Stat(p.config.hostPath(sysfs.SELinuxEnforce)); err == nil {
		c.Context = containerContext
	}
	return caches.New(c)
}

// cachesAhead fetches caches for the node's GPUs.
func (p *Plugin) cachesAhead() forerunner {
	return forerunner{
		what: "kernel cache", needed: func(v *view) bool { return len(gpusOf(v)) > 0 },
		// They are followed in any case, for claims.
		watch: func(context.Context, func()) (stopped func(), err error) { return func() {}, nil },
		wanted: func(v *view) []job {
			var out []job
			for _, e := range p.caches.Wanted(gpusOf(v)) {
				out = append(out, job{key: e.Key, reference: e.Reference, digest: e.Digest, bring: e.Bring})
			}
			return out
		},
	}
}

// watchCaches follows caches and the pods that may have them until ctx ends, and fetches those that the node should have; stopped waits for
// the former.
func (p *Plugin) watchCaches(ctx context.Context) (ahead *forerunner, stopped func(), err error) {
	ahead = p.newForerunner(p.cachesAhead())
	unfollowed := func() {}
	if p.config.File.KernelCaches.WatchPods {
		if unfollowed, err = p.pods.watch(ctx); err != nil {
			return nil, nil, err
		}
	}
	unwatched, err := p.caches.Watch(ctx, func() {
		signal(ahead.changed)
		signal(p.claims)
		signal(p.kept)
	})
	if err != nil {
		return nil, nil, err
	}
	return ahead, func() { unwatched(); unfollowed() }, nil
}

// gpusOf are the GPUs of a node.
func gpusOf(v *view) []device.Device {
	var out []device.Device
	if v == nil {
		return nil
	}
	for _, d := range v.All() {
		if d.Kind == device.KindGPU {
			out = append(out, d)
		}
	}
	return out
}

// tendCaches keeps the caches that objects want to stay, and forgets those whose objects are gone, until ctx ends. Where nobody is given a
// cache any more it lets go of what was kept.
func (p *Plugin) tendCaches(ctx context.Context) {
	ticker := time.NewTicker(storeInterval)
	defer ticker.Stop()
	for {
		if err := p.caches.Tend(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Caches that objects want to stay may go, and others stay")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-p.kept:
		}
	}
}

// cacheStatus is what the node has of caches. A node that gives nobody any shows only what claims have from before.
func (p *Plugin) cacheStatus(v *view, claims [][]caches.Use) []v1alpha1.NodeCache {
	return p.caches.Status(gpusOf(v), claims)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/lone"
	"github.com/fettle-dev/fettle/test/objects"
)

// phase is what the cluster does for a while, and what is measured of it.
type phase struct {
	name    string
	measure func(context.Context) error
}

// phases are in the order in which they follow each other.
func (s *scale) phases() []phase {
	return []phase{
		{"start", s.start},
		{"idle", s.idle},
		{"claims", s.claims},
		{"tainted", s.tainted},
		{"rollout", s.rollout},
		{"controller", s.controllerRestarts},
		{"server", s.serverRestarts},
		{"churn", s.churn},
		{"refused", s.refused},
	}
}

// start starts all nodes at once, and waits until the cluster has all devices.
func (s *scale) start(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop, s.ended = stop, make(chan error, s.options.nodes)
	begin := time.Now()
	for i := range s.options.nodes {
		n, err := s.newNode(ctx, i)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
		s.running++
		go func() { s.ended <- n.plugin.Run(running) }()
	}
	group, registering := errgroup.WithContext(ctx)
	for _, n := range s.nodes {
		group.Go(func() error { return n.register(registering) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if _, err := lone.Await(ctx, time.Now(), n.name, func() (bool, error) { return n.plugin.Ready() == nil, nil }); err != nil {
			return errors.Join(err, n.plugin.Ready())
		}
	}
	took := time.Since(begin).Seconds()
	const each, base = 0.15, 10 // seconds
	return errors.Join(
		s.report.want("ready", "s", took, base+each*float64(len(s.nodes))),
		s.report.want("calls a node", "calls", s.perNode(s.all().requests()), 30),
		s.report.say("watches a node", "calls", s.perNode(s.all().of("watch"))),
	)
}

// all sums what all nodes called.
func (s *scale) all() tally { return called(s.nodes) }

// called sums what some nodes called.
func called(nodes []*node) tally {
	sum := tally{}
	for _, n := range nodes {
		for kind, count := range n.count.seen() {
			sum[kind] += count
		}
	}
	return sum
}

func (s *scale) perNode(n int) float64 { return float64(n) / float64(len(s.nodes)) }

// during counts what all nodes call while act runs, and for how many seconds.
func (s *scale) during(act func() error) (tally, float64, error) {
	before, begin := s.all(), time.Now()
	err := act()
	seen := s.all().since(before)
	s.tell(seen)
	return seen, time.Since(begin).Seconds(), err
}

// tell writes how often each kind of call was made to the progress.
func (s *scale) tell(seen tally) {
	for _, kind := range slices.SortedFunc(maps.Keys(seen), func(a, b call) int { return strings.Compare(a.String(), b.String()) }) {
		_, _ = fmt.Fprintf(s.progress, "%8d %s\n", seen[kind], kind)
	}
}

// await polls until check is done, and returns the time since begin.
func await(ctx context.Context, begin time.Time, what string, done func() (bool, error)) (time.Duration, error) {
	const limit, interval = 20 * time.Minute, 100 * time.Millisecond
	for time.Since(begin) < limit {
		ok, err := done()
		if ok || err != nil {
			return time.Since(begin), err
		}
		if err := lone.Pause(ctx, interval); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("wait for %s: not within %s", what, limit)
}

// settle waits until what came before is over.
func (s *scale) settle(ctx context.Context) error {
	const quiet = 20 * time.Second
	return lone.Pause(ctx, quiet)
}

// idle is nothing at all.
func (s *scale) idle(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	seen, seconds, err := s.during(func() error { return lone.Pause(ctx, s.look) })
	if err != nil {
		return err
	}
	largest, err := s.largestNode(ctx)
	if err != nil {
		return err
	}
	const object = 8 << 10
	return errors.Join(
		s.report.want("calls", "1/s", float64(seen.requests())/seconds, float64(len(s.nodes))/100),
		s.report.want("writes", "1/s", float64(seen.writes())/seconds, 0),
		s.report.want("lists", "1/s", float64(seen.of("list"))/seconds, 0),
		s.wantMemory(),
		s.report.want("largest AcceleratorNode", "B", largest, object),
	)
}

// largestNode is the size of the largest AcceleratorNode as JSON.
func (s *scale) largestNode(ctx context.Context) (largest float64, err error) {
	list, err := s.cluster.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		list.Items[i].SetManagedFields(nil)
		text, err := json.Marshal(&list.Items[i])
		if err != nil {
			return 0, err
		}
		largest = max(largest, float64(len(text)))
	}
	return largest, nil
}

// claims has claims come and go on one node, five a second, and looks at the others.
func (s *scale) claims(ctx context.Context) error {
	worker, bystanders := s.nodes[0], s.nodes[1:]
	total := 0
	before, mine := called(bystanders), worker.count.seen()
	begin := time.Now()
	for time.Since(begin) < s.look {
		if err := s.claim(ctx, worker, fmt.Sprintf("claim-%d", total)); err != nil {
			return err
		}
		total++
		if err := lone.Pause(ctx, time.Until(begin.Add(time.Duration(total)*time.Second/5))); err != nil {
			return err
		}
	}
	seconds := time.Since(begin).Seconds()
	seen := called(bystanders).since(before)
	others := float64(len(bystanders)) * seconds
	return errors.Join(
		s.report.want("deliveries to a bystander", "1/s", float64(seen.of("deliver"))/others, 0.3),
		s.report.want("calls of a bystander", "1/s", float64(seen.requests())/others, 0.01),
		s.report.say("calls a claim", "calls", float64(worker.count.seen().since(mine).requests())/float64(total)),
	)
}

// claim gives a claim to a node, and takes it back.
func (s *scale) claim(ctx context.Context, n *node, name string) error {
	uid, err := s.give(ctx, n, name)
	if err != nil {
		return err
	}
	if err := n.unprepare(ctx, uid); err != nil {
		return err
	}
	return s.cluster.Kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// give makes a claim, allocates it to a node as a scheduler does, and has the node prepare it.
func (s *scale) give(ctx context.Context, n *node, name string) (types.UID, error) {
	claims := s.cluster.Kube.ResourceV1().ResourceClaims(namespace)
	c := objects.Claim(namespace, name, objects.Request("gpu", "gpu.fettle.dev"))
	made, err := claims.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if n.device == "" {
		if n.device, n.pool, err = s.findDevice(ctx, n); err != nil {
			return "", err
		}
	}
	made.Status.Allocation = objects.Allocation(objects.Result("gpu", v1alpha1.DriverName, n.pool, n.device))
	made.Status.ReservedFor = objects.ReservedFor("pod", "11111111-1111-4111-8111-111111111111")
	if _, err = claims.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	return n.prepare(ctx, name)
}

// findDevice returns a device of a node, and its pool.
func (s *scale) findDevice(ctx context.Context, n *node) (device, pool string, err error) {
	list, err := s.cluster.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name,
	})
	if err != nil {
		return "", "", err
	}
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			return d.Name, slice.Spec.Pool.Name, nil
		}
	}
	return "", "", fmt.Errorf("node %s publishes no devices", n.name)
}

// churn has the counts of a cluster's cache change, as they do while nodes elsewhere get caches. The controller is stopped, since it
// would write others.
func (s *scale) churn(ctx context.Context) error {
	if err := s.program.Stop(); err != nil {
		return err
	}
	s.program = nil
	caches := s.cluster.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clustergpukernelcaches"))
	made, err := caches.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ClusterGPUKernelCache", "metadata": map[string]any{"name": "churn"},
		"spec": map[string]any{"image": "registry.invalid/cache:v1", "workloadNamespaces": []any{"*"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	writes := 0
	seen, seconds, err := s.during(func() error {
		for begin := time.Now(); time.Since(begin) < s.look/2; writes++ {
			status := v1alpha1.GPUKernelCacheStatus{Counts: v1alpha1.CacheCounts{Nodes: int32(writes)}}
			if made.Object["status"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&status); err != nil {
				return err
			}
			if made, err = caches.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
				return err
			}
			if err := lone.Pause(ctx, time.Second/5); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	each := float64(len(s.nodes)) * seconds
	return errors.Join(
		s.report.want("lists a node", "1/s", float64(seen.of("list"))/each, 0),
		s.report.want("calls a node", "1/s", float64(seen.requests())/each, 0.01),
		s.report.say("deliveries a node", "1/s", float64(seen.of("deliver"))/each),
	)
}

// refused has the API server refuse the status of all AcceleratorNodes, as a wrong admission policy would, while each node has something
// to write: a claim.
func (s *scale) refused(ctx context.Context) error {
	for _, n := range s.nodes {
		n.count.setRefuse(func(c call) bool { return c.resource == "acceleratornodes/status" })
	}
	for _, n := range s.nodes {
		if _, err := s.give(ctx, n, "held-"+n.name); err != nil {
			return err
		}
	}
	if err := lone.Pause(ctx, s.look/2); err != nil {
		return err
	}
	seen, seconds, err := s.during(func() error { return lone.Pause(ctx, s.look/2) })
	if err != nil {
		return err
	}
	return s.report.want("calls a node", "1/s", float64(seen.requests())/(float64(len(s.nodes))*seconds), 0.1)
}

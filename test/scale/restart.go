// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/lone"
)

// controllerRestarts has another controller take over from one that was asked to end.
func (s *scale) controllerRestarts(ctx context.Context) error {
	if err := s.program.Stop(); err != nil {
		return err
	}
	s.program = nil
	if err := s.audit.update(); err != nil {
		return err
	}
	before, begin := maps.Clone(s.audit.calls), time.Now()
	if err := s.startController(ctx); err != nil {
		return err
	}
	// It is settled when it has made its last call for a while.
	const quiet = 8 * time.Second
	if _, err := await(ctx, begin, "the controller to have made its last call", func() (bool, error) {
		err := errors.Join(s.audit.update(), s.program.Running())
		return s.audit.last.After(begin) && time.Since(s.audit.last) > quiet, err
	}); err != nil {
		return err
	}
	seen := s.audit.calls.since(before)
	s.tell(seen)
	// Its own definitions it applies each time, however many nodes there are. That changes nothing where they are the same.
	maps.DeleteFunc(seen, func(kind call, _ int) bool {
		return kind.resource == "customresourcedefinitions" || kind.resource == "events"
	})
	const each, base, gets = 0.022, 8, 50 // seconds, seconds, nodes a call
	return errors.Join(
		s.report.want("settled", "s", s.audit.last.Sub(begin).Seconds(), base+each*float64(len(s.nodes))),
		s.report.want("live GETs", "calls", float64(seen.of("get")), float64(len(s.nodes))/gets),
		s.report.say("lists", "calls", float64(seen.of("list"))),
		s.report.want("writes", "calls", float64(seen.writes()), 0),
	)
}

// serverRestarts has the API server end and start, while nodes ask for claims as they do for pods that start.
func (s *scale) serverRestarts(ctx context.Context) error {
	const name = "asked-for"
	uid, err := s.give(ctx, s.nodes[0], name)
	if err != nil {
		return err
	}
	before := make([]tally, len(s.nodes))
	for i, n := range s.nodes {
		before[i] = n.count.seen()
	}
	begin := time.Now()
	if err := s.cluster.RestartServer(); err != nil {
		return err
	}
	up := time.Since(begin)
	if err := s.mark(ctx); err != nil {
		return err
	}
	asking, stop := context.WithCancel(ctx)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		s.ask(asking, name)
	}()
	took, err := s.current(ctx, begin, before)
	stop()
	<-asked
	if err != nil {
		return err
	}
	lists, refused, worst := 0, 0, tally{}
	for i, n := range s.nodes {
		seen := n.count.seen().since(before[i])
		refused += seen[call{tooMany, "resourceclaims"}]
		for kind, count := range seen {
			if kind.verb == "list" && count > lists {
				lists, worst = count, seen
			}
		}
	}
	s.tell(worst)
	const each, base = 0.1, 20 // seconds
	return errors.Join(
		s.report.say("server up", "s", up.Seconds()),
		s.report.want("all nodes current", "s", took.Seconds(), base+each*float64(len(s.nodes))),
		s.report.want("lists of one kind by one node", "calls", float64(lists), 2),
		s.report.want("claims refused with 429", "calls", float64(refused), 0),
		s.wantMemory(),
		s.nodes[0].unprepare(ctx, uid),
	)
}

// mark makes an object that all nodes watch.
func (s *scale) mark(ctx context.Context) error {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "scale-mark"}}
	_, err := await(ctx, time.Now(), "the API server to take an object", func() (bool, error) {
		_, err := s.cluster.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		return err == nil, nil // it has just started
	})
	return err
}

// current waits until each node has received the mark.
func (s *scale) current(ctx context.Context, begin time.Time, before []tally) (time.Duration, error) {
	missing := ""
	took, err := await(ctx, begin, "all nodes to have received an object", func() (bool, error) {
		if err := s.startAgain(ctx); err != nil {
			return false, err
		}
		for i, n := range s.nodes {
			seen := n.count.seen().since(before[i])
			if seen[call{"deliver", "deviceclasses"}]+seen[call{"list", "deviceclasses"}] == 0 {
				missing = n.name
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s lacks it: %w", missing, err)
	}
	return took, nil
}

// startAgain starts the controller where it has ended, as kubelet does: it ends when it cannot renew its Lease for ten seconds.
func (s *scale) startAgain(ctx context.Context) error {
	if s.program.Running() == nil {
		return nil
	}
	return errors.Join(s.startController(ctx), s.report.say("the controller was started again", "times", 1))
}

// ask has one node after the other read a claim.
func (s *scale) ask(ctx context.Context, name string) {
	const pause = 20 * time.Millisecond
	for i := 0; lone.Pause(ctx, pause) == nil; i++ {
		_, _ = s.nodes[i%len(s.nodes)].kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	}
}

// tainted has one device of one node get a taint: its claim is deleted, and its pod is not.
func (s *scale) tainted(ctx context.Context) error {
	const name = "deleted"
	n := s.nodes[0]
	uid, err := s.give(ctx, n, name)
	if err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	seen, _, err := s.during(func() error {
		if err := s.cluster.Kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		_, err := await(ctx, time.Now(), "the taint", func() (bool, error) { return s.hasTaint(ctx, n) })
		return errors.Join(err, s.settle(ctx))
	})
	if err != nil {
		return err
	}
	writes := 0
	for kind, count := range seen {
		if kind.resource == "resourceslices" && (tally{kind: count}).writes() > 0 {
			writes += count
		}
	}
	return errors.Join(s.report.want("slices written", "calls", float64(writes), 1), n.unprepare(ctx, uid))
}

// hasTaint says whether one of a node's devices has a taint.
func (s *scale) hasTaint(ctx context.Context, n *node) (bool, error) {
	list, err := s.cluster.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name,
	})
	if err != nil {
		return false, err
	}
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			if len(d.Taints) > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

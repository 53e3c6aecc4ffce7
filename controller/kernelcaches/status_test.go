// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

func digestOf(text string) string { return artifact.DigestOf([]byte(text)).String() }

// found is a good outcome.
func found(text string) *artifacts.Outcome {
	d := digestOf(text)
	return &artifacts.Outcome{
		Digest: d, Judged: d,
		Verdict: trust.Verdict{Results: []trust.Result{{Signatures: []trust.Signature{{Signer: trust.Signer{KeyID: "sha256:1"}}}}}},
	}
}

// record writes an outcome to the status, as of an image that was read.
func record(o object, out *artifacts.Outcome, now time.Time) {
	c := &cache{object: o}
	if out.Digest != "" {
		c.image = &v1alpha1.CacheImage{Digest: out.Digest}
	}
	artifacts.Record(kind(), c, out, now)
}

func namespaced() object {
	o := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "kernels", UID: "1", Generation: 1}}
	o.Spec.Image = "registry.example/kernels:v1"
	return object{o.Common(), "fettle"}
}

// TestHistory: what a tag meant before is kept, the newest first, and no longer than wanted.
func TestHistory(t *testing.T) {
	for _, test := range []struct {
		name string
		keep *int32
		tags string
		want string
	}{
		{"one", nil, "a", ""},
		{"did not move", nil, "a a", ""},
		{"moved", nil, "a b", "a"},
		{"moved often", nil, "a b c d e", "d c b"},
		{"moved back", nil, "a b a", "b"},
		{"back and on", nil, "a b a c", "a b"},
		{"gone", nil, "a -", "a"},
		{"gone twice", nil, "a - -", "a"},
		{"gone and back", nil, "a - a", ""},
		{"gone and another", nil, "a b - c", "b a"},
		{"down", nil, "a ! b !", "a"},
		{"one kept", ptr.To[int32](1), "a b c", "b"},
		{"none kept", ptr.To[int32](0), "a b c", ""},
		{"all kept", ptr.To[int32](16), "a b c d e f", "e d c b a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := namespaced()
			o.Spec.Retention = &v1alpha1.CacheRetention{KeepOldDigests: test.keep}
			for tag := range strings.FieldsSeq(test.tags) {
				out := found(tag)
				switch tag {
				case "-":
					out = &artifacts.Outcome{Err: artifact.ErrNotFound}
				case "!":
					out = &artifacts.Outcome{Err: artifact.ErrUnavailable}
				}
				record(o, out, start)
			}
			var want []string
			for tag := range strings.FieldsSeq(test.want) {
				want = append(want, digestOf(tag))
			}
			if diff := cmp.Diff(want, o.Status.PreviousDigests); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// entry is what a node says: "x 2+1 Extracted 3" is digest x, 2 GPUs that it fits and 1 that it does not, and 3 claims.
func entry(t *testing.T, text string) v1alpha1.NodeCache {
	t.Helper()
	c := v1alpha1.NodeCache{Namespace: "a", Name: "kernels"}
	var digest, phase string
	if _, err := fmt.Sscanf(text, "%s %d+%d %s %d", &digest, &c.CompatibleDevices, &c.IncompatibleDevices, &phase, &c.Claims); err != nil {
		t.Fatal(err)
	}
	c.Digest, c.Phase = digestOf(digest), v1alpha1.NodeCachePhase(phase)
	if c.Phase == v1alpha1.NodeCacheError {
		c.Reason, c.Message = "NoSpace", "the store is full"
	}
	return c
}

// around are nodes with a GPU each, which say what is between commas, and others' caches.
func around(t *testing.T, nodes ...string) (s surroundings) {
	t.Helper()
	for i, text := range nodes {
		node := v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		node.Status.Pools = []v1alpha1.PoolStatus{{Kind: "host", Devices: 1}, {Kind: "gpu", Devices: 1}}
		for part := range strings.SplitSeq(text, ",") {
			if part != "" {
				node.Status.KernelCaches = append(node.Status.KernelCaches, entry(t, part))
			}
		}
		another := entry(t, "new 1+0 Extracted 9")
		another.Namespace = "b"
		node.Status.KernelCaches = append(node.Status.KernelCaches, another)
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

type counted struct {
	Phase                                      v1alpha1.CachePhase
	Counts                                     v1alpha1.CacheCounts
	Compatible, Distributed, Degraded, Missing string
}

func TestCount(t *testing.T) {
	counts := func(nodes, inUse, errors, running, outdated int32) v1alpha1.CacheCounts {
		return v1alpha1.CacheCounts{
			Nodes: nodes, NodesInUse: inUse, NodesNotInUse: nodes - inUse, NodesError: errors, PodsRunning: running, PodsOutdated: outdated,
		}
	}
	const (
		fits, fitsNone, noWord = "True Fits", "False FitsNoGPU", "Unknown NoNodeTold"
		whole, partly          = "False NoFailure", "True NodesFailed"
		there                  = "False NamespacesThere"
	)
	prewarm := func(p v1alpha1.CachePrewarm) func(object) {
		return func(o object) { o.Spec.Distribution = &v1alpha1.CacheDistribution{Prewarm: p} }
	}
	for _, test := range []struct {
		name   string
		change func(object)
		nodes  []string
		want   counted
	}{
		{"nowhere", nil, nil, counted{v1alpha1.CachePending, counts(0, 0, 0, 0, 0), noWord, noWord, whole, there}},
		{"no word", nil, []string{""}, counted{v1alpha1.CachePending, counts(0, 0, 0, 0, 0), noWord, noWord, whole, there}},
		{
			"being fetched", nil,
			[]string{"new 1+0 Downloading 0", ""},
			counted{v1alpha1.CacheDownloading, counts(1, 0, 0, 0, 0), fits, "False Distributing", whole, there},
		},
		{
			"on one, being fetched on another", nil,
			[]string{"new 1+0 Downloading 0", "new 1+0 Extracted 0"},
			counted{v1alpha1.CacheExtracted, counts(2, 0, 0, 0, 0), fits, "False Distributing", whole, there},
		},
		{
			"there", nil,
			[]string{"new 1+0 Extracted 0", "new 0+2 Extracted 0", ""},
			counted{v1alpha1.CacheExtracted, counts(2, 0, 1, 0, 0), fits, "True Distributed", whole, there},
		},
		{
			"in use", nil,
			[]string{"new 1+1 Extracted 2", "new 1+0 Extracted 0"},
			counted{v1alpha1.CacheRunning, counts(2, 1, 0, 2, 0), fits, "True Distributed", whole, there},
		},
		{
			"old and new in use", nil,
			[]string{"old 1+0 Extracted 3,new 1+0 Extracted 2"},
			counted{v1alpha1.CacheRunning, counts(1, 1, 0, 5, 3), fits, "True Distributed", whole, there},
		},
		{
			"old in use", nil,
			[]string{"old 1+0 Extracted 3,new 1+0 Extracted 0", "older 1+0 Extracted 1"},
			counted{v1alpha1.CacheOutdated, counts(1, 0, 0, 4, 4), fits, "True Distributed", whole, there},
		},
		{
			"fits nothing", nil,
			[]string{"new 0+2 Extracted 0", "new 0+1 Error 0"},
			counted{v1alpha1.CacheError, counts(2, 0, 2, 0, 0), fitsNone, "True Distributed", whole, there},
		},
		{
			"fits nothing and is mounted anyway",
			func(o object) {
				o.Spec.Compatibility = &v1alpha1.CacheCompatibility{OnMismatch: v1alpha1.CacheMismatchMount}
			},
			[]string{"new 0+2 Extracted 0"},
			counted{v1alpha1.CacheExtracted, counts(1, 0, 1, 0, 0), fitsNone, "True Distributed", whole, there},
		},
		{
			"failed", nil,
			[]string{"new 0+0 Error 0"},
			counted{v1alpha1.CacheError, counts(1, 0, 1, 0, 0), noWord, "False Incomplete", partly, there},
		},
		{
			"failed on one of two", nil,
			[]string{"new 0+0 Error 0", "new 1+0 Extracted 1"},
			counted{v1alpha1.CacheRunning, counts(2, 1, 1, 1, 0), fits, "False Incomplete", partly, there},
		},
		{
			"on demand", prewarm(v1alpha1.CachePrewarmNone),
			[]string{""},
			counted{v1alpha1.CachePending, counts(0, 0, 0, 0, 0), noWord, "True OnDemand", whole, there},
		},
		{
			"for all, on one", prewarm(v1alpha1.CachePrewarmAll),
			[]string{"new 1+0 Extracted 0", ""},
			counted{v1alpha1.CacheExtracted, counts(1, 0, 0, 0, 0), fits, "False Distributing", whole, there},
		},
		{
			"for all, on all", prewarm(v1alpha1.CachePrewarmAll),
			[]string{"new 1+0 Extracted 0", "new 0+1 Extracted 0"},
			counted{v1alpha1.CacheExtracted, counts(2, 0, 1, 0, 0), fits, "True Distributed", whole, there},
		},
		{
			"the image of an index",
			func(o object) { o.Status.Image.Digest = digestOf("below") },
			[]string{"below 1+0 Extracted 1"},
			counted{v1alpha1.CacheRunning, counts(1, 1, 0, 1, 0), fits, "True Distributed", whole, there},
		},
		{
			"being deleted",
			func(o object) { o.SetDeletionTimestamp(&metav1.Time{Time: start}) },
			[]string{"new 1+0 Extracted 1"},
			counted{v1alpha1.CacheDeleting, counts(1, 1, 0, 1, 0), fits, "True Distributed", whole, there},
		},
		{
			"refused while pods have it",
			func(o object) {
				out := found("new")
				out.Refusal = trust.ErrRefused
				record(o, out, start)
			},
			[]string{"new 1+0 Extracted 1"},
			counted{v1alpha1.CacheError, counts(1, 1, 0, 1, 0), fits, "True Distributed", whole, there},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := namespaced()
			record(o, found("new"), start)
			if test.change != nil {
				test.change(o)
			}
			observe(o, around(t, test.nodes...), start)
			got := counted{
				o.Status.Phase, o.Status.Counts, text(o, v1alpha1.ConditionCompatible), text(o, v1alpha1.ConditionDistributed),
				text(o, v1alpha1.ConditionDegraded), text(o, v1alpha1.ConditionNamespaceMissing),
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantAll(t, o)
			s := around(t, test.nodes...)
			listed := countNodes(s.Nodes, o, volumes.Plan{})
			for i := range s.Nodes {
				inShort(&s.Nodes[i].Status)
			}
			short := countNodes(s.Nodes, o, volumes.Plan{})
			// An entry in short has no message.
			listed.Failures, listed.Misfits, short.Failures, short.Misfits = nil, nil, nil, nil
			if !reflect.DeepEqual(listed, short) {
				t.Errorf("nodes that report in short count as %+v, want %+v", short, listed)
			}
		})
	}
}

// inShort moves the caches that a node lists to its short entries.
func inShort(s *v1alpha1.AcceleratorNodeStatus) {
	s.Rest = &v1alpha1.NodeRest{}
	for i := range s.KernelCaches {
		s.Rest.KernelCaches = s.AddRestCache(s.Rest.KernelCaches, &s.KernelCaches[i])
	}
	s.KernelCaches = nil
}

// wantAll fails unless the seven conditions are all there, of this generation and with a reason.
func wantAll(t *testing.T, o object) {
	t.Helper()
	var kinds []string
	for _, c := range o.Status.Conditions {
		kinds = append(kinds, c.Type)
		if c.Reason == "" || c.Message == "" || c.ObservedGeneration != o.GetGeneration() {
			t.Errorf("condition %+v", c)
		}
	}
	slices.Sort(kinds)
	if diff := cmp.Diff(strings.Fields("Compatible Degraded Distributed NamespaceMissing Ready Resolved Verified"), kinds); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

// TestFailuresAreNamed: the condition says where and why, the first few of many.
func TestFailuresAreNamed(t *testing.T) {
	o := namespaced()
	record(o, found("new"), start)
	nodes := slices.Repeat([]string{"new 0+0 Error 0"}, 8)
	observe(o, around(t, nodes...), start)
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded)
	if !strings.HasPrefix(c.Message, "node n0: NoSpace: the store is full; node n1: ") || !strings.HasSuffix(c.Message, "; and 3 more") {
		t.Errorf("it says %q", c.Message)
	}
}

// TestVolumes: what is in volumes counts as what is on nodes.
func TestVolumes(t *testing.T) {
	volume := func(phase v1alpha1.CacheVolumePhase, digest string) v1alpha1.CacheVolume {
		return v1alpha1.CacheVolume{Namespace: "a", ClaimName: "kernels", Phase: phase, Digest: digestOf(digest), Message: "no node has room"}
	}
	for _, test := range []struct {
		name                  string
		plan                  volumes.Plan
		phase                 v1alpha1.CachePhase
		distributed, degraded string
	}{
		{"none yet", volumes.Plan{}, v1alpha1.CachePending, "False Distributing", "False NoFailure"},
		{"filled", of(volume("Filled", "new")), v1alpha1.CacheExtracted, "True Distributed", "False NoFailure"},
		{"filled before", of(volume("Filled", "old")), v1alpha1.CacheDownloading, "False Distributing", "False NoFailure"},
		{"filling", of(volume("Filling", "")), v1alpha1.CacheDownloading, "False Distributing", "False NoFailure"},
		{"failed", of(volume("Failed", "")), v1alpha1.CacheError, "False Incomplete", "True VolumesFailed"},
		{
			"kept", volumes.Plan{
				Volumes: []v1alpha1.CacheVolume{volume("Filling", "")}, Stuck: []string{"volume claim a/kernels: no node has room"},
			}, v1alpha1.CacheDownloading, "False Incomplete", "True VolumesFailed",
		},
		{"off", volumes.Plan{Stuck: []string{"no node has room"}}, v1alpha1.CacheError, "False Incomplete", "True VolumesFailed"},
		{"no node", volumes.Plan{Messages: []string{"no node has room"}}, v1alpha1.CachePending, "False Distributing", "False NoFailure"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := namespaced()
			o.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheROXVolume}
			record(o, found("new"), start)
			around := around(t, "")
			around.Volumes = test.plan
			observe(o, around, start)
			if diff := cmp.Diff(test.plan.Volumes, o.Status.Volumes); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
			said := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDistributed).Message
			if n := strings.Count(said, "no node has room"); n > 1 || n == 0 && test.name != "none yet" && test.name != "filled" {
				t.Errorf("it says %q", said)
			}
			got := []string{string(o.Status.Phase), text(o, v1alpha1.ConditionDistributed), text(o, v1alpha1.ConditionDegraded)}
			if diff := cmp.Diff([]string{string(test.phase), test.distributed, test.degraded}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func of(all ...v1alpha1.CacheVolume) volumes.Plan { return volumes.Plan{Volumes: all} }

// TestVolumesCount: nodes and pods that have volumes are counted with those that have claims, and no node twice.
func TestVolumesCount(t *testing.T) {
	volume := func(node string, phase v1alpha1.CacheVolumePhase, digest string) v1alpha1.CacheVolume {
		return v1alpha1.CacheVolume{Namespace: "a", ClaimName: "kernels-" + node, Node: node, Phase: phase, Digest: digestOf(digest)}
	}
	pod := func(node, digest string) volumes.User { return volumes.User{Node: node, Digest: digestOf(digest)} }
	for _, test := range []struct {
		name  string
		nodes []string
		plan  volumes.Plan
		want  v1alpha1.CacheCounts
	}{
		{"in the store and a volume", []string{"new 1+0 Extracted 1"}, of(volume("n0", "Filled", "new")), v1alpha1.CacheCounts{
			Nodes: 1, NodesInUse: 1, PodsRunning: 1,
		}},
		{"elsewhere", []string{"new 1+0 Extracted 0"}, of(volume("n1", "Filled", "new"), volume("n2", "Filled", "old")), v1alpha1.CacheCounts{
			Nodes: 2, NodesNotInUse: 2,
		}},
		{"failed", nil, of(volume("n1", "Failed", "")), v1alpha1.CacheCounts{Nodes: 1, NodesNotInUse: 1, NodesError: 1}},
		{
			"pods",
			[]string{"new 1+0 Extracted 1"},
			volumes.Plan{Pods: []volumes.User{pod("n0", "new"), pod("n1", "new"), pod("n1", "new"), pod("n2", "old")}},
			v1alpha1.CacheCounts{Nodes: 2, NodesInUse: 2, PodsRunning: 5, PodsOutdated: 1},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := namespaced()
			o.Spec.Distribution = &v1alpha1.CacheDistribution{Type: v1alpha1.CacheRWOPerNode}
			record(o, found("new"), start)
			around := around(t, test.nodes...)
			around.Volumes = test.plan
			observe(o, around, start)
			if diff := cmp.Diff(test.want, o.Status.Counts); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
	many := volumes.Plan{Volumes: slices.Repeat([]v1alpha1.CacheVolume{volume("n1", "Filled", "new")}, 300)}
	o := namespaced()
	record(o, found("new"), start)
	observe(o, surroundings{Volumes: many}, start)
	said := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDistributed).Message
	if len(o.Status.Volumes) != 256 || !strings.Contains(said, "300 volumes have it") {
		t.Errorf("%d volumes are listed, and it says %q", len(o.Status.Volumes), said)
	}
}

func TestNamespaces(t *testing.T) {
	for _, test := range []struct {
		names, missing string
		phase          v1alpha1.CachePhase
		want           string
	}{
		{"*", "", v1alpha1.CachePending, "False NamespacesThere"},
		{"a b", "", v1alpha1.CachePending, "False NamespacesThere"},
		{"a b", "b", v1alpha1.CachePending, "True NamespacesMissing"},
		{"a b", "a b", v1alpha1.CacheNoNamespace, "True NamespacesMissing"},
		{"* b", "b", v1alpha1.CachePending, "True NamespacesMissing"},
	} {
		c := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
		c.Spec.WorkloadNamespaces = strings.Fields(test.names)
		o := object{c.Common(), "fettle"}
		if slices.Contains(o.NamedNamespaces(), "*") || o.Head().SecretNamespace != "fettle" {
			t.Errorf("object %+v", o)
		}
		record(o, found("new"), start)
		observe(o, surroundings{MissingNamespaces: strings.Fields(test.missing)}, start)
		if got := text(o, v1alpha1.ConditionNamespaceMissing); got != test.want || o.Status.Phase != test.phase {
			t.Errorf("%q without %q: %s, %s", test.names, test.missing, got, o.Status.Phase)
		}
	}
}

func TestNext(t *testing.T) {
	const (
		tag = "registry.example/kernels:v1"
		pin = "registry.example/kernels@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	)
	refused, unpoliced, skipped := found("a"), found("a"), found("a")
	refused.Refusal, refused.Policies = trust.ErrRefused, []*trust.Policy{{}}
	unpoliced.Refusal = trust.ErrRefused
	skipped.Verdict = trust.Verdict{Skipped: []string{"team"}}
	for _, test := range []struct {
		name, image string
		interval    time.Duration
		out         *artifacts.Outcome
		after, want time.Duration
	}{
		{"tag", tag, 0, found("a"), time.Hour, 10 * time.Minute},
		{"tag with an interval", tag, time.Minute, found("a"), time.Hour, time.Minute},
		{"digest", pin, 0, found("a"), time.Hour, 0},
		{"digest, not checked", pin, 0, skipped, time.Hour, 0},
		{"digest, no policy", pin, 0, unpoliced, time.Hour, 0},
		{"refused now", pin, 0, refused, 0, 15 * time.Second},
		{"refused a while ago", pin, 0, refused, time.Minute, time.Minute},
		{"refused long ago", tag, 0, refused, time.Hour, 10 * time.Minute},
		{"failed now", tag, 0, &artifacts.Outcome{Err: artifact.ErrNotFound}, 0, 15 * time.Second},
		{"failed long ago", tag, time.Minute, &artifacts.Outcome{Err: artifact.ErrNotFound}, time.Hour, time.Minute},
		{"tag with a long interval", tag, 24 * time.Hour, found("a"), time.Hour, 24 * time.Hour},
		{
			"failed long ago, with a long interval", tag, 24 * time.Hour, &artifacts.Outcome{Err: artifact.ErrUnavailable},
			8 * time.Hour, 10 * time.Minute,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := namespaced()
			o.Spec.Image = test.image
			if test.interval > 0 {
				o.Spec.UpdatePolicy = &v1alpha1.CacheUpdatePolicy{Interval: &metav1.Duration{Duration: test.interval}}
			}
			record(o, test.out, start)
			if got := artifacts.Next(kind(), o.Head(), nil, start.Add(test.after)); got != test.want {
				t.Errorf("look again in %s, want %s", got, test.want)
			}
		})
	}
}

func TestChanged(t *testing.T) {
	list := func(texts ...string) (out []v1alpha1.NodeCache) {
		for _, text := range texts {
			name, claims, _ := strings.Cut(text, "=")
			out = append(out, v1alpha1.NodeCache{Name: name, Claims: int32(len(claims))})
		}
		return out
	}
	for _, test := range []struct {
		before, now []v1alpha1.NodeCache
		want        string
	}{
		{nil, nil, ""},
		{nil, list("a", "b"), "/a /b"},
		{list("a", "b"), list("b", "a"), ""},
		{list("a", "b"), list("a=1", "b"), "/a"},
		{list("a", "b"), list("b"), "/a"},
	} {
		var q later
		before, now := &v1alpha1.AcceleratorNode{}, &v1alpha1.AcceleratorNode{}
		before.Status.KernelCaches, now.Status.KernelCaches = test.before, test.now
		(&resolver{}).onNodes(pairs.OfCluster).Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: now}, &q)
		slices.Sort(q.keys)
		if strings.Join(q.keys, " ") != test.want {
			t.Errorf("%v to %v: %v, want %s", test.before, test.now, q.keys, test.want)
		}
	}
}

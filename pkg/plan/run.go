// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// Options are about how a plan is made.
type Options struct {
	// Timeout bounds the search on one node, as the scheduler does. DefaultTimeout holds where it is 0.
	Timeout time.Duration
	// Explain adds to the reason of a pod without a node, if it is set. It is called with the cluster as the pod found it.
	Explain func(Attempt) string
	// Alone plans a pod of a gang as if it were of none.
	Alone bool
	// Only is the name of the one node that is tried. Empty: all are.
	Only string
	// Parallel is how many nodes are tried at once, as the scheduler does. Zero means one.
	Parallel int
}

// DefaultTimeout is the scheduler's.
const DefaultTimeout = 10 * time.Second

// Attempt is a pod that found no node.
type Attempt struct {
	Cluster *Cluster
	Pod     *corev1.Pod
	// Claims are those of the pod, nil if they are not all there.
	Claims []PodClaim
	// Refused are the reasons of the scheduler by node.
	Refused map[string][]string
	// Words are what the scheduler says of the pod, Meaning what is known of that without a look at devices, often nothing.
	Words, Meaning string
}

// Run gives nodes and devices to pods, one after the other, each with what those before it left. Pods that have a node already, have ended,
// or are being deleted are left out. The cluster is changed: it has the allocations and the pods of the plan. When the context ends, the
// pods that are left are Stopped without a node, and its cause is their reason. The error is that of a cluster that no plan can be made
// for.
func Run(ctx context.Context, c *Cluster, pods []*corev1.Pod, options Options) (Report, error) {
	report := Report{Pods: map[string]PodResult{}, Problems: slices.Clone(c.problems)}
	if options.Timeout == 0 {
		options.Timeout = DefaultTimeout
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || podspec.Ended(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if _, known := report.Pods[pod.Namespace+"/"+pod.Name]; known {
			continue // it came with its gang
		}
		if g := gangOf(c, pod, pods, options); g != nil {
			report.addGang(g, g.results(ctx))
			continue
		}
		r := newRun(c, pod, options)
		report.add(pod, r.noted(r.result(ctx)))
	}
	report.Free = c.Free()
	sortProblems(report.Problems)
	return report, nil
}

// newRun begins the scheduling of a pod.
func newRun(c *Cluster, pod *corev1.Pod, options Options) *run {
	return &run{
		Cluster: c, options: options, pod: pod, wanted: c.wantedOf(pod),
		requests: map[string]request{}, refused: map[string][]string{}, unjudged: unjudged(c, pod),
	}
}

// unjudged returns what of a pod is not looked at, which may keep it from nodes that fit.
func unjudged(c *Cluster, pod *corev1.Pod) []string {
	fields := podspec.Unjudged(&pod.Spec)
	group := groupOf(c, pod)
	if group == nil {
		return fields
	}
	fields = slices.DeleteFunc(fields, func(field string) bool { return field == "spec.schedulingGroup" })
	if group.Spec.SchedulingConstraints != nil {
		fields = append(fields, "spec.schedulingConstraints of PodGroup "+group.Name)
	}
	if group.Spec.ParentCompositePodGroupName != nil {
		fields = append(fields, "spec.parentCompositePodGroupName of PodGroup "+group.Name)
	}
	if len(group.Spec.ResourceClaims) > 0 && c.Gates.On(gates.WorkloadResourceClaims) {
		fields = append(fields, "spec.resourceClaims of PodGroup "+group.Name)
	}
	return fields
}

// noted adds to a result what was not looked at.
func (r *run) noted(result PodResult) PodResult {
	result.Unjudged = r.unjudged
	if result.Node == nil {
		result.Incomplete = r.incomplete
	}
	return result
}

// add adds the result of a pod.
func (r *Report) add(pod *corev1.Pod, result PodResult) {
	r.Pods[pod.Namespace+"/"+pod.Name] = result
	for _, field := range result.Unjudged {
		r.Problems = append(r.Problems, Problem{Object: titleOf("Pod", pod.Namespace, pod.Name), Message: NotLookedAt(field)})
	}
}

// addGang adds the results of a gang.
func (r *Report) addGang(g *gang, results map[*corev1.Pod]PodResult) {
	beyond := false
	for pod, result := range results {
		r.add(pod, result)
		beyond = beyond || result.BeyondScheduler
	}
	if beyond {
		r.Problems = append(r.Problems, Problem{Object: titleOf("PodGroup", g.group.Namespace, g.group.Name), Message: BeyondScheduler})
	}
}

// NotLookedAt says what it means that something is unjudged.
func NotLookedAt(field string) string {
	return field + " is not looked at: the scheduler may choose another node or none"
}

// antiAffinityUnknown is unjudged where a pod has an anti-affinity to pods of namespaces that are not in the snapshot.
const antiAffinityUnknown = "an anti-affinity to pods of namespaces whose labels are not known"

// takesOfNode is unjudged where devices take CPU, memory or the like of their node.
const takesOfNode = "spec.devices[].nodeAllocatableResources of ResourceSlices"

// Pending returns the pods of a cluster that wait for a node.
func (c *Cluster) Pending() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(c.Pods), func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" || podspec.Ended(pod) || pod.DeletionTimestamp != nil
	})
}

// run is the scheduling of one pod.
type run struct {
	*Cluster
	options Options
	pod     *corev1.Pod
	wanted  wanted
	claims  []PodClaim
	// requests are by the extended resources that devices stand for on a node.
	asking   sync.Mutex
	requests map[string]request
	refused  map[string][]string
	// unjudged is what may keep the pod from nodes that fit, incomplete the pools by which others may fit.
	unjudged, incomplete []string
}

// result gives the pod a node, or says why it has none.
func (r *run) result(ctx context.Context) PodResult {
	fits, scores, err := r.filter(ctx)
	if err != nil || len(fits) == 0 {
		return r.without(err)
	}
	best := r.best(fits, scores)
	devices, err := r.bind(ctx, best)
	if err != nil {
		return r.without(err)
	}
	result := PodResult{Node: &r.Nodes[best].Name, Fits: make([]string, len(fits)), Devices: devices}
	for i, node := range fits {
		result.Fits[i] = r.Nodes[node].Name
		if score := scores[i]; score > 0 {
			if result.Scores == nil {
				result.Scores = map[string]int64{}
			}
			result.Scores[r.Nodes[node].Name] = score
		}
	}
	return result
}

// without is the result of a pod that has no node.
func (r *run) without(err error) PodResult {
	refused, ok := errors.AsType[*Refusal](err)
	return PodResult{Fits: []string{}, Devices: map[string][]string{}, Reason: r.reason(err), Stopped: ok && refused.Stopped}
}

// filter returns the nodes that fit, by their index, and their scores. The error is what keeps the pod from every node.
func (r *run) filter(ctx context.Context) (fits []int, scores []int64, err error) {
	if len(r.pod.Spec.SchedulingGates) > 0 {
		return nil, nil, refusal("Scheduling is blocked due to non-empty scheduling gates", "gate %s is to be removed first",
			r.pod.Spec.SchedulingGates[0].Name)
	}
	r.claims, err = r.PodClaims(r.pod)
	r.createClaims()
	if err != nil {
		return nil, nil, err
	}
	if err := cmp.Or(r.checkClasses(), r.boundSelectors()); err != nil {
		return nil, nil, err
	}
	tried := r.tryAt
	if r.options.Parallel > 1 {
		tries := r.tryNodes(ctx)
		tried = func(_ context.Context, i int) nodeTry { return tries[i] }
	}
	for i, node := range r.Nodes {
		if r.options.Only != "" && node.Name != r.options.Only {
			continue
		}
		t := tried(ctx, i)
		if t.lacks {
			r.noteIncomplete(i)
		}
		switch {
		case t.err != nil:
			return nil, nil, t.err
		case len(t.reasons) > 0:
			r.refused[node.Name] = t.reasons
		default:
			fits, scores = append(fits, i), append(scores, t.score)
			r.noteUnjudged(i)
		}
	}
	return fits, scores, nil
}

// noteUnjudged notes what may keep the pod from a node that fits, and is not looked at.
func (r *run) noteUnjudged(i int) {
	note := func(what string) {
		if !slices.Contains(r.unjudged, what) {
			r.unjudged = append(r.unjudged, what)
		}
	}
	if r.wanted.repulsionOn(r.Nodes[i]).unknown {
		note(antiAffinityUnknown)
	}
	if !r.Gates.On(gates.NodeAllocatableResources) {
		return
	}
	if asks := len(r.claims)+len(r.delegated(r.wanted.extended, r.Nodes[i])) > 0; asks && r.views[i].takesOfNode() {
		note(takesOfNode)
	}
}

// nodeTry is what came of a node: reasons against it, or a score.
type nodeTry struct {
	reasons []string
	score   int64
	err     error
	// lacks says that the reasons are about devices.
	lacks bool
}

// tryNodes tries the nodes, several at once. After an error no further node is tried; those before it all were.
func (r *run) tryNodes(ctx context.Context) []nodeTry {
	out := make([]nodeTry, len(r.Nodes))
	var next atomic.Int64
	var failed atomic.Bool
	var workers sync.WaitGroup
	for range r.options.Parallel {
		workers.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(out) {
					return
				}
				if r.options.Only != "" && r.Nodes[i].Name != r.options.Only {
					continue
				}
				out[i] = r.tryAt(ctx, i)
				if out[i].err != nil {
					failed.Store(true)
				}
			}
		})
	}
	workers.Wait()
	return out
}

// tryAt tries one node, by its index.
func (r *run) tryAt(ctx context.Context, i int) (t nodeTry) {
	if t.reasons, t.err = r.refusals(&r.wanted, i); t.err != nil || len(t.reasons) > 0 {
		return t
	}
	t.reasons, t.score, t.err = r.tryDevices(ctx, i)
	t.lacks = len(t.reasons) > 0
	return t
}

// noteIncomplete notes the pools of a node of which slices are missing.
func (r *run) noteIncomplete(i int) {
	for _, p := range r.views[i].pools {
		name := p.slices[0].Spec.Driver + "/" + p.slices[0].Spec.Pool.Name
		if p.incomplete() && !slices.Contains(r.incomplete, name) {
			r.incomplete = append(r.incomplete, name)
		}
	}
	slices.Sort(r.incomplete)
}

// best returns the node with the highest score, the first by name of those with the same. The scheduler adds the scores of other plugins.
func (r *run) best(fits []int, scores []int64) int {
	best := 0
	for i := range fits {
		if scores[i] > scores[best] {
			best = i
		}
	}
	return fits[best]
}

// checkClasses looks for the classes of claims that are to be allocated. One that is missing keeps the pod from every node, even where it
// is the last of several alternatives.
func (r *run) checkClasses() error {
	for _, claim := range r.unallocated() {
		for i := range claim.Spec.Devices.Requests {
			if err := r.checkClassesOf(claim, &claim.Spec.Devices.Requests[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) checkClassesOf(claim *resourceapi.ResourceClaim, request *resourceapi.DeviceRequest) error {
	if request.Exactly == nil && len(request.FirstAvailable) == 0 {
		return refusal(fmt.Sprintf("resource claim %s/%s, request %s: unknown request type", claim.Namespace, claim.Name, request.Name),
			"want exactly or firstAvailable in the request; the API server refuses a claim without")
	}
	for name, class := range classesOf(*request) {
		if r.Classes[class] == nil {
			return refusal(fmt.Sprintf("request %s: device class %s does not exist", name, class),
				"the pod waits until DeviceClass %s is created", class)
		}
	}
	return nil
}

// boundSelectors bounds the memory that compiled selectors take, of this pod and of those before it.
func (r *run) boundSelectors() error {
	claims := r.unallocated()
	if judge.IsTooLong(claims) {
		return stopped(judge.TooLong, "it is not known whether a node fits")
	}
	if !r.kept.Add(claims, r.Classes) {
		r.forgetCompiled()
	}
	return nil
}

// classesOf yields the classes of a request by the name of the request, or of each alternative.
func classesOf(request resourceapi.DeviceRequest) func(yield func(name, class string) bool) {
	return func(yield func(name, class string) bool) {
		if request.Exactly != nil {
			yield(request.Name, request.Exactly.DeviceClassName)
			return
		}
		for _, sub := range request.FirstAvailable {
			if !yield(resourceclaim.CreateSubRequestRef(request.Name, sub.Name), sub.DeviceClassName) {
				return
			}
		}
	}
}

// unallocated returns the claims of the pod that the allocator is asked for.
func (r *run) unallocated() []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for _, p := range r.claims {
		if p.Claim.Status.Allocation == nil {
			out = append(out, p.Claim)
		}
	}
	return out
}

// reason puts together what the scheduler says and what it means.
func (r *run) reason(err error) string {
	words, meaning := r.words(err)
	if r.options.Explain != nil {
		attempt := Attempt{Cluster: r.Cluster, Pod: r.pod, Claims: r.claims, Refused: r.refused, Words: words, Meaning: meaning}
		if more := r.options.Explain(attempt); more != "" {
			meaning = strings.TrimPrefix(meaning+"; "+more, "; ")
		}
	}
	if meaning == "" {
		return words
	}
	return words + " " + strings.ToUpper(meaning[:1]) + meaning[1:] + "."
}

// words says what the scheduler says, in its form, and what that means where no node was tried.
func (r *run) words(err error) (words, meaning string) {
	if refused := (*Refusal)(nil); errors.As(err, &refused) {
		return strings.TrimSuffix(refused.Words, ".") + ".", refused.Meaning
	}
	if err != nil {
		return strings.TrimSuffix(err.Error(), ".") + ".", ""
	}
	counts := map[string]int{}
	for _, reasons := range r.refused {
		for _, reason := range reasons {
			counts[reason]++
		}
	}
	var parts []string
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.TrimSuffix(fmt.Sprintf("0/%d nodes are available: %s", len(r.Nodes), strings.Join(parts, ", ")), ": ") + ".", ""
}

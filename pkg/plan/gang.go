// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// gang is a PodGroup of which a number of pods get nodes together, or none does (KEP-4671). The scheduler takes its pods one after the
// other, each with its first choice, and does not go back.
type gang struct {
	*Cluster
	options Options
	group   *schedulingapi.PodGroup
	// need is how many of the members have to get a node: minCount without the pods that have one.
	need int
	// members are the pods that wait, in the order of the snapshot, asked those that a plan is wanted for.
	members, asked []*corev1.Pod
}

// BeyondScheduler says what it means that a gang gets nodes only by going back.
const BeyondScheduler = "the scheduler does not find the nodes and devices of this plan: it gives each pod its first choice and does not " +
	"go back, so the group waits; ask for what the plan gives, without alternatives"

// gangOf returns the gang that a pod belongs to, nil if it belongs to none or to a PodGroup that is not in the snapshot.
func gangOf(c *Cluster, pod *corev1.Pod, asked []*corev1.Pod, options Options) *gang {
	group := groupOf(c, pod)
	if options.Alone || group == nil || group.Spec.SchedulingPolicy.Gang == nil {
		return nil
	}
	g := &gang{Cluster: c, options: options, asked: asked, group: group, need: int(group.Spec.SchedulingPolicy.Gang.MinCount)}
	for _, p := range c.Pods {
		switch {
		case groupOf(c, p) != group || podspec.Ended(p) || p.DeletionTimestamp != nil:
		case p.Spec.NodeName != "":
			g.need--
		default:
			g.members = append(g.members, p)
		}
	}
	if !slices.Contains(g.members, pod) {
		g.members = append(g.members, pod)
	}
	return g
}

// groupOf returns the PodGroup of a pod, nil if it has none or the snapshot does not have it.
func groupOf(c *Cluster, pod *corev1.Pod) *schedulingapi.PodGroup {
	if pod.Spec.SchedulingGroup == nil || pod.Spec.SchedulingGroup.PodGroupName == nil {
		return nil
	}
	return c.PodGroups[types.NamespacedName{Namespace: pod.Namespace, Name: *pod.Spec.SchedulingGroup.PodGroupName}]
}

// results gives nodes to as many pods of the gang as it needs, or to none.
func (g *gang) results(ctx context.Context) map[*corev1.Pod]PodResult {
	for _, pod := range g.members {
		r := g.runOf(pod)
		r.claims, _ = r.PodClaims(pod) // a pod that lacks one gets no node in its turn, which says why
		r.createClaims()
	}
	back, keep := g.journal.trial()
	out, placed := g.inTurn(ctx)
	if placed >= g.need {
		keep()
		return g.named(out)
	}
	back()
	s, ended := g.goBack(ctx)
	back()
	if s != nil {
		out = s.settled(ctx)
		keep()
		return g.named(out)
	}
	keep()
	for pod, result := range out {
		out[pod] = g.without(result, placed, ended)
	}
	return g.named(out)
}

// named adds the name of the gang to results.
func (g *gang) named(results map[*corev1.Pod]PodResult) map[*corev1.Pod]PodResult {
	for pod, result := range results {
		result.PodGroup = g.group.Name
		results[pod] = result
	}
	return results
}

// runOf begins the scheduling of a member. Only what is asked for is explained.
func (g *gang) runOf(pod *corev1.Pod) *run {
	options := g.options
	if !slices.Contains(g.asked, pod) {
		options.Explain = nil
	}
	return newRun(g.Cluster, pod, options)
}

// inTurn gives nodes to the members one after the other, as the scheduler does.
func (g *gang) inTurn(ctx context.Context) (out map[*corev1.Pod]PodResult, placed int) {
	out = map[*corev1.Pod]PodResult{}
	for _, pod := range g.members {
		r := g.runOf(pod)
		out[pod] = r.noted(r.result(ctx))
		if out[pod].Node != nil {
			placed++
		}
	}
	return out, placed
}

// without is the result of a member of a gang that gets no nodes.
func (g *gang) without(alone PodResult, placed int, ended string) PodResult {
	what := fmt.Sprintf("%d of %d do.", placed, len(g.members))
	if len(g.members) < g.need {
		what = fmt.Sprintf("only %d wait for one: create the others.", len(g.members))
	}
	reason := fmt.Sprintf("PodGroup %s wants %d more of its pods to get nodes together, and %s", g.group.Name, g.need, what)
	if alone.Node == nil {
		reason = alone.Reason + " " + reason
	}
	if ended != "" {
		reason += " " + ended
	}
	alone.Node, alone.Devices, alone.Reason = nil, map[string][]string{}, reason
	alone.Stopped = alone.Stopped || ended != ""
	return alone
}

// maxTries is how often the allocator is asked for pods of one gang together.
const maxTries = 2000

// errTries ends a search.
var errTries = errors.New("too many tries")

// goBack looks for nodes that do if a pod gets another than its first choice. found is nil if there are none; ended says then why the
// search may have missed some, "" if it has not. The cluster is left as the search left it.
func (g *gang) goBack(ctx context.Context) (found *search, ended string) {
	if len(g.members) < g.need {
		return nil, ""
	}
	limited, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	s := &search{gang: g, at: make([]int, len(g.members))}
	ok, err := s.prepare(limited)
	if ok && err == nil {
		ok, err = s.from(limited, 0, 0)
	}
	switch {
	case ok && err == nil:
		return s, ""
	case ctx.Err() != nil:
		return nil, fmt.Sprintf("The plan was stopped: %v.", context.Cause(ctx))
	case errors.Is(err, errTries):
		return nil, fmt.Sprintf("The search for other choices of its pods was ended after %d tries.", maxTries)
	case err != nil:
		return nil, fmt.Sprintf("The search for other choices of its pods was ended after %s.", g.options.Timeout)
	case s.starved:
		return nil, "Not every order was tried of devices that several nodes reach."
	}
	return nil, ""
}

// search goes through the nodes for the members of a gang.
type search struct {
	*gang
	// candidates are the nodes that each member fits alone, by their index.
	candidates [][]int
	// same is the member before that asks for the same, -1 if none does. Of two such the second gets no earlier node.
	same []int
	// at is the node of each member so far; one that gets none has the index behind the last node.
	at []int
	// runs are those of the members that have a node so far.
	runs map[int]*run
	// granted are the devices of the placement that was found.
	granted []grant
	tries   int
	// starved is true if nodes had the devices for their members one by one, and not together.
	starved bool
}

// grant is what a claim gets.
type grant struct {
	claim  *resourceapi.ResourceClaim
	result resourceapi.AllocationResult
}

// prepare finds where each member fits alone. It returns false if too few fit anywhere.
func (s *search) prepare(ctx context.Context) (bool, error) {
	s.runs = map[int]*run{}
	first := map[string]int{}
	fitting := 0
	for i, pod := range s.members {
		s.same = append(s.same, -1)
		r := s.runOf(pod)
		fits, _, err := r.filter(ctx)
		if key, err := r.asks(); err == nil {
			if before, known := first[key]; known {
				s.same[i] = before
			}
			first[key] = i
		}
		if refused := (*Refusal)(nil); errors.As(err, &refused) && refused.Stopped {
			return false, err
		}
		s.candidates = append(s.candidates, fits)
		if len(fits) > 0 {
			fitting++
		}
	}
	return fitting >= s.need, nil
}

// asks is equal for two pods that ask for the same. Pods of one template have claims that differ if the template of the claims was changed
// between them, or if some have devices already.
func (r *run) asks() (string, error) {
	of := []any{r.pod.Spec, r.pod.Labels}
	for _, p := range r.claims {
		of = append(of, p.Claim.Spec, p.Claim.Status.Allocation)
	}
	key, err := json.Marshal(of)
	return string(key), err
}

// from gives nodes to the members from the i-th on, of which as many before it have one as placed says.
func (s *search) from(ctx context.Context, i, placed int) (bool, error) {
	if placed+len(s.members)-i < s.need {
		return false, nil
	}
	if i == len(s.members) {
		return s.together(ctx)
	}
	for _, node := range s.candidates[i] {
		if before := s.same[i]; before >= 0 && node < s.at[before] {
			continue
		}
		back, _ := s.journal.trial()
		s.at[i] = node
		fits, err := s.fits(ctx, i)
		if fits && err == nil {
			fits, err = s.from(ctx, i+1, placed+1)
		}
		if fits || err != nil {
			return fits, err
		}
		delete(s.runs, i)
		back()
	}
	s.at[i] = len(s.Nodes)
	return s.from(ctx, i+1, placed)
}

// fits says whether a member fits its node beside those that have one, and puts it there.
func (s *search) fits(ctx context.Context, i int) (bool, error) {
	node, pod := s.at[i], s.members[i]
	r := s.runOf(pod)
	var err error
	if r.claims, err = r.PodClaims(pod); err != nil {
		return false, err
	}
	if reasons, err := s.refusals(&r.wanted, node); err != nil || len(reasons) > 0 {
		return false, err
	}
	if s.sharesElsewhere(r, node) {
		return false, nil
	}
	s.runs[i] = r
	claims, err := s.claimsAt(node)
	if err != nil {
		return false, err
	}
	if results, err := s.try(ctx, node, claims); err != nil || len(results) != len(claims) {
		return false, err
	}
	r.noteUnjudged(node)
	settle(s.Cluster, pod, node)
	return true, nil
}

// sharesElsewhere says whether a pod shares a claim without devices with a member on another node, where its devices would be.
func (s *search) sharesElsewhere(r *run, node int) bool {
	for i, other := range s.runs {
		if s.at[i] == node {
			continue
		}
		for _, claim := range r.unallocated() {
			if slices.Contains(other.unallocated(), claim) {
				return true
			}
		}
	}
	return false
}

// claimsAt returns the claims without devices of all members on a node, each once.
func (s *search) claimsAt(node int) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	for _, i := range slices.Sorted(maps.Keys(s.runs)) {
		if s.at[i] != node {
			continue
		}
		asked, err := s.runs[i].ask(node)
		if err != nil {
			return nil, err
		}
		for _, claim := range asked.claims {
			if !slices.Contains(out, claim) {
				out = append(out, claim)
			}
		}
	}
	return out, nil
}

// try asks the allocator for claims of several pods on one node, which it gives devices in every order.
func (s *search) try(ctx context.Context, node int, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	if s.tries++; s.tries > maxTries {
		return nil, errTries
	}
	results, err := s.allocate(ctx, node, claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, nil
	}
	return results, err
}

// together allocates the claims of all nodes. It fails where nodes reach the same devices.
func (s *search) together(ctx context.Context) (bool, error) {
	back, _ := s.journal.trial()
	defer back()
	s.granted = nil
	for node := range s.Nodes {
		claims, err := s.claimsAt(node)
		if err != nil {
			return false, err
		}
		results, err := s.try(ctx, node, claims)
		if err != nil {
			return false, err
		}
		if len(results) != len(claims) {
			s.starved = true
			return false, nil
		}
		for i, claim := range claims {
			s.granted = append(s.granted, grant{claim, *results[i].DeepCopy()})
			take(s.Cluster, claim, &results[i])
		}
	}
	return true, nil
}

// settled gives the members what was found.
func (s *search) settled(ctx context.Context) map[*corev1.Pod]PodResult {
	for i := range s.granted {
		take(s.Cluster, s.granted[i].claim, &s.granted[i].result)
	}
	out := map[*corev1.Pod]PodResult{}
	for i, pod := range s.members {
		r := s.runs[i]
		if r == nil {
			r = s.runOf(pod)
			out[pod] = r.noted(r.result(ctx))
			continue
		}
		devices, err := r.bind(ctx, s.at[i])
		if err != nil {
			out[pod] = r.noted(r.without(err))
			continue
		}
		name := s.Nodes[s.at[i]].Name
		out[pod] = r.noted(PodResult{Node: &name, Fits: []string{name}, Devices: devices, BeyondScheduler: true})
	}
	return out
}

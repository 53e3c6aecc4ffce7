// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/seed"
)

// cards are the cards of a node, each of which is one whole device or two halves, and how many pods it has room for.
type cards struct{ number, room int }

// asks is what a pod of a gang asks for: "whole" and "half" in the order in which it likes them.
type asks []string

// gangCase is a cluster, and a gang that waits.
type gangCase struct {
	nodes []cards
	pods  []asks
	min   int
}

// snapshot is the cluster as YAML.
func (g gangCase) snapshot(t *testing.T) plan.Snapshot {
	t.Helper()
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, "---\n"+format+"\n", args...) }
	for i, node := range g.nodes {
		add("apiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus: {allocatable: {pods: %d}}", i, node.room)
		var counters, devices []string
		for card := range node.number {
			use := func(name, kind string, halves int) {
				devices = append(devices, fmt.Sprintf("{name: %s-%d, attributes: {kind: {string: %s}}, "+
					"consumesCounters: [{counterSet: card-%d, counters: {halves: {value: \"%d\"}}}]}", name, card, kind, card, halves))
			}
			counters = append(counters, fmt.Sprintf("{name: card-%d, counters: {halves: {value: \"2\"}}}", card))
			use("whole", "whole", 2)
			use("left", "half", 1)
			use("right", "half", 1)
		}
		slice := "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: node-%d-%s}\n" +
			"spec: {driver: fettle.dev, nodeName: node-%d, pool: {name: node-%d, generation: 1, resourceSliceCount: 2}, %s: [%s]}"
		if node.number > 0 {
			add(slice, i, "counters", i, i, "sharedCounters", strings.Join(counters, ", "))
			add(slice, i, "devices", i, i, "devices", strings.Join(devices, ", "))
		}
	}
	add("apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: any}\nspec: {}")
	add("apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: gang}\n"+
		"spec: {schedulingPolicy: {gang: {minCount: %d}}}", g.min)
	templates := map[string]bool{}
	for i, pod := range g.pods {
		var alternatives []string
		for _, kind := range pod {
			alternatives = append(alternatives, fmt.Sprintf("{name: %s, deviceClassName: any, selectors: [{cel: {expression: "+
				"'device.attributes[\"fettle.dev\"].kind == \"%s\"'}}]}", kind, kind))
		}
		template := "of-" + strings.Join(pod, "-") // pods that ask for the same are the same but for their names
		if !templates[template] {
			add("apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: %s}\nspec: {spec: {devices: {requests: "+
				"[{name: gpu, firstAvailable: [%s]}]}}}", template, strings.Join(alternatives, ", "))
		}
		templates[template] = true
		add("apiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d}\n"+
			"spec: {schedulingGroup: {podGroupName: gang}, containers: [{name: main, image: x}], "+
			"resourceClaims: [{name: gpu, resourceClaimTemplateName: %s}]}", i, template)
	}
	s, problems, err := plan.Read([]plan.File{{Name: "cluster.yaml", Data: []byte(b.String())}}, "default")
	check.Must(t, err)
	if len(problems) > 0 {
		t.Fatalf("the cluster is not as it is meant: %v", problems)
	}
	return s
}

// most is how many pods of the gang can have devices together, found by every choice of every pod.
func (g gangCase) most() int {
	var free [][]int // halves that are left, by node and card
	room := make([]int, len(g.nodes))
	for i, node := range g.nodes {
		left := make([]int, node.number)
		for card := range left {
			left[card] = 2
		}
		free, room[i] = append(free, left), node.room
	}
	var from func(pod int) int
	from = func(pod int) int {
		if pod == len(g.pods) {
			return 0
		}
		best := from(pod + 1)
		for node := range free {
			for card := range free[node] {
				for _, kind := range g.pods[pod] {
					takes := map[string]int{"whole": 2, "half": 1}[kind]
					if free[node][card] < takes || room[node] == 0 {
						continue
					}
					free[node][card] -= takes
					room[node]--
					best = max(best, 1+from(pod+1))
					room[node]++
					free[node][card] += takes
				}
			}
		}
		return best
	}
	return from(0)
}

func randomGang(random *rand.Rand) gangCase {
	likes := []asks{{"whole"}, {"half"}, {"whole", "half"}, {"half", "whole"}}
	var g gangCase
	for range 1 + random.IntN(3) {
		g.nodes = append(g.nodes, cards{number: random.IntN(3), room: 1 + random.IntN(3)})
	}
	for range 2 + random.IntN(3) {
		g.pods = append(g.pods, likes[random.IntN(len(likes))])
	}
	g.min = len(g.pods) - random.IntN(2)
	return g
}

// TestGangs: a gang gets nodes exactly where every choice of every pod finds some, what it gets is free, and a gang that gets none leaves
// the cluster as it was.
func TestGangs(t *testing.T) {
	random := seed.New(t)
	placed, beyond, none := 0, 0, 0
	enough := func() bool { return placed >= 50 && beyond >= 10 && none >= 50 } // of each, or the test says little
	const least, most = 500, 5000
	for n := 0; n < least || n < most && !enough(); n++ {
		g := randomGang(random)
		c, _, err := plan.NewCluster(g.snapshot(t))
		check.Must(t, err)
		free := c.Free()
		report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
		check.Must(t, err)
		with, far := 0, false
		for _, pod := range report.Pods {
			if pod.Node != nil {
				with++
			}
			far = far || pod.BeyondScheduler
		}
		switch can := g.most() >= g.min; {
		case can != (with >= g.min):
			t.Fatalf("%+v: %d of %d pods get nodes, and %d can have them: %+v", g, with, g.min, g.most(), report)
		case can && far:
			beyond++
		case can:
			placed++
		default:
			none++
			if with > 0 || cmp.Diff(free, c.Free()) != "" || len(c.State().AllocatedDevices) > 0 {
				t.Fatalf("%+v: %d pods without their gang, free is %v", g, with, c.Free())
			}
		}
		checkGiven(t, g, c)
	}
	if !enough() {
		t.Errorf("%d gangs got nodes in turn, %d by going back, %d none: the test says little", placed, beyond, none)
	}
}

// checkGiven fails if a card has more than it is, or a node more pods than it has room for.
func checkGiven(t *testing.T, g gangCase, c *plan.Cluster) {
	t.Helper()
	used, room := map[string]int{}, map[string]int{}
	for _, claim := range c.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			kind, card, _ := strings.Cut(result.Device, "-")
			used[result.Pool+"/"+card] += map[string]int{"whole": 2, "left": 1, "right": 1}[kind]
		}
	}
	for _, pod := range c.Pods {
		room[pod.Spec.NodeName]++
	}
	for card, halves := range used {
		if halves > 2 {
			t.Errorf("%+v: %d halves of %s", g, halves, card)
		}
	}
	for i, node := range g.nodes {
		if n := room[fmt.Sprintf("node-%d", i)]; n > node.room {
			t.Errorf("%+v: %d pods on node-%d", g, n, i)
		}
	}
}

// topology is a constraint that no plan looks at.
func topology() *schedulingapi.PodGroupSchedulingConstraints {
	return &schedulingapi.PodGroupSchedulingConstraints{Topology: []schedulingapi.TopologyConstraint{{Key: "rack"}}}
}

// TestGangWords: what a plan says of a gang: that the scheduler does not find what the plan gives, that too few of its pods fit, wait or
// are there, and what is not looked at.
func TestGangWords(t *testing.T) {
	both := asks{"whole", "half"}
	for name, test := range map[string]struct {
		gang   gangCase
		change func(*plan.Snapshot)
		// nodes are those of the pods, reasons what is said of pod-0.
		nodes    []string
		reason   string
		problems []string
	}{
		"one card, and each would rather have the whole": {
			gang: gangCase{[]cards{{1, 2}}, []asks{both, both}, 2}, nodes: []string{"node-0", "node-0"},
			problems: []string{"PodGroup default/gang: the scheduler does not find the nodes and devices of this plan"},
		},
		"one waits alone beside the gang": {
			gang: gangCase{[]cards{{1, 2}}, []asks{both, both}, 1}, nodes: []string{"node-0", ""}, reason: "",
		},
		"too few devices": {
			gang: gangCase{[]cards{{1, 3}}, []asks{both, both, both}, 3}, nodes: []string{"", "", ""},
			reason: "PodGroup gang wants 3 more of its pods to get nodes together, and 1 of 3 do.",
		},
		"too few pods": {
			gang: gangCase{[]cards{{1, 3}}, []asks{both}, 2}, nodes: []string{""}, reason: "only 1 wait for one: create the others",
		},
		"one has a node": {
			gang: gangCase{[]cards{{1, 3}, {1, 3}}, []asks{{"whole"}, {"whole"}}, 2}, nodes: []string{"node-0"},
			change: func(s *plan.Snapshot) { s.Pods[1].Spec.NodeName = "node-1" },
		},
		"a topology": {
			gang:   gangCase{[]cards{{1, 3}}, []asks{{"half"}}, 1},
			change: func(s *plan.Snapshot) { s.PodGroups[0].Spec.SchedulingConstraints = topology() }, nodes: []string{"node-0"},
			problems: []string{"Pod default/pod-0: spec.schedulingConstraints of PodGroup gang is not looked at"},
		},
		"no such group": {
			gang: gangCase{[]cards{{1, 3}}, []asks{both, both}, 2}, nodes: []string{"node-0", ""},
			change: func(s *plan.Snapshot) { s.PodGroups = nil },
			problems: []string{
				"Pod default/pod-0: spec.schedulingGroup is not looked at", "Pod default/pod-1: spec.schedulingGroup is not looked at",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := test.gang.snapshot(t)
			if test.change != nil {
				test.change(&snapshot)
			}
			c, _, err := plan.NewCluster(snapshot)
			check.Must(t, err)
			report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
			check.Must(t, err)
			for i, want := range test.nodes {
				got := ""
				if node := report.Pods[fmt.Sprintf("default/pod-%d", i)].Node; node != nil {
					got = *node
				}
				if got != want {
					t.Errorf("pod-%d is on %q, want %q: %+v", i, got, want, report.Pods)
				}
			}
			if got := report.Pods["default/pod-0"].Reason; !strings.Contains(got, test.reason) {
				t.Errorf("reason %q, want %q", got, test.reason)
			}
			if len(report.Problems) != len(test.problems) {
				t.Fatalf("problems %+v, want %q", report.Problems, test.problems)
			}
			for i, want := range test.problems {
				if p := report.Problems[i]; !strings.HasPrefix(p.Object+": "+p.Message, want) {
					t.Errorf("problem %+v, want %q", p, want)
				}
			}
		})
	}
}

// TestGangOfUnlikeClaims: two pods that are the same but for their names have claims that differ, since they were made of the template
// before it was changed, or have devices already.
func TestGangOfUnlikeClaims(t *testing.T) {
	both, whole := asks{"whole", "half"}, asks{"whole"}
	// The last two have to share a card, which they do not in turn. The first two go to node-1 and node-0.
	g := gangCase{[]cards{{2, 3}, {1, 1}}, []asks{whole, whole, both, both}, 4}
	for name, change := range map[string]func(n int, c *resourceapi.ResourceClaim){
		"they have devices": func(n int, c *resourceapi.ResourceClaim) {
			c.Status.Allocation = objects.Allocation(objects.Result("gpu/whole", "fettle.dev", fmt.Sprintf("node-%d", n), "whole-0"))
			c.Status.Allocation.AllocationTimestamp = new(metav1.Now())
			c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprintf("node-%d", n)}},
				},
			}}}
		},
		"they ask for other devices": func(n int, c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests[0].FirstAvailable[0].Selectors = objects.Selectors(
				fmt.Sprintf(`device.attributes["fettle.dev"].?node.orValue(0) == %d`, n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := g.snapshot(t)
			for _, slice := range s.Slices {
				for i := range slice.Spec.Devices {
					if *slice.Spec.NodeName == "node-1" {
						slice.Spec.Devices[i].Attributes["node"] = resourceapi.DeviceAttribute{IntValue: new(int64(1))}
					}
				}
			}
			for i, pod := range s.Pods[:2] {
				claim := objects.Claim("default", "of-"+pod.Name)
				claim.Spec = *s.Templates[0].Spec.Spec.DeepCopy()
				pod.UID = types.UID(pod.Name)
				claim.OwnerReferences = []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)},
				}
				change(1-i, claim)
				pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim.Name}}
				s.Claims = append(s.Claims, claim)
			}
			c, _, err := plan.NewCluster(s)
			check.Must(t, err)
			report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
			check.Must(t, err)
			for i, want := range []string{"node-1", "node-0", "node-0", "node-0"} {
				pod := report.Pods[fmt.Sprintf("default/pod-%d", i)]
				if got := ptr.Deref(pod.Node, ""); got != want {
					t.Errorf("pod-%d is on %q, want %q: %s", i, got, want, pod.Reason)
				}
			}
		})
	}
}

// TestGangSearchEnds: a search with very many choices is ended, and says so. What is known by then stands.
func TestGangSearchEnds(t *testing.T) {
	g := gangCase{min: 12}
	for range 11 {
		g.nodes = append(g.nodes, cards{1, 1})
	}
	for i := range 12 {
		g.pods = append(g.pods, []asks{{"whole", "half"}, {"half", "whole"}}[i%2])
	}
	c, _, err := plan.NewCluster(g.snapshot(t))
	check.Must(t, err)
	report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
	check.Must(t, err)
	for name, pod := range report.Pods {
		if pod.Node != nil || !pod.Stopped || !strings.Contains(pod.Reason, "was ended after 2000 tries") {
			t.Errorf("%s: %+v", name, pod)
		}
	}
	if !slices.Equal(c.Free(), report.Free) || len(c.State().AllocatedDevices) > 0 {
		t.Errorf("the search left something: %v", c.State())
	}
}

// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/seed"
)

// largeSelectors are requests with so many bytes of CEL.
func largeSelectors(bytes int) []resourceapi.DeviceRequest {
	r := objects.Request("large", "other")
	long := "true || '" + strings.Repeat("x", bytes) + "' == ''"
	r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: long}}}
	return []resourceapi.DeviceRequest{r}
}

// largeOwner is a controller whose name is as long as the API server takes it.
func largeOwner() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: strings.Repeat("o", 1<<20), UID: "o", Controller: new(true)}}
}

// TestLargeObjectsOfATenant: a tenant makes objects that are too large for the controller's memory. Pods of others are explained as without
// them, also where the tenant holds what they wait for.
func TestLargeObjectsOfATenant(t *testing.T) {
	meta := func(namespace string, i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("large-%d", i), UID: "x"}
	}
	annotated := func(i int) client.Object {
		o := &resourceapi.ResourceClaimTemplate{ObjectMeta: meta("mallory", i)}
		o.Annotations = map[string]string{"a": strings.Repeat("a", 250_000)}
		return o
	}
	configured := func(i int) client.Object {
		o := &resourceapi.ResourceClaimTemplate{ObjectMeta: meta("mallory", i)}
		o.Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config("other.example", `"`+strings.Repeat("x", 1<<20)+`"`)}
		return o
	}
	template := func(i int) client.Object {
		o := &resourceapi.ResourceClaimTemplate{ObjectMeta: meta("mallory", i)}
		o.Spec.Spec.Devices.Requests = largeSelectors(1 << 20)
		return o
	}
	claims := func(namespace string) func(i int) client.Object {
		return func(i int) client.Object {
			o := &resourceapi.ResourceClaim{ObjectMeta: meta(namespace, i)}
			o.Spec.Devices.Requests = largeSelectors(1 << 20)
			return o
		}
	}
	pods := func(i int) client.Object {
		o := &corev1.Pod{ObjectMeta: meta("mallory", i)}
		o.Labels = map[string]string{"l": strings.Repeat("l", 1<<20)}
		o.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("none")}}
		return o
	}
	owned := func(i int) client.Object {
		o := &resourceapi.ResourceClaim{ObjectMeta: meta("mallory", i)}
		o.OwnerReferences = largeOwner()
		o.Status.Allocation = objects.Allocation(objects.Result("gpu", "other.example", "n2/gpu", fmt.Sprint("gpu-", i)))
		return o
	}
	want := newWorld(t, append(oneGPU(), (*world)(nil).pod("train", "gpu.fettle.dev")...)...).pass(t, time.Minute)
	if len(want) != 1 {
		t.Fatalf("without an attack: %q", want)
	}
	count := map[string]int{"templates with annotations": 52} // of 250 kB, others have a megabyte
	for name, make := range map[string]func(int) client.Object{
		"templates with annotations": annotated, "templates with configurations": configured, "templates": template,
		"claims": claims("mallory"), "claims of the holder's namespace": claims("secret-team"), "waiting pods": pods, "owners": owned,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(oneGPU(), (*world)(nil).pod("train", "gpu.fettle.dev")...)...)
			for i := range cmp.Or(count[name], 14) {
				check.Must(t, w.client.Create(t.Context(), make(i)))
			}
			if diff := gocmp.Diff(want, w.pass(t, time.Minute)); diff != "" {
				t.Errorf("explained (-without the attack +with it):\n%s", diff)
			}
		})
	}
}

// TestLargePodsOnANode: of pods that are too large what they take of the node stays known.
func TestLargePodsOnANode(t *testing.T) {
	for name, enlarge := range map[string]func(*corev1.Pod){
		"labels": func(p *corev1.Pod) { p.Labels = map[string]string{"l": strings.Repeat("l", 1<<20)} },
		"owner":  func(p *corev1.Pod) { p.OwnerReferences = largeOwner() },
		"claims": func(p *corev1.Pod) {
			name := strings.Repeat("c", 253)
			for i := range 3500 {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("c", i), ResourceClaimName: &name})
			}
		},
		"anti-affinities": func(p *corev1.Pod) {
			var terms []corev1.PodAffinityTerm
			for range 16 {
				selector := &metav1.LabelSelector{MatchLabels: map[string]string{strings.Repeat("k", 900): "v"}}
				terms = append(terms, corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector, NamespaceSelector: selector})
			}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		},
		"resources of which it takes nothing": func(p *corev1.Pod) {
			for i := range 2500 {
				name := corev1.ResourceName(fmt.Sprintf("%s.example.com/r-%d", strings.Repeat("r", 230), i))
				p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("0")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			cpu := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			count := cmp.Or(map[string]int{"anti-affinities": 330}[name], 20) // of 30 kB, others have half a megabyte and more
			for i := range count {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "mallory", Name: fmt.Sprint("p", i)}}
				pod.Spec.NodeName = "n1"
				pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: maps.Clone(cpu)}}}
				enlarge(pod)
				check.Must(t, w.client.Create(t.Context(), pod))
			}
			other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "z", Name: "p", Labels: map[string]string{"a": "b"}}}
			other.Spec.NodeName = "n1"
			check.Must(t, w.client.Create(t.Context(), other))
			pods, err := PodsOn(t.Context(), w.client, []string{"n1"})
			check.Must(t, err)
			bytes := 0
			for _, pod := range pods {
				bytes += pod.Size()
				if pod.Namespace == "mallory" && (pod.Spec.Containers[0].Resources.Requests.Cpu().Value() != 2 || pod.Spec.NodeName != "n1") {
					t.Errorf("%s: %+v", pod.Name, pod.Spec)
				}
				if pod.Namespace == "z" && pod.Labels["a"] != "b" {
					t.Errorf("the pod of another namespace is %+v", pod)
				}
			}
			if len(pods) != count+1 || bytes > podsBytes {
				t.Errorf("%d pods of %d bytes", len(pods), bytes)
			}
		})
	}
}

// TestTenants: what is counted never exceeds the limit, and the largest namespaces are reduced: none that is smaller than one which stays.
func TestTenants(t *testing.T) {
	random := seed.New(t)
	for range 200 {
		of, given := tenants{left: 1000}, map[string]int{}
		for range random.IntN(300) {
			namespace, size := fmt.Sprint(random.IntN(8)), random.IntN(100)
			if of.reduced[namespace] {
				continue
			}
			given[namespace] += size
			check.Must(t, of.count(namespace, size))
			sum := 0
			for _, size := range of.sizes {
				sum += size
			}
			if sum != 1000-of.left || of.left < 0 {
				t.Fatalf("%d bytes are counted, %d are left", sum, of.left)
			}
			for stays, size := range of.sizes {
				if of.reduced[stays] || size != given[stays] {
					t.Fatalf("namespace %s is reduced, or has %d bytes and not %d", stays, size, given[stays])
				}
			}
			if of.reduced[namespace] {
				for stays, size := range maps.All(of.sizes) {
					if size > given[namespace] && !of.reduced[stays] {
						t.Fatalf("%s with %d bytes is reduced, %s with %d is not", namespace, given[namespace], stays, size)
					}
				}
			}
		}
	}
}

// TestRepellingPodsOfATenant: pods of a tenant whose anti-affinity is too large cost the tenant's own pods the knowledge of it. Those of
// others stay known.
func TestRepellingPodsOfATenant(t *testing.T) {
	w := newWorld(t)
	zone := func(name, value string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "p", UID: "u"}}
		pod.Spec.NodeName = "n2"
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}},
			}},
		}}
		return pod
	}
	for i := range 20 {
		pod := zone("mallory", strings.Repeat("x", 1<<20))
		pod.Name = fmt.Sprint("p", i)
		check.Must(t, w.client.Create(t.Context(), pod))
	}
	check.Must(t, w.client.Create(t.Context(), zone("z", "a")))
	ofNode := zone("node", "a")
	ofNode.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = corev1.LabelHostname
	check.Must(t, w.client.Create(t.Context(), ofNode))
	pods, err := Repelling(t.Context(), large.Paged(t, w.client, reconciler.TenantPage), []string{"n1"})
	check.Must(t, err)
	got := map[string]int{}
	for _, pod := range pods {
		for _, namespace := range []string{"mallory", "z"} {
			asked := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": "a"}}}
			matches, known := podspec.AntiAffinity(pod)[0].Matches(asked, nil)
			got[fmt.Sprintf("%s keeps %s away: %t, known: %t", pod.Namespace, namespace, matches, known)]++
		}
	}
	want := map[string]int{
		"mallory keeps mallory away: false, known: false": 20, "mallory keeps z away: false, known: true": 20,
		"z keeps mallory away: false, known: true": 1, "z keeps z away: true, known: true": 1,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBarePodKeepsOthersAway: of a pod of a reduced namespace stays known what keeps other pods from its node.
func TestBarePodKeepsOthersAway(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "a"}}}
	pod.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
		}}},
	}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{HostPort: 80}}}}
	bare := barePod(pod)
	if len(podspec.Ports(bare)) != 1 || bare.Labels["app"] != "a" {
		t.Errorf("kept are ports %v and labels %v", podspec.Ports(bare), bare.Labels)
	}
	terms := podspec.AntiAffinity(bare)
	if len(terms) != 1 {
		t.Fatalf("%d terms, want 1", len(terms))
	}
	if matches, known := terms[0].Matches(&corev1.Pod{}, nil); !matches || !known {
		t.Errorf("any pod is kept away: %t, known: %t", matches, known)
	}
}

// TestBarePodTakesTheSame: a pod with many containers, a sidecar and overhead takes the same of its node as the one container that is kept.
func TestBarePodTakesTheSame(t *testing.T) {
	cpu := func(quantity string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "first", Resources: cpu("20"), Ports: []corev1.ContainerPort{{HostPort: 1}}},
		{
			Name: "sidecar", Resources: cpu("3"), RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
			Ports: []corev1.ContainerPort{{HostPort: 2}},
		},
	}
	for i := range 10_000 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("container-%d", i), Resources: cpu("1m"), Ports: []corev1.ContainerPort{{Name: "p", ContainerPort: 8080}},
		})
	}
	bare := barePod(pod)
	of := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	if diff := gocmp.Diff(resourcehelper.PodRequests(pod, of), resourcehelper.PodRequests(bare, of)); diff != "" {
		t.Errorf("requests (-pod +bare):\n%s", diff)
	}
	if diff := gocmp.Diff(resourcehelper.PodLimits(pod, of), resourcehelper.PodLimits(bare, of)); diff != "" {
		t.Errorf("limits (-pod +bare):\n%s", diff)
	}
	if !podspec.Conflict(podspec.Ports(bare), podspec.Ports(pod)) || len(podspec.Ports(bare)) != 1 || bare.Size() > 1000 {
		t.Errorf("ports %v, %d bytes", podspec.Ports(bare), bare.Size())
	}
}

// TestBarePodWhileItIsResized: a pod whose own resources are lowered in place takes what it has until kubelet has taken it.
func TestBarePodWhileItIsResized(t *testing.T) {
	cpu := func(quantity string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{Requests: cpu("1")}, Containers: []corev1.Container{{Name: "c"}}, Overhead: cpu("1"),
	}}
	pod.Status.AllocatedResources, pod.Status.Resources = cpu("1"), &corev1.ResourceRequirements{Requests: cpu("3")}
	requests := resourcehelper.PodRequests(barePod(pod), resourcehelper.PodResourcesOptions{})
	if got := requests.Cpu().Value(); got != 4 {
		t.Errorf("takes %d CPUs", got)
	}
}

// TestBarePodWithManyPorts: a pod takes little memory however many ports of the host it has, and no pod that wants one is put beside it.
func TestBarePodWithManyPorts(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
	for i := range int32(30_000) {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: i + 1, HostPort: i + 1})
	}
	other := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 10_000}}}}}}
	ports := podspec.Ports(barePod(pod))
	if size := barePod(pod).Size(); size > maxBare || !podspec.Conflict(ports, podspec.Ports(other)) || podspec.Conflict(ports, nil) {
		t.Errorf("%d bytes, ports %v", size, ports)
	}
}

// TestBarePodWithManyHugePages: a pod takes little memory however many sizes of huge pages it asks for: no node has so many. What it takes
// of CPU and memory stays known.
func TestBarePodWithManyHugePages(t *testing.T) {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	for i := range 30_000 {
		list[corev1.ResourceName(fmt.Sprint(corev1.ResourceHugePagesPrefix, i+1))] = *resource.NewQuantity(int64(i+1), resource.DecimalSI)
	}
	bare := barePod(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
	}}}})
	requests := bare.Spec.Containers[0].Resources.Requests
	if size := bare.Size(); size > maxBare || requests.Cpu().Value() != 2 || requests.Memory().Value() != 1<<30 {
		t.Errorf("%d bytes, %s CPUs, %s memory", size, requests.Cpu(), requests.Memory())
	}
}

// TestEndedPods: pods that have ended take nothing of their node. Of a reduced namespace nothing of them is kept, however many there are,
// and they keep no others away.
func TestEndedPods(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "batch", Name: name}}
		pod.Spec.NodeName, pod.Status.Phase = "n1", phase
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}},
		}}
		return pod
	}
	w := newWorld(t, pod("done", corev1.PodSucceeded), pod("failed", corev1.PodFailed), pod("runs", corev1.PodRunning))
	check := func(where string, pods []*corev1.Pod) {
		if len(pods) != 1 || pods[0].Name != "runs" {
			t.Errorf("%s: %d pods are kept", where, len(pods))
		}
	}
	var bare []*corev1.Pod
	of := tenantsWithPods(w.client)
	of.reduced = map[string]bool{"batch": true}
	pods := tenantKind[*corev1.Pod]{list: &corev1.PodList{}, trim: trimPod, bare: barePod}
	if err := pods.read(t.Context(), of, &bare, onNode("n1")); err != nil {
		t.Fatal(err)
	}
	check("of a reduced namespace", bare)
	repelling, err := Repelling(t.Context(), w.client, nil)
	if err != nil {
		t.Fatal(err)
	}
	check("that repel", repelling)
}

// TestPendingPodsOfOtherKinds: pods that cannot wait for devices take nothing of what is kept, so that one of the same namespace that does
// is looked at.
func TestPendingPodsOfOtherKinds(t *testing.T) {
	w := newWorld(t)
	add := func(name string, change func(*corev1.Pod)) {
		labels := map[string]string{"l": strings.Repeat("l", 500_000)}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "batch", Name: name, Labels: labels}}
		change(pod)
		check.Must(t, w.client.Create(t.Context(), pod))
	}
	asks := []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	for i := range 10 {
		add(fmt.Sprint("cpu-", i), func(*corev1.Pod) {})
		add(fmt.Sprint("gated-", i), func(pod *corev1.Pod) {
			pod.Spec.ResourceClaims, pod.Spec.SchedulingGates = asks, []corev1.PodSchedulingGate{{Name: "queue"}}
		})
	}
	add("waits", func(pod *corev1.Pod) { pod.Spec.ResourceClaims = asks })
	pods, err := Pending(t.Context(), w.client)
	if check.Must(t, err); len(pods) != 1 || pods[0].Name != "waits" {
		t.Errorf("%d pods wait", len(pods))
	}
}

// TestClaimWithoutDevices: a claim that asks for nothing is allocated by any pod. It has no devices, and nothing of it is kept.
func TestClaimWithoutDevices(t *testing.T) {
	c := &resourceapi.ResourceClaim{}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	if (&claimKeeper{}).bare(c) != nil {
		t.Error("is kept")
	}
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestRandom explains the pods of random clusters, in which nodes differ in what a pod asks of them: some have a device plugin for an
// extended resource, others devices. Every pod and every claim gets an explanation. There are a hundred clusters, and more until the rarest
// reasons were given.
func TestRandom(t *testing.T) {
	r := seed.New(t)
	reasons := map[Reason]int{}
	missing := func() []Reason {
		return slices.DeleteFunc([]Reason{Fits, Constraint, TooFew, NodeRefuses}, func(reason Reason) bool { return reasons[reason] > 0 })
	}
	const least, most = 100, 10_000
	for round := 0; round < least || len(missing()) > 0 && round < most; round++ {
		text := randomCluster(r)
		snapshot, problems, err := plan.Read([]plan.File{{Name: "random.yaml", Data: []byte(text)}}, "default")
		if err != nil || len(problems) > 0 {
			t.Fatalf("%v, %v in\n%s", err, problems, text)
		}
		for pod := range snapshot.Pods {
			c, _, err := plan.NewCluster(snapshot)
			if err != nil {
				t.Fatal(err)
			}
			explainAll(t, c, pod, reasons, text)
		}
	}
	t.Log(reasons)
	if none := missing(); len(none) > 0 {
		t.Errorf("no pod has the reasons %q: the clusters are all alike", none)
	}
}

// explainAll explains a pod, and with the first one the claims of the cluster.
func explainAll(t *testing.T, c *plan.Cluster, pod int, reasons map[Reason]int, text string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("pod %d: panic: %v in\n%s", pod, p, text)
		}
	}()
	explanations := []Explanation{Pod(t.Context(), c, c.Pods[pod], Options{})}
	for _, claim := range c.Claims {
		if pod > 0 {
			break // they were explained with the first pod
		}
		explanations = append(explanations, Claim(t.Context(), c, claim, Options{}))
	}
	for _, e := range explanations {
		reasons[e.Reason]++
		if e.First == "" || e.Reason == "" {
			t.Errorf("pod %d: nothing is said of %s in\n%s", pod, e.Object, text)
		}
	}
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// randomCluster has nodes with devices of two drivers, and pods that ask for them in all ways. One pod holds devices.
func randomCluster(r *rand.Rand) string {
	var out strings.Builder
	out.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	add := func(format string, args ...any) { fmt.Fprintf(&out, "- "+format+"\n", args...) }
	for _, driver := range []string{"v", "w"} {
		add(`{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: %s}, spec: {extendedResourceName: %[1]s.io/gpu,
    selectors: [{cel: {expression: 'device.driver == "%[1]s.io"'}}]}}`, driver)
	}
	for n := range 1 + r.IntN(5) {
		var plugins string
		for _, driver := range []string{"v", "w"} {
			if r.IntN(3) == 0 {
				plugins += fmt.Sprintf(", %s.io/gpu: %d", driver, r.IntN(5))
			}
			var devices []string
			for d := range r.IntN(4) {
				devices = append(devices, fmt.Sprintf("{name: d%d, attributes: {model: {string: %s}, root: {int: %d}}}",
					d, pick(r, "a", "b"), r.IntN(2)))
			}
			add(`{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: %s%d}, spec: {driver: %[1]s.io, nodeName: n%[2]d,
    pool: {name: %[1]s%[2]d, generation: 1, resourceSliceCount: %[3]s}, devices: [%[4]s]}}`,
				driver, n, pick(r, "1", "1", "1", "2"), strings.Join(devices, ", "))
		}
		add("{apiVersion: v1, kind: Node, metadata: {name: n%d}, spec: {unschedulable: %s}, status: {allocatable: {cpu: 8, pods: 9%s}}}",
			n, pick(r, "false", "false", "false", "true"), plugins)
	}
	add(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: held},
    spec: {devices: {requests: [{name: r0, exactly: {deviceClassName: v}}]}}, status: {allocation: {devices: {results: [
    {request: r0, driver: v.io, pool: v0, device: d0}, {request: r0, driver: v.io, pool: v0, device: d1}]}}}}`)
	for p := range 3 {
		var claims, resources []string
		for c := range r.IntN(3) {
			name := fmt.Sprintf("p%d-c%d", p, c)
			claims = append(claims, fmt.Sprintf("{name: c%d, resourceClaimName: %s}", c, name))
			add("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s}, spec: {devices: %s}}", name, randomDevices(r))
		}
		for _, driver := range []string{"v", "w"} {
			if r.IntN(2) == 0 {
				resources = append(resources, fmt.Sprintf("%s.io/gpu: %d", driver, 1+r.IntN(3)))
			}
		}
		limits := strings.Join(resources, ", ")
		add("{apiVersion: v1, kind: Pod, metadata: {name: p%d, uid: p%[1]d}, spec: {resourceClaims: [%[2]s],"+
			" containers: [{name: c, resources: {requests: {%[3]s}, limits: {%[3]s}}}]}}", p, strings.Join(claims, ", "), limits)
	}
	return out.String()
}

// randomDevices is what a claim asks for.
func randomDevices(r *rand.Rand) string {
	exactly := func() string {
		var selectors []string
		for range r.IntN(3) {
			selectors = append(selectors, fmt.Sprintf("{cel: {expression: 'device.attributes[device.driver].model == %q'}}", pick(r, "a", "b")))
		}
		return fmt.Sprintf("deviceClassName: %s, count: %d, selectors: [%s]", pick(r, "v", "v", "w"), 1+r.IntN(3), strings.Join(selectors, ", "))
	}
	var requests, constraints []string
	for i := range 1 + r.IntN(2) {
		if r.IntN(4) == 0 {
			requests = append(requests, fmt.Sprintf("{name: r%d, firstAvailable: [{name: s0, %s}, {name: s1, %s}]}", i, exactly(), exactly()))
			continue
		}
		requests = append(requests, fmt.Sprintf("{name: r%d, exactly: {%s}}", i, exactly()))
	}
	for range r.IntN(3) {
		constraints = append(constraints, fmt.Sprintf("{%s: %s.io/%s}", pick(r, "matchAttribute", "distinctAttribute"), pick(r, "v", "w"),
			pick(r, "root", "model")))
	}
	return fmt.Sprintf("{requests: [%s], constraints: [%s]}", strings.Join(requests, ", "), strings.Join(constraints, ", "))
}

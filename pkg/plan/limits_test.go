// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

func planOf(t *testing.T, ctx context.Context, s plan.Snapshot, options plan.Options) plan.Report { //nolint:revive // as all helpers
	t.Helper()
	c, _, err := plan.NewCluster(s)
	if err != nil {
		t.Fatal(err)
	}
	report, err := plan.Run(ctx, c, c.Pending(), options)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// requests makes the pods of a fleet ask for single devices, as many as given, in as many requests.
func requests(s plan.Snapshot, n int) plan.Snapshot {
	devices := &s.Templates[0].Spec.Spec.Devices
	one := devices.Requests[0]
	devices.Requests = nil
	for i := range n {
		request := *one.DeepCopy()
		request.Name = fmt.Sprintf("gpu-%d", i)
		devices.Requests = append(devices.Requests, request)
	}
	return s
}

// TestEightRequests: the worst case that people meet, eight requests of one device each and one device short, is searched to its end.
func TestEightRequests(t *testing.T) {
	t.Parallel()
	s := requests(gpuNodes(1, 1), 8)
	s.Slices[0].Spec.Devices = s.Slices[0].Spec.Devices[:7]
	pod := planOf(t, t.Context(), s, plan.Options{}).Pods["team/pod-0000"]
	if want := "0/1 nodes are available: 1 cannot allocate all claims."; pod.Reason != want || pod.Node != nil || pod.Stopped {
		t.Errorf("node %v, reason %q, want none and %q", pod.Node, pod.Reason, want)
	}
}

// TestTimeout: a search that does not end is ended, and the reason says what makes it long. Pods after it are planned.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := requests(gpuNodes(1, 1), 16)
	other := gpuNodes(1, 1)
	other.Templates[0].Name, other.Pods[0].Name = "single", "next"
	other.Pods[0].Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("single")
	s.Templates, s.Pods = append(s.Templates, other.Templates...), append(s.Pods, other.Pods...)
	for i := range 7 {
		device := *s.Slices[0].Spec.Devices[i].DeepCopy()
		device.Name = fmt.Sprintf("more-%d", i)
		s.Slices[0].Spec.Devices = append(s.Slices[0].Spec.Devices, device)
	}
	check.GrowingLimit(t, "the next pod has a node", func(limit time.Duration) bool {
		report := planOf(t, t.Context(), s, plan.Options{Timeout: limit})
		want := fmt.Sprintf("node node-0000: timed out trying to allocate devices. The scheduler stops the search after %s and tries the pod "+
			"again later; it tries the devices of 16 requests in every order, so ask for equal devices in one request with a count.", limit)
		if pod := report.Pods["team/pod-0000"]; pod.Reason != want || !pod.Stopped {
			t.Errorf("reason %q, stopped %t, want %q", pod.Reason, pod.Stopped, want)
		}
		return report.Pods["team/next"].Node != nil
	})
}

// TestStopped: when the caller has enough, the pods that are left say so.
func TestStopped(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("enough"))
	report := planOf(t, ctx, gpuNodes(2, 2), plan.Options{})
	for name, pod := range report.Pods {
		if pod.Node != nil || !pod.Stopped || !strings.HasPrefix(pod.Reason, "asked by caller to stop allocating devices: enough.") {
			t.Errorf("pod %s: node %v, reason %q", name, pod.Node, pod.Reason)
		}
	}
}

// TestConsumers: 256 pods can use a claim, and no more.
func TestConsumers(t *testing.T) {
	t.Parallel()
	s := gpuNodes(1, resourceapi.ResourceClaimReservedForMaxSize+1)
	s.Claims = []*resourceapi.ResourceClaim{{Spec: s.Templates[0].Spec.Spec}}
	s.Claims[0].Namespace, s.Claims[0].Name = "team", "shared"
	for _, pod := range s.Pods {
		pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = nil
		pod.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("shared")
	}
	report := planOf(t, t.Context(), s, plan.Options{})
	var without []string
	for name, pod := range report.Pods {
		if pod.Node == nil {
			without = append(without, name+": "+pod.Reason)
		}
	}
	if len(without) != 1 || !strings.HasPrefix(without[0], "team/pod-0256: ") || !strings.Contains(without[0], "is reserved for 256 pods") {
		t.Errorf("pods without a node: %q, want the last one", without)
	}
}

// TestExplain: what is added to a reason sees the cluster as the pod found it.
func TestExplain(t *testing.T) {
	t.Parallel()
	var refused map[string][]string
	report := planOf(t, t.Context(), gpuNodes(1, 9), plan.Options{Explain: func(a plan.Attempt) string {
		refused = a.Refused
		return fmt.Sprintf("%d devices are taken", len(a.Cluster.State().AllocatedDevices))
	}})
	want := "0/1 nodes are available: 1 cannot allocate all claims. 8 devices are taken."
	if got := report.Pods["team/pod-0008"].Reason; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
	if len(refused["node-0000"]) != 1 {
		t.Errorf("refused %v, want one reason of node-0000", refused)
	}
}

// TestTooLongSelectors: claims whose selectors would take too much memory stop their pod, not the planner. Pods after it are planned.
func TestTooLongSelectors(t *testing.T) {
	t.Parallel()
	s := requests(gpuNodes(1, 1), 32)
	other := gpuNodes(1, 1)
	other.Templates[0].Name, other.Pods[0].Name = "single", "next"
	other.Pods[0].Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("single")
	for i := range s.Templates[0].Spec.Spec.Devices.Requests {
		s.Templates[0].Spec.Spec.Devices.Requests[i].Exactly.Selectors = objects.Selectors(
			fmt.Sprintf("%d > 1", i) + strings.Repeat(" || 1+2 > 2", 900))
	}
	s.Templates, s.Pods = append(s.Templates, other.Templates...), append(s.Pods, other.Pods...)
	report := planOf(t, t.Context(), s, plan.Options{})
	if pod := report.Pods["team/pod-0000"]; !pod.Stopped || !strings.HasPrefix(pod.Reason, judge.TooLong) {
		t.Errorf("reason %q, stopped %t, want %q", pod.Reason, pod.Stopped, judge.TooLong)
	}
	if next := report.Pods["team/next"]; next.Node == nil {
		t.Errorf("the next pod has no node: %s", next.Reason)
	}
}

// SPDX-License-Identifier: Apache-2.0

package saved_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/plan/saved"
)

// snapshots are those of the plans' tests.
func snapshots(t *testing.T) map[string]plan.Snapshot {
	t.Helper()
	files, err := filepath.Glob("../testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string]plan.Snapshot{}
	for _, file := range append(files, "testdata/secrets.yaml", "testdata/neighbours.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(file)] = read(t, data)
	}
	return out
}

func read(t *testing.T, data []byte) plan.Snapshot {
	t.Helper()
	s, _, err := plan.Read([]plan.File{{Name: "f", Data: data}}, "")
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return s
}

func write(t *testing.T, s plan.Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := saved.Write(&out, s, nil); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func report(t *testing.T, s plan.Snapshot) plan.Report {
	t.Helper()
	c, _, err := plan.NewCluster(s)
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSavedPlansTheSame: a plan of a saved snapshot is that of the snapshot.
func TestSavedPlansTheSame(t *testing.T) {
	for name, s := range snapshots(t) {
		text := write(t, saved.Trim(s))
		if diff := cmp.Diff(report(t, s), report(t, read(t, text))); diff != "" {
			t.Errorf("%s: the plan of the saved snapshot differs (-original +saved):\n%s", name, diff)
		}
		if again := write(t, read(t, text)); !bytes.Equal(text, again) {
			t.Errorf("%s: saved twice it differs:\n%s", name, cmp.Diff(string(text), string(again)))
		}
	}
}

// TestSavedIsNotLookedAtEither: what a plan does not look at, it says of a saved pod, too.
func TestSavedIsNotLookedAtEither(t *testing.T) {
	for _, spec := range []string{
		"volumes: [{name: a, persistentVolumeClaim: {claimName: acme}}, {name: b, ephemeral: {}}, {name: c, csi: {driver: acme}}]",
		"volumes: [{name: a, emptyDir: {}}, {name: b, rbd: {image: acme, monitors: [acme]}}, {name: c, iscsi: {iqn: acme}}]",
		"hostNetwork: true, hostUsers: false", "securityContext: {sysctls: [{name: acme, value: acme}]}",
		"schedulingGroup: {podGroupName: acme}", "os: {name: windows}, securityContext: {windowsOptions: {runAsUserName: acme}}",
		"initContainers: [{name: i, securityContext: {windowsOptions: {runAsUserName: acme}}}]",
		"initContainers: [{name: i, volumeMounts: [{name: acme, bindMountOptions: [acme]}]}]",
		"initContainers: [{name: i, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]}]",
	} {
		s := read(t, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}], "+spec+"}\n"))
		trimmed := saved.Trim(s)
		saved.Redact(t.Context(), trimmed)
		text := write(t, trimmed)
		want, got := podspec.Unjudged(&s.Pods[0].Spec), podspec.Unjudged(&read(t, text).Pods[0].Spec)
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("%s: not looked at (-original +saved):\n%s", spec, diff)
		}
		if bytes.Contains(text, []byte("acme")) {
			t.Errorf("%s: a name is kept:\n%s", spec, text)
		}
	}
}

// TestSavedWhileItIsResized: a pod has what it had until it has less, in a saved snapshot, too.
func TestSavedWhileItIsResized(t *testing.T) {
	const cluster = `apiVersion: v1
kind: Node
metadata: {name: one}
status: {allocatable: {cpu: "4", pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: large, namespace: default, uid: "1"}
spec: {nodeName: one, containers: [{name: c, resources: {requests: {cpu: "1"}}}]}
status: {phase: Running, containerStatuses: [{name: c, resources: {requests: {cpu: "3"}}, allocatedResources: {cpu: "1"}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: next, namespace: default, uid: "2"}
spec: {containers: [{name: c, resources: {requests: {cpu: "2"}}}]}
`
	refused := strings.NewReplacer("{cpu: \"1\"}}}]}\n", "{cpu: \"4\"}}}]}\n", "{cpu: \"3\"}", "{cpu: \"1\"}", "phase: Running",
		"phase: Running, conditions: [{type: PodResizePending, status: \"True\", reason: Infeasible}]").Replace(cluster)
	whole := strings.NewReplacer("containers: [{name: c, resources: {requests: {cpu: \"1\"}}}]",
		"resources: {requests: {cpu: \"1\"}}, containers: [{name: c}]", "containerStatuses: [{name: c, ", "",
		"allocatedResources: {cpu: \"1\"}}]", "allocatedResources: {cpu: \"1\"}").Replace(cluster)
	for text, fits := range map[string]bool{cluster: false, refused: true, whole: false} {
		s := read(t, []byte(text))
		trimmed := saved.Trim(s)
		want, got := report(t, s), report(t, read(t, write(t, trimmed)))
		if diff := cmp.Diff(want, got); diff != "" || (want.Pods["default/next"].Node != nil) != fits {
			t.Errorf("the plan of the saved snapshot differs (-original +saved):\n%s", diff)
		}
		saved.Redact(t.Context(), trimmed)
		if diff := cmp.Diff(shape(want, s), shape(report(t, trimmed), trimmed)); diff != "" {
			t.Errorf("the plan of the redacted snapshot differs (-original +redacted):\n%s", diff)
		}
	}
}

// TestRedactedPlansTheSame: a plan of a redacted snapshot differs only in names. Pods are compared in their order.
func TestRedactedPlansTheSame(t *testing.T) {
	for name, s := range snapshots(t) {
		redacted := saved.Trim(s)
		saved.Redact(t.Context(), redacted)
		redacted = read(t, write(t, redacted))
		want, got := shape(report(t, s), s), shape(report(t, redacted), redacted)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the plan of the redacted snapshot differs (-original +redacted):\n%s", name, diff)
		}
	}
}

// shape is a plan without names: which nodes of all fit, which one it is, and which devices by their places in the snapshot.
func shape(r plan.Report, s plan.Snapshot) (out []string) {
	var nodes []string
	for _, n := range s.Nodes {
		nodes = append(nodes, n.Name)
	}
	slices.Sort(nodes)
	places := map[string]string{}
	for i, slice := range s.Slices {
		for j := range slice.Spec.Devices {
			places[slice.Spec.Driver+"/"+slice.Spec.Pool.Name+"/"+slice.Spec.Devices[j].Name] = fmt.Sprint(i, "/", j)
		}
	}
	place := func(node string) string { return string(rune('0' + slices.Index(nodes, node))) }
	for _, pod := range s.Pods {
		result, planned := r.Pods[pod.Namespace+"/"+pod.Name]
		if !planned {
			continue
		}
		text := "pod"
		for _, node := range result.Fits {
			text += " " + place(node)
		}
		if result.Node != nil {
			text += " on " + place(*result.Node)
		}
		for _, claim := range pod.Spec.ResourceClaims {
			for _, device := range result.Devices[claim.Name] {
				text += fmt.Sprint(" ", places[device])
			}
		}
		out = append(out, text)
	}
	return out
}

// TestNeighbours: the pods of the snapshot with neighbours are kept from nodes, so that its plans tell what is lost.
func TestNeighbours(t *testing.T) {
	got := map[string]int{}
	for name, pod := range report(t, snapshots(t)["neighbours.yaml"]).Pods {
		got[name] = len(pod.Fits)
	}
	want := map[string]int{
		"acme-ml/acme-port": 2, "acme-ml/acme-udp": 2, "acme-ml/acme-train": 1, "acme-ml/acme-noisy": 2, "acme-ml/acme-shy": 2,
		"acme-ml/acme-social": 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("how many nodes fit (-want +got):\n%s", diff)
	}
}

// TestRedactHides: nothing of whose cluster it is remains, and what is the same stays the same.
func TestRedactHides(t *testing.T) {
	s := saved.Trim(snapshots(t)["secrets.yaml"])
	before := string(write(t, s))
	saved.Redact(t.Context(), s)
	after := string(write(t, s))
	neighbours := saved.Trim(snapshots(t)["neighbours.yaml"])
	saved.Redact(t.Context(), neighbours)
	after += string(write(t, neighbours))
	secret := regexp.MustCompile(`(?i)[a-z0-9.-]*acme[a-z0-9.-]*`)
	if found := secret.FindAllString(before, -1); len(found) < 30 {
		t.Fatalf("only %d secrets before: %v", len(found), found)
	}
	if found := secret.FindAllString(after, -1); len(found) > 0 {
		t.Errorf("still there: %v\n%s", found, after)
	}
	for _, want := range []string{
		"string: id-1", "operator: Gt", `: "40"`, "driver: driver-1", "name: device-1", `device.attributes["redacted.fettle.dev"].group in [`,
	} {
		if !strings.Contains(after, want) {
			t.Errorf("want %q to be there", want)
		}
	}
}

func TestRedactProblems(t *testing.T) {
	got := saved.RedactProblems([]plan.Problem{
		{Object: "Snapshot pods", Message: "user acme may not"}, {Object: "Pod acme/trainer", Message: "acme"},
	})
	want := []plan.Problem{
		{Object: "Snapshot pods", Message: "the message was removed"}, {Object: "Pod", Message: "the message was removed"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong problems (-want +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestExplain explains the pod train, or a claim, of testdata/NAME.yaml, which is added to base.yaml. Lines "# option: ..." say how.
func TestExplain(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base := read(t, "testdata/base.yaml")
	for _, file := range files {
		if file == base.Name {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			e := explained(t, base, read(t, file))
			var got bytes.Buffer
			got.WriteString("(" + string(e.Reason) + ") ")
			if err := e.WriteText(&got); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(Reasons(), e.Reason) {
				t.Errorf("reason %q is not in the list", e.Reason)
			}
			check.Golden(t, strings.TrimSuffix(file, ".yaml")+".txt", got.Bytes())
		})
	}
}

func read(t *testing.T, name string) plan.File {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return plan.File{Name: name, Data: data}
}

// explained makes a cluster of files, and explains what their options say.
func explained(t *testing.T, files ...plan.File) Explanation {
	t.Helper()
	snapshot, problems, err := plan.Read(files, "default")
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	c, problems, err := plan.NewCluster(snapshot)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	var o Options
	claim := ""
	for line := range strings.Lines(string(files[len(files)-1].Data)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "# option: "), " ")
		switch {
		case !strings.HasPrefix(line, "# option: "):
		case name == "sees":
			o.Sees = func(namespace string) bool { return namespace == value }
		case name == "unread":
			o.Unread = append(o.Unread, value)
		case name == "devices":
			o.Devices = true
		case name == "claim":
			claim = value
		default:
			t.Fatalf("unknown option %s", name)
		}
	}
	if claim != "" {
		return Claim(t.Context(), c, c.Claims[types.NamespacedName{Namespace: "default", Name: claim}], o)
	}
	return Pod(t.Context(), c, c.Pods[0], o)
}

// TestStopped: if the caller has enough, the reason is that, and nothing is said of the pod or its claims.
func TestStopped(t *testing.T) {
	snapshot, problems, err := plan.Read([]plan.File{read(t, "testdata/base.yaml"), read(t, "testdata/held.yaml")}, "default")
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	undisturbed := Explanation{}
	start, took := time.Now(), time.Duration(0)
	random := seed.New(t)
	for i := range 50 {
		c, _, err := plan.NewCluster(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			undisturbed, took = Pod(t.Context(), c, c.Pods[0], Options{}), time.Since(start)
			continue
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(took))))
		e := Pod(ctx, c, c.Pods[0], Options{})
		stop()
		if e.Reason != Slow && e.First != undisturbed.First && !strings.Contains(e.First, "could be tried in time") {
			t.Errorf("stopped: %s, %s", e.Reason, e.First)
		}
	}
}

// TestSlow: a search that took too long is not blamed on a pool that has nothing to do with it.
func TestSlow(t *testing.T) {
	foreign := plan.File{Name: "foreign.yaml", Data: []byte(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: foreign}
spec:
  driver: other.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 2}
  devices: [{name: d}]
`)}
	snapshot, problems, err := plan.Read([]plan.File{read(t, "testdata/base.yaml"), read(t, "testdata/claim-alone.yaml"), foreign}, "default")
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	c, _, err := plan.NewCluster(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	claim := c.Claims[types.NamespacedName{Namespace: "default", Name: "c"}]
	claim.Spec.Devices.Requests[0].Exactly.Count = 1
	w := newWork(t.Context(), c, Options{})
	w.claims = append(w.claims, claim)
	w.judgeFor(nil, nil)
	for i := range w.nodes {
		w.nodes[i].verdict.Outcome = judge.TimedOut
	}
	if reason, text := w.first(); reason != Slow {
		t.Errorf("got %s: %s", reason, text)
	}
}

// TestHidden looks for names of other namespaces in what a tenant reads.
func TestHidden(t *testing.T) {
	for _, name := range []string{"held-hidden", "held-devices"} {
		text, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "another namespace") && !strings.Contains(string(text), "other namespaces") {
			t.Errorf("%s does not count what it may not name:\n%s", name, text)
		}
		if strings.Contains(string(text), "team-a") {
			t.Errorf("%s names an object of another namespace:\n%s", name, text)
		}
	}
}

// TestEventsOfThePod: what was said of an earlier pod of the same name is not said of this one.
func TestEventsOfThePod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "train", UID: "now"}}
	about := func(uid types.UID, reason string) *corev1.Event {
		return &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Name: "train", UID: uid}, Type: corev1.EventTypeWarning, Reason: reason, Message: reason,
		}
	}
	var got []string
	for _, s := range said(pod, Options{Events: []*corev1.Event{about("before", "Old"), about("now", "New"), about("", "Unknown")}}) {
		got = append(got, s.From)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"New", "Unknown"}) {
		t.Errorf("Events %q, want that of this pod, and one that names no UID", got)
	}
}

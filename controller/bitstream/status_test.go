// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func digestOf(text string) string { return artifact.DigestOf([]byte(text)).String() }

const pin = "registry.example/nlb0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// found is a good outcome.
func found(text string) Outcome {
	return Outcome{
		Digest: digestOf(text), Images: []v1alpha1.BitstreamImage{{Manifest: digestOf(text), Format: "gbs"}},
		Verdict: NoTrustPolicy{}.Verify(context.Background(), artifact.Reference{}, artifact.Digest{}),
	}
}

func TestRecord(t *testing.T) {
	down := Outcome{Err: fmt.Errorf("x: %w", artifact.ErrUnavailable)}
	type want struct {
		generation         int64
		digest             string
		images             int
		resolved, verified string
	}
	for _, test := range []struct {
		name       string
		generation []int64
		outcomes   []Outcome
		want       want
	}{
		{"found", []int64{1}, []Outcome{found("a")}, want{1, digestOf("a"), 1, "True Resolved", "Unknown NoTrustPolicy"}},
		{"moved", []int64{1, 1}, []Outcome{found("a"), found("b")}, want{1, digestOf("b"), 1, "True Resolved", "Unknown NoTrustPolicy"}},
		{"outage at first", []int64{1}, []Outcome{down}, want{1, "", 0, "False RegistryUnavailable", "Unknown NotResolved"}},
		{
			"outage later keeps what is known",
			[]int64{1, 1},
			[]Outcome{found("a"), down},
			want{1, digestOf("a"), 1, "Unknown RegistryUnavailable", "Unknown NoTrustPolicy"},
		},
		{
			"an outage after an outage",
			[]int64{1, 1, 1},
			[]Outcome{found("a"), down, down},
			want{1, digestOf("a"), 1, "Unknown RegistryUnavailable", "Unknown NoTrustPolicy"},
		},
		{
			"outage after the spec changed",
			[]int64{1, 2},
			[]Outcome{found("a"), down},
			want{2, "", 0, "False RegistryUnavailable", "Unknown NotResolved"},
		},
		{
			"back again",
			[]int64{1, 1, 1},
			[]Outcome{found("a"), down, found("a")},
			want{1, digestOf("a"), 1, "True Resolved", "Unknown NoTrustPolicy"},
		},
		{
			"gone",
			[]int64{1, 1},
			[]Outcome{found("a"), {Err: artifact.ErrNotFound}},
			want{1, "", 0, "False NotFound", "Unknown NotResolved"},
		},
		{"gone in an outage", []int64{1, 1, 1}, []Outcome{found("a"), {Err: artifact.ErrNotFound}, down}, want{
			1, "", 0, "False RegistryUnavailable", "Unknown NotResolved",
		}},
		{
			"no longer allowed",
			[]int64{1, 1},
			[]Outcome{found("a"), {Err: artifact.ErrUnauthorized}},
			want{1, "", 0, "False Unauthorized", "Unknown NotResolved"},
		},
		{
			"file on the nodes",
			[]int64{1, 2},
			[]Outcome{found("a"), {Verdict: Verdict{Status: metav1.ConditionUnknown, Reason: ReasonHostFile}}},
			want{2, "", 0, "True HostFile", "Unknown HostFile"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var status v1alpha1.FPGABitstreamStatus
			for i, out := range test.outcomes {
				Record(&status, test.generation[i], out, start.Add(time.Duration(i)*time.Hour))
			}
			text := func(kind string) string {
				c := meta.FindStatusCondition(status.Conditions, kind)
				if c == nil {
					return ""
				}
				if c.ObservedGeneration != test.want.generation {
					t.Errorf("%s is of generation %d, want %d", kind, c.ObservedGeneration, test.want.generation)
				}
				return string(c.Status) + " " + c.Reason
			}
			got := want{
				status.ObservedGeneration, status.Digest, len(status.Images), text(v1alpha1.ConditionResolved), text(v1alpha1.ConditionVerified),
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReasonOf(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{pull.ErrSecret, pull.ReasonPullSecretUnavailable},
		{fmt.Errorf("%w: %w", pull.ErrSecret, artifact.ErrInvalid), pull.ReasonPullSecretUnavailable},
		{fmt.Errorf("%w: x", oci.ErrNotBitstream), ReasonNotABitstream},
		{fmt.Errorf("%w: x", fpga.ErrContradiction), ReasonConfigMismatch},
		{artifact.ErrTooLarge, pull.ReasonTooLarge},
		{artifact.ErrPlainHTTP, pull.ReasonPlainHTTPRefused},
		{artifact.ErrNotFound, pull.ReasonNotFound},
		{fmt.Errorf("a mirror is %w, and the registry: %w", artifact.ErrUnavailable, artifact.ErrNotFound), pull.ReasonRegistryUnavailable},
		{artifact.ErrUnauthorized, pull.ReasonUnauthorized},
		{artifact.ErrMismatch, pull.ReasonInvalid},
		{artifact.ErrInvalid, pull.ReasonInvalid},
		{context.DeadlineExceeded, pull.ReasonRegistryUnavailable},
		{explain(&fpga.Error{Err: errors.New("x")}), ReasonNotABitstream},
		{explain(&fpga.Error{Err: &fs.PathError{Op: "read", Err: errors.New("bad block")}}), pull.ReasonRegistryUnavailable},
	} {
		if got := reasonOf(test.err); got != test.want {
			t.Errorf("%v: reason %s, want %s", test.err, got, test.want)
		}
	}
}

func TestNext(t *testing.T) {
	const tag = "registry.example/nlb0:v1"
	cond := func(status metav1.ConditionStatus) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.ConditionResolved, Status: status, LastTransitionTime: metav1.NewTime(start)}
	}
	for _, test := range []struct {
		name    string
		image   string
		secrets []string
		cond    *metav1.Condition
		after   time.Duration
		want    time.Duration
	}{
		{"tag", tag, nil, cond(metav1.ConditionTrue), time.Hour, 10 * time.Minute},
		{"digest", pin, nil, cond(metav1.ConditionTrue), time.Hour, 0},
		{"digest with a secret", pin, []string{"a"}, cond(metav1.ConditionTrue), time.Hour, 10 * time.Minute},
		{"file on the nodes", "", nil, cond(metav1.ConditionTrue), time.Hour, 0},
		{"not looked at yet", tag, nil, nil, 0, 15 * time.Second},
		{"failed now", tag, nil, cond(metav1.ConditionFalse), 0, 15 * time.Second},
		{"failed for a minute", pin, nil, cond(metav1.ConditionFalse), time.Minute, time.Minute},
		{"not sure for a minute", tag, nil, cond(metav1.ConditionUnknown), time.Minute, time.Minute},
		{"failed for long", tag, nil, cond(metav1.ConditionFalse), time.Hour, 10 * time.Minute},
		{"failed in the future", tag, nil, cond(metav1.ConditionFalse), -time.Hour, 15 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &v1alpha1.ClusterFPGABitstream{Spec: v1alpha1.ClusterFPGABitstreamSpec{Image: test.image}}
			o := Of(b.Common(), "fettle")
			o.Secrets = test.secrets
			if test.cond != nil {
				o.Status.Conditions = []metav1.Condition{*test.cond}
			}
			if got := Next(o, 10*time.Minute, nil, start.Add(test.after)); got != test.want {
				t.Errorf("look again in %s, want %s", got, test.want)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	for _, test := range []struct {
		name, image string
		generation  int64
		out         *Outcome
		want        bool
	}{
		{"new", pin, 1, nil, false},
		{"digest", pin, 1, new(found("a")), true},
		{"tag", "registry.example/nlb0:v1", 1, new(found("a")), false},
		{"changed", pin, 2, new(found("a")), false},
		{"failed", pin, 1, &Outcome{Err: artifact.ErrNotFound}, false},
		{"file on the nodes", "", 1, &Outcome{}, true},
	} {
		b := &v1alpha1.ClusterFPGABitstream{ObjectMeta: metav1.ObjectMeta{Generation: test.generation}}
		b.Spec.Image = test.image
		o := Of(b.Common(), "fettle")
		if test.out != nil {
			Record(o.Status, 1, *test.out, start)
		}
		if got := Settled(o); got != test.want {
			t.Errorf("%s: settled %v, want %v", test.name, got, test.want)
		}
	}
}

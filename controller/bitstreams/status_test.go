// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func digestOf(text string) string { return artifact.DigestOf([]byte(text)).String() }

const pin = "registry.example/nlb0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// found is a good outcome.
func found(text string) artifacts.Outcome { return artifacts.Outcome{Digest: digestOf(text)} }

// record writes an outcome to the status of a bitstream, as of content that was read.
func record(b *v1alpha1.ClusterFPGABitstream, out artifacts.Outcome, now time.Time) {
	o := &object{CommonFPGABitstream: b.Common(), resolver: &resolver{namespace: "fettle"}}
	if out.Digest != "" {
		o.images = []v1alpha1.BitstreamImage{{Manifest: out.Digest, Format: "gbs"}}
	}
	artifacts.Record(&artifacts.Kind{PolicyOptional: true}, o, &out, now)
}

func TestRecord(t *testing.T) {
	down := artifacts.Outcome{Err: fmt.Errorf("x: %w", artifact.ErrUnavailable)}
	type want struct {
		generation         int64
		digest             string
		images             int
		resolved, verified string
	}
	for _, test := range []struct {
		name       string
		generation []int64
		outcomes   []artifacts.Outcome
		want       want
	}{
		{"found", []int64{1}, []artifacts.Outcome{found("a")}, want{1, digestOf("a"), 1, "True Resolved", "Unknown NoTrustPolicy"}},
		{
			"moved",
			[]int64{1, 1},
			[]artifacts.Outcome{found("a"), found("b")},
			want{1, digestOf("b"), 1, "True Resolved", "Unknown NoTrustPolicy"},
		},
		{"outage at first", []int64{1}, []artifacts.Outcome{down}, want{1, "", 0, "False RegistryUnavailable", "Unknown NotResolved"}},
		{
			"outage later keeps what is known",
			[]int64{1, 1},
			[]artifacts.Outcome{found("a"), down},
			want{1, digestOf("a"), 1, "Unknown RegistryUnavailable", "Unknown NoTrustPolicy"},
		},
		{
			"an outage after an outage",
			[]int64{1, 1, 1},
			[]artifacts.Outcome{found("a"), down, down},
			want{1, digestOf("a"), 1, "Unknown RegistryUnavailable", "Unknown NoTrustPolicy"},
		},
		{
			"outage after the spec changed",
			[]int64{1, 2},
			[]artifacts.Outcome{found("a"), down},
			want{2, "", 0, "False RegistryUnavailable", "Unknown NotResolved"},
		},
		{
			"back again",
			[]int64{1, 1, 1},
			[]artifacts.Outcome{found("a"), down, found("a")},
			want{1, digestOf("a"), 1, "True Resolved", "Unknown NoTrustPolicy"},
		},
		{
			"gone",
			[]int64{1, 1},
			[]artifacts.Outcome{found("a"), {Err: artifact.ErrNotFound}},
			want{1, "", 0, "False NotFound", "Unknown NotResolved"},
		},
		{"gone in an outage", []int64{1, 1, 1}, []artifacts.Outcome{found("a"), {Err: artifact.ErrNotFound}, down}, want{
			1, "", 0, "False RegistryUnavailable", "Unknown NotResolved",
		}},
		{
			"no longer allowed",
			[]int64{1, 1},
			[]artifacts.Outcome{found("a"), {Err: artifact.ErrUnauthorized}},
			want{1, "", 0, "False Unauthorized", "Unknown NotResolved"},
		},
		{
			"file on the nodes",
			[]int64{1, 2},
			[]artifacts.Outcome{found("a"), {}},
			want{2, "", 0, "True HostFile", "Unknown HostFile"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &v1alpha1.ClusterFPGABitstream{Spec: v1alpha1.ClusterFPGABitstreamSpec{Image: "registry.example/nlb0:v1"}}
			status := &b.Status
			for i, out := range test.outcomes {
				b.Generation = test.generation[i]
				if out.Err == nil && out.Digest == "" {
					b.Spec.Image = ""
				}
				record(b, out, start.Add(time.Duration(i)*time.Hour))
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
		{artifacts.ErrSecret, artifacts.ReasonPullSecretUnavailable},
		{fmt.Errorf("%w: %w", artifacts.ErrSecret, artifact.ErrInvalid), artifacts.ReasonPullSecretUnavailable},
		{withReason(fmt.Errorf("%w: x", oci.ErrNotBitstream)), ReasonNotABitstream},
		{withReason(fmt.Errorf("%w: x", fpga.ErrContradiction)), ReasonConfigMismatch},
		{artifact.ErrTooLarge, artifacts.ReasonTooLarge},
		{artifact.ErrPlainHTTP, artifacts.ReasonPlainHTTPRefused},
		{artifact.ErrNotFound, artifacts.ReasonNotFound},
		{fmt.Errorf("a mirror is %w, and the registry: %w", artifact.ErrUnavailable, artifact.ErrNotFound), artifacts.ReasonRegistryUnavailable},
		{artifact.ErrUnauthorized, artifacts.ReasonUnauthorized},
		{artifact.ErrMismatch, artifacts.ReasonInvalid},
		{artifact.ErrInvalid, artifacts.ReasonInvalid},
		{context.DeadlineExceeded, artifacts.ReasonRegistryUnavailable},
		{withReason(explain(&fpga.Error{Err: errors.New("x")})), ReasonNotABitstream},
		{withReason(explain(&fpga.Error{Err: &fs.PathError{Op: "read", Err: errors.New("bad block")}})), artifacts.ReasonRegistryUnavailable},
	} {
		if got := artifacts.ReasonOf(test.err); got != test.want {
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
		// verified is the reason of the condition Verified.
		verified string
		after    time.Duration
		want     time.Duration
	}{
		{"tag", tag, nil, cond(metav1.ConditionTrue), "NoTrustPolicy", time.Hour, 10 * time.Minute},
		{"digest", pin, nil, cond(metav1.ConditionTrue), "NoTrustPolicy", time.Hour, 0},
		{"digest that no signature was looked for", pin, nil, cond(metav1.ConditionTrue), "Skipped", time.Hour, 0},
		{"digest that is not signed", pin, nil, cond(metav1.ConditionTrue), "Refused", time.Hour, 10 * time.Minute},
		{"digest with a secret", pin, []string{"a"}, cond(metav1.ConditionTrue), "NoTrustPolicy", time.Hour, 10 * time.Minute},
		{"file on the nodes", "", nil, cond(metav1.ConditionTrue), "HostFile", time.Hour, 0},
		{"not resolved yet", tag, nil, nil, "", 0, 15 * time.Second},
		{"failed now", tag, nil, cond(metav1.ConditionFalse), "NotResolved", 0, 15 * time.Second},
		{"failed for a minute", pin, nil, cond(metav1.ConditionFalse), "NotResolved", time.Minute, time.Minute},
		{"not sure for a minute", tag, nil, cond(metav1.ConditionUnknown), "NoTrustPolicy", time.Minute, time.Minute},
		{"failed for long", tag, nil, cond(metav1.ConditionFalse), "NotResolved", time.Hour, 10 * time.Minute},
		{"failed in the future", tag, nil, cond(metav1.ConditionFalse), "NotResolved", -time.Hour, 15 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &v1alpha1.ClusterFPGABitstream{Spec: v1alpha1.ClusterFPGABitstreamSpec{Image: test.image}}
			for _, name := range test.secrets {
				b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
			}
			if test.cond != nil {
				verified := *test.cond
				verified.Type, verified.Status, verified.Reason = v1alpha1.ConditionVerified, metav1.ConditionUnknown, test.verified
				b.Status.Conditions = []metav1.Condition{*test.cond, verified}
			}
			kind := artifacts.Kind{Interval: 10 * time.Minute, PolicyOptional: true}
			if got := artifacts.Next(&kind, Head(b.Common(), "fettle"), nil, start.Add(test.after)); got != test.want {
				t.Errorf("look again in %s, want %s", got, test.want)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	for _, test := range []struct {
		name, image string
		generation  int64
		out         *artifacts.Outcome
		want        bool
	}{
		{"new", pin, 1, nil, false},
		{"digest", pin, 1, new(found("a")), true},
		{"tag", "registry.example/nlb0:v1", 1, new(found("a")), false},
		{"changed", pin, 2, new(found("a")), false},
		{"failed", pin, 1, &artifacts.Outcome{Err: artifact.ErrNotFound}, false},
		{"file on the nodes", "", 1, &artifacts.Outcome{}, true},
	} {
		b := &v1alpha1.ClusterFPGABitstream{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
		b.Spec.Image = test.image
		if test.out != nil {
			record(b, *test.out, start)
		}
		b.Generation = test.generation
		if got := artifacts.Settled(Head(b.Common(), "fettle")); got != test.want {
			t.Errorf("%s: settled %v, want %v", test.name, got, test.want)
		}
	}
}

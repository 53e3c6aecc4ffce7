// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
)

// metrics has the metrics of programming.
type metrics struct {
	programmings *prometheus.CounterVec
	seconds      prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		programmings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_fpga_programmings_total", Help: "Regions programmed, by purpose (program, scrub, release) and result.",
		}, []string{"why", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_fpga_program_seconds", Help: "Time that the kernel took to program a region.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 8, 16, 32, 64},
		}),
	}
	registry.MustRegister(m.programmings, m.seconds)
	return m
}

// The reasons of Events and of refused claims.
const (
	ReasonProgrammed    = "Programmed"
	ReasonProgramFailed = "ProgramFailed"
	reasonBitstream     = "BitstreamUnusable"
	reasonRegion        = "RegionUnusable"
	reasonFailures      = "TooManyFailedProgrammings"
)

// Reason returns the stable reason of an error of this package or of the regions', "" for any other.
func (f *Feature) Reason(err error) (reason string, permanent bool) {
	return reasonOf(err), false
}

func reasonOf(err error) string {
	_, driver := errors.AsType[*backend.Error](err)
	among := func(causes ...error) bool {
		return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
	}
	_, limited := errors.AsType[*region.TooManyFailuresError](err)
	switch {
	case limited:
		return reasonFailures
	case among(errNotFound, errNotResolved, errNoImage, errNotStaged, errNotVerified, errRefused),
		among(artifacts.ErrNotFetched, pin.ErrEvicted, region.ErrImage):
		return reasonBitstream
	case driver && backend.KindOf(err) == backend.Unknown:
		return ReasonProgramFailed
	case driver, among(region.ErrGone, region.ErrOther, region.ErrTraces, region.ErrMemory, region.ErrCardInUse, region.ErrUnknownState,
		fpga.ErrNotIsolated):
		return reasonRegion
	}
	return ""
}

// reportAttempt reports an attempt to program a region in the log, in metrics, and by an Event on the claim, which also serves audits.
func (f *Feature) reportAttempt(ctx context.Context, a region.Attempt) {
	result, kind, reason := "ok", corev1.EventTypeNormal, ReasonProgrammed
	message := fmt.Sprintf("region %s of node %s (%s): programmed %s of %s, AFU id %s, in %s", a.Device, f.Node, a.Why,
		a.Image.Digest, a.Image.Origin, a.Image.AFUID, a.Took.Round(time.Millisecond))
	if a.Err != nil {
		result, kind, reason = backend.KindOf(a.Err).String(), corev1.EventTypeWarning, ReasonProgramFailed
		message = fmt.Sprintf("region %s of node %s (%s): programming %s of %s failed after %s: %v", a.Device, f.Node, a.Why,
			a.Image.Digest, a.Image.Origin, a.Took.Round(time.Millisecond), a.Err)
	}
	klog.FromContext(ctx).Info("Programmed a region", "device", a.Device, "why", a.Why, "claim", klog.KRef(a.Claim.Namespace, a.Claim.Name),
		"claimUID", a.Claim.UID, "digest", a.Image.Digest, "origin", a.Image.Origin, "afu", a.Image.AFUID,
		"seconds", a.Took.Seconds(), "err", a.Err)
	f.Rescan.Send()
	f.metrics.programmings.WithLabelValues(a.Why, result).Inc()
	f.metrics.seconds.Observe(a.Took.Seconds())
	regarding := &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: a.Claim.Namespace, Name: a.Claim.Name,
		UID: types.UID(a.Claim.UID),
	}
	if a.Claim.Name == "" {
		regarding = f.nodeReference()
	}
	// Events that differ only in their text are merged into one. The field path keeps those of different regions and images apart.
	related := f.nodeReference()
	related.FieldPath = fmt.Sprintf("regions{%s}.%s{%s}", a.Device, a.Why, a.Image.Digest)
	f.Event(regarding, related, kind, reason, message)
}

func (f *Feature) nodeReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: f.Node, UID: types.UID(f.Node)}
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/pkg/message"
)

// bootstrapRetry is the time between two tries to apply the CRDs.
const bootstrapRetry = 10 * time.Second

// bootstrap is the leader's first work: the CRDs, then the reconcilers of our own kinds, whose caches could not start before.
type bootstrap struct {
	client   client.Client // not cached
	recorder events.EventRecorder
	metrics  *metrics
	files    fs.FS
	manage   bool
	clock    clock.WithTicker
	then     func() error
}

// NeedLeaderElection is true: two releases during an upgrade must not take turns in applying their CRDs.
func (b *bootstrap) NeedLeaderElection() bool { return true }

// Start tries until every CRD is served, then lets the reconcilers start. Another fault than a refusal is tried again: the API
// server may be slow, or an admin may be about to grant a permission.
func (b *bootstrap) Start(ctx context.Context) error {
	definitions, err := crd.Load(b.files)
	if err != nil {
		return fmt.Errorf("read the CRDs of this release: %w", err)
	}
	for {
		err := b.ensure(ctx, definitions)
		if err == nil {
			return b.then()
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped, not failed
		}
		klog.FromContext(ctx).Error(err, "the CRDs are not in place yet", "retryIn", bootstrapRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-b.clock.After(bootstrapRetry):
		}
	}
}

// ensure applies every definition, or only waits for it when CRDs are someone else's business.
func (b *bootstrap) ensure(ctx context.Context, definitions []crd.Definition) error {
	var faults []error
	for _, d := range definitions {
		if !b.manage {
			faults = append(faults, crd.WaitEstablished(ctx, b.client, d.Name))
			continue
		}
		err := crd.Apply(ctx, b.client, d, Name)
		var refused *crd.RefusedError
		if errors.As(err, &refused) {
			b.report(ctx, refused)
			err = crd.WaitEstablished(ctx, b.client, d.Name)
		} else {
			b.metrics.refusedCRD.WithLabelValues(d.Name).Set(0)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// report makes a refusal visible. The controller goes on with the newer definition, which still serves what this release reads.
func (b *bootstrap) report(ctx context.Context, refused *crd.RefusedError) {
	klog.FromContext(ctx).Error(refused, "CRD upgrade refused")
	b.metrics.refusedCRD.WithLabelValues(refused.Name).Set(1)
	object := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: refused.Name}}
	b.recorder.Eventf(object, nil, corev1.EventTypeWarning, "UpgradeRefused", "ApplyCRD", "%s", message.EventNote(refused.Error()))
}

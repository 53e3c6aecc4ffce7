// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/message"
)

// retry is the time between two tries to apply the definitions.
const retry = 10 * time.Second

// Installation is what an [Installer] does.
type Installation struct {
	// Client must not read from a cache.
	Client   client.Client
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Files are the definitions. Unless Manage is set, they are only waited for.
	Files  fs.FS
	Manage bool
	// Established is called once, when every definition is served.
	Established func() error
}

// Installer applies the definitions of this release when the process becomes the leader. Afterwards the reconcilers of these kinds may
// start, whose caches could not before.
type Installer struct {
	Installation

	refused *prometheus.GaugeVec
}

// NewInstaller returns an installer.
func NewInstaller(i Installation) *Installer {
	return &Installer{Installation: i, refused: metrics.GaugeBy("crd_upgrade_refused",
		"1 while the CRD is not upgraded because objects may be stored in a version that this release does not know.", "crd")}
}

// Metrics returns what is to be registered.
func (i *Installer) Metrics() prometheus.Collector { return i.refused }

// NeedLeaderElection returns true: two releases during an upgrade must not take turns in applying their definitions.
func (i *Installer) NeedLeaderElection() bool { return true }

// Start tries until every definition is served, and calls Established. A failure is tried again: the API server may be slow, or an
// administrator may be about to grant a permission.
func (i *Installer) Start(ctx context.Context) error {
	definitions, err := Load(i.Files)
	if err != nil {
		return fmt.Errorf("read the CRDs of this release: %w", err)
	}
	for {
		err := i.ensure(ctx, definitions)
		if err == nil {
			return i.Established()
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped, not failed
		}
		klog.FromContext(ctx).Error(err, "The CRDs are not in place yet", "retryIn", retry)
		select {
		case <-ctx.Done():
			return nil
		case <-i.Clock.After(retry):
		}
	}
}

// ensure applies every definition, or only waits for it if another party manages the CRDs.
func (i *Installer) ensure(ctx context.Context, definitions []Definition) error {
	var errs []error
	for _, d := range definitions {
		if !i.Manage {
			errs = append(errs, WaitEstablished(ctx, i.Client, d.Name))
			continue
		}
		err := Apply(ctx, i.Client, d, names.Controller)
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			i.report(ctx, refused)
			err = WaitEstablished(ctx, i.Client, d.Name)
		} else {
			i.refused.WithLabelValues(d.Name).Set(0)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// report makes a refusal visible. The controller goes on with the newer definition, which still serves what this release reads.
func (i *Installer) report(ctx context.Context, refused *RefusedError) {
	klog.FromContext(ctx).Error(refused, "CRD upgrade refused")
	i.refused.WithLabelValues(refused.Name).Set(1)
	object := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: refused.Name}}
	i.Recorder.Eventf(object, nil, corev1.EventTypeWarning, "UpgradeRefused", "ApplyCRD", "%s", message.EventNote(refused.Error()))
}

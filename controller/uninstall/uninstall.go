// SPDX-License-Identifier: Apache-2.0

// Package uninstall removes Fettle from a cluster in the reverse order of its work: when no claim is in use, every plugin retires, and
// then the objects are deleted. The chart's pre-delete hook runs it while controller and plugins are still up.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/pause"
)

// poll is the time between two checks of a state that the uninstall waits for.
const poll = time.Second

// Uninstall is one uninstall.
type Uninstall struct {
	// Client must not read from a cache.
	Client client.Client
	// Recorder takes the Events of pods that are evicted.
	Recorder events.EventRecorder
	// Clock is the time.
	Clock clock.WithTicker
	// Namespace is the controller's.
	Namespace string
	// Force ends the pods that hold devices. Without it, one such pod refuses the uninstall.
	Force bool
	// Timeout bounds the whole uninstall.
	Timeout time.Duration
	// CRDs are the definitions to delete at the end, with all their objects; nil keeps them.
	CRDs []crd.Definition
}

// InUseError lists the claims and nodes that still hold devices.
type InUseError struct {
	// Holds are the claims in use, sorted.
	Holds []Hold
	// Nodes are the nodes whose plugin still reports prepared claims, sorted.
	Nodes []string
}

// Run uninstalls. An [*InUseError] refuses before anything was changed. After any other error the running controller takes the
// retirements back, so that the cluster works as before, and a later Run starts again.
func (u Uninstall) Run(ctx context.Context) (err error) {
	ctx, cancel := u.bounded(ctx)
	defer cancel()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err) // the error of an interrupted call does not name the deadline
		}
	}()
	left := map[types.NamespacedName]Hold{} // what a forced uninstall does not wait for
	if !u.Force {
		if err := u.refuse(ctx, left); err != nil {
			return err
		}
	}
	release, err := pause.Lease{Client: u.Client, Clock: u.Clock, Namespace: u.Namespace}.Hold(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release(err == nil)) }()

	if u.Force {
		if err := u.drain(ctx, left); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
	if err := u.retire(ctx); err != nil {
		return fmt.Errorf("retire the nodes: %w", err)
	}
	// A claim may have been prepared between the first check and the last plugin's retirement.
	if err := u.refuse(ctx, left); err != nil {
		return err
	}
	if err := u.clean(ctx); err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	for _, claim := range slices.SortedFunc(maps.Keys(left), compareNames) {
		klog.FromContext(ctx).Info("Left behind a claim in use", "hold", left[claim].text())
	}
	klog.FromContext(ctx).Info("Uninstalled", "claimsLeftInUse", len(left))
	return nil
}

// bounded returns a context that ends when the timeout is over by the uninstall's clock. Its cause names the flag.
func (u Uninstall) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := u.Clock.NewTimer(u.Timeout)
	go func() {
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C():
			cancel(fmt.Errorf("deadline of %s is over (--timeout)", u.Timeout))
		}
	}()
	return ctx, func() { cancel(nil) }
}

// NewRecorder sends Events to the API server until the returned function is called.
func NewRecorder(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (events.EventRecorder, func(), error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("start recording Events: %w", err)
	}
	return broadcaster.NewRecorder(scheme, names.Controller), broadcaster.Shutdown, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package reconciler has what every reconciler of the controller is built from, and the form in which the controller's table lists it: a
// row with the queues that it serves and the objects that fill them.
package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
)

const (
	// firstRetry and longestRetry are how soon what failed is tried again, at first and after many failures. The alert FettleReconcileErrors
	// goes by the second.
	firstRetry, longestRetry = 5 * time.Millisecond, time.Minute
)

// Services are what reconcilers share.
type Services struct {
	// Client reads from the manager's cache.
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Pause returns how long the controller must wait because an uninstall is in progress, and 0 if it may go on.
	Pause func(context.Context) (time.Duration, error)
	// Budget bounds writes into objects that all nodes watch. Nil: there is no bound.
	Budget *status.Budget
	// Namespace is the controller's own, where the Secrets and ConfigMaps of cluster-wide objects are.
	Namespace string
}

// Status returns what writes the status of objects.
func (s Services) Status() status.Writer {
	return status.Writer{Client: s.Client, Recorder: s.Recorder, Budget: s.Budget}
}

// Row is one reconciler in the controller's table.
type Row struct {
	// Name says for people what the reconciler looks after.
	Name string
	// BeforeCRDs has it started before the CRDs of this release are served. It can watch no kind of Fettle's then.
	BeforeCRDs bool
	// Queues are what it works through. A reconciler that is switched off has none.
	Queues []Queue
	// Metrics are registered even if there is no queue.
	Metrics []prometheus.Collector
}

// Queue is a queue of names of objects, and what works through it.
type Queue struct {
	// Name is unique: controller-runtime's logs and metrics have it as the controller.
	Name string
	// Watches and Sources fill the queue.
	Watches []Watch
	Sources []source.Source
	// Workers is how many objects are reconciled side by side; 0 is one.
	Workers int
	// DuringUninstall has the queue served even while an uninstall is in progress.
	DuringUninstall bool
	Reconciler      reconcile.Reconciler
}

// Watch is a kind of objects whose changes fill a queue. The controller must be allowed to list and watch it.
type Watch struct {
	// Object is an empty object of the kind. If it is a [metav1.PartialObjectMetadata], nothing but metadata is read.
	Object client.Object
	// Handler turns a change into names of objects; nil is the name of the changed object itself.
	Handler handler.EventHandler
	// Predicates let changes through that all of them let through.
	Predicates []predicate.Predicate
}

// Register adds the queues of a row to the manager.
func (r Row) Register(mgr manager.Manager, pause func(context.Context) (time.Duration, error)) error {
	var errs []error
	for _, q := range r.Queues {
		if err := q.register(mgr, pause); err != nil {
			errs = append(errs, fmt.Errorf("reconciler of %s: %w", r.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (q Queue) register(mgr manager.Manager, pause func(context.Context) (time.Duration, error)) error {
	b := builder.ControllerManagedBy(mgr).Named(q.Name).WithOptions(q.options())
	for _, w := range q.Watches {
		let := builder.WithPredicates(w.Predicates...)
		switch {
		case w.Handler != nil:
			b = b.Watches(w.Object, w.Handler, let)
		case q.kinds() > 1:
			b = b.Watches(w.Object, &handler.EnqueueRequestForObject{}, let)
		default: // controller-runtime logs the kind
			b = b.For(w.Object, let)
		}
	}
	for _, s := range q.Sources {
		b = b.WatchesRawSource(s)
	}
	return b.Complete(q.Handler(pause))
}

func (q Queue) options() ctrlcontroller.Options {
	return ctrlcontroller.Options{
		MaxConcurrentReconciles: q.Workers, NewQueue: newQueue,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, longestRetry),
	}
}

// Handler returns the reconciler as it runs: while pause says to wait it does nothing and comes back afterwards, unless it also works
// during an uninstall.
func (q Queue) Handler(pause func(context.Context) (time.Duration, error)) reconcile.Reconciler {
	if q.DuringUninstall {
		return q.Reconciler
	}
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if wait, err := pause(ctx); err != nil || wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, err
		}
		return q.Reconciler.Reconcile(ctx, req)
	})
}

// kinds returns how many kinds of objects are named in the queue.
func (q Queue) kinds() (n int) {
	for _, w := range q.Watches {
		if w.Handler == nil {
			n++
		}
	}
	return n
}

// Scheme returns the kinds that the controller and the uninstall read and write.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(
		clientgoscheme.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme),
	)
	return scheme, err
}

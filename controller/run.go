// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/bitstream"
	"github.com/fettle-dev/fettle/controller/certs"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Controller is one replica.
type Controller struct {
	// Config reaches the API server.
	Config *rest.Config
	// Options are the admin's.
	Options Options
	// CRDs are the files to apply.
	CRDs fs.FS
	// Validate is the webhook's judgement.
	Validate func(runtime.Object) field.ErrorList
	// Registry takes the metrics. What is served is controller-runtime's registry, so that is the one to give.
	Registry prometheus.Registerer
	// Clock is the time.
	Clock clock.WithTicker
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

// Run serves until ctx ends or the leader's Lease is lost, which is an error: the process must end then.
func (c Controller) Run(ctx context.Context) error {
	if err := c.Options.Validate(); err != nil {
		return err
	}
	m, err := newMetrics(c.Registry)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	direct, err := client.New(c.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	changed := make(chan event.TypedGenericEvent[*webhookConfig], 1)
	keeper := c.keeper(direct, m, changed)
	mgr, err := c.manager(scheme, keeper)
	if err != nil {
		return err
	}
	puller, registry, done, err := c.registry()
	if err != nil {
		return err
	}
	defer done()
	pause := leasePause{
		reader: direct, clock: c.Clock, started: c.Clock.Now(),
		key: client.ObjectKey{Namespace: c.Options.Namespace, Name: UninstallLease},
	}
	policies := &trustPolicies{reader: mgr.GetClient(), cache: trust.NewCache(c.Options.PublicTrustRoot)}
	faults := &volumeFaults{}
	if c.Options.Webhook {
		err = c.addWebhook(mgr, m, keeper, changed)
	}
	err = errors.Join(
		err,
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("ping", healthz.Ping),
		newClassReconciler(mgr, m, c.Options.Classes, pause).register(mgr),
		mgr.Add(&bootstrap{
			client: direct, recorder: mgr.GetEventRecorder(Name), metrics: m, files: c.CRDs, manage: c.Options.ManageCRDs, clock: c.Clock,
			then: func() error {
				return errors.Join(
					newNodeReconciler(mgr, m, c.Clock, pause).register(mgr),
					newBitstreamReconciler(mgr, m, c.Clock, pause, registry, c.Options).register(mgr),
					newTrustReconciler(mgr, c.Clock, pause, policies).register(mgr),
					newCacheReconciler(mgr, m, c.Clock, pause, puller, policies, faults, c.Options).register(mgr),
					newPresetReconciler(mgr, c.Clock, pause, c.Options).register(mgr),
					newLackReconciler(mgr, m).register(mgr),
					newShippedReconciler(mgr, pause, c.Options.PresetVendors).register(mgr),
					newVolumesReconciler(mgr, pause, faults, c.Options).register(mgr),
				)
			},
		}),
	)
	if err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	return mgr.Start(ctx)
}

// registry is where kernel caches and bitstreams are read from. Done removes what is left of the latter.
func (c Controller) registry() (puller *artifact.Client, registry bitstream.Registry, done func(), err error) {
	config := c.Options.Registries
	config.UserAgent = Name
	config.Tries = 2 // the queue tries again, and others wait
	puller, err = artifact.NewClient(config)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("registries: %w", err)
	}
	dir, done := c.Options.ScratchDir, func() {}
	if dir == "" {
		if dir, err = os.MkdirTemp("", Name+"-"); err != nil {
			return nil, nil, nil, fmt.Errorf("make a directory to read bitstreams by way of: %w", err)
		}
		done = func() { _ = os.RemoveAll(dir) }
	}
	return puller, bitstream.NewPuller(puller, dir), done, nil
}

// addWebhook adds what every replica does for the webhook, and the leader's care for its configuration.
func (c Controller) addWebhook(
	mgr manager.Manager, m *metrics, keeper *certs.Keeper, changed <-chan event.TypedGenericEvent[*webhookConfig],
) error {
	bundle := &bundleReconciler{
		client: mgr.GetClient(), namespace: c.Options.Namespace, state: keeper.State, changed: changed,
	}
	mgr.GetWebhookServer().Register(webhook.Path, &admission.Webhook{Handler: webhook.Handler{
		Validate: c.Validate,
		Refer:    references{reader: mgr.GetClient()}.check,
		Observe:  func(resource, verdict string) { m.reviews.WithLabelValues(resource, verdict).Inc() },
	}})
	return errors.Join(
		mgr.AddReadyzCheck("certificate", keeper.Ready),
		mgr.Add(keeper),
		bundle.register(mgr),
	)
}

// keeper makes the keeper of the webhook's certificate, which passes word of new authorities on without waiting for a reader.
func (c Controller) keeper(
	direct client.Client, m *metrics, changed chan<- event.TypedGenericEvent[*webhookConfig],
) *certs.Keeper {
	host := Name + "." + c.Options.Namespace
	return &certs.Keeper{
		Client: direct, Clock: c.Clock,
		Secret: client.ObjectKey{Namespace: c.Options.Namespace, Name: TLSSecret},
		Names:  []string{host + ".svc", host + ".svc.cluster.local"},
		Changed: func(state *certs.State) {
			m.certExpiry.Set(float64(state.Expiry().Unix()))
			word := &webhookConfig{ObjectMeta: metav1.ObjectMeta{Name: WebhookConfiguration}}
			select {
			case changed <- event.TypedGenericEvent[*webhookConfig]{Object: word}:
			default: // a word is waiting already, and its reader will see the newest state
			}
		},
	}
}

// manager makes the controller-runtime manager: caches, servers and the election.
func (c Controller) manager(scheme *runtime.Scheme, keeper *certs.Keeper) (manager.Manager, error) {
	kept, err := cacheOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme:                        scheme,
		Logger:                        klog.Background(),
		Metrics:                       server.Options{BindAddress: c.Options.MetricsAddress},
		Cache:                         kept,
		HealthProbeBindAddress:        c.Options.ProbeAddress,
		LeaderElection:                true,
		LeaderElectionID:              Name,
		LeaderElectionNamespace:       c.Options.Namespace,
		LeaderElectionReleaseOnCancel: true,
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{
			Port: c.Options.WebhookPort,
			TLSOpts: []func(*tls.Config){func(t *tls.Config) {
				t.MinVersion = tls.VersionTLS13
				t.GetCertificate = keeper.GetCertificate
			}},
		}),
		// The names are distinct by reading; the check would only keep a process from running a second replica.
		Controller: config.Controller{CacheSyncTimeout: 2 * time.Minute, SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// cacheOptions keep the manager's memory to what is read.
func cacheOptions() (cache.Options, error) {
	ofCaches, err := labels.NewRequirement(volumes.UIDLabel, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select the volumes of caches: %w", err)
	}
	owned := cache.ByObject{Label: labels.NewSelector().Add(*ofCaches)}
	return cache.Options{
		DefaultTransform: trimmed,
		ByObject: map[client.Object]cache.ByObject{
			&webhookConfig{}:                {Field: fields.OneTermEqualSelector("metadata.name", WebhookConfiguration)},
			&corev1.PersistentVolumeClaim{}: owned,
			&batchv1.Job{}:                  owned,
		},
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reclaims"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/stacks"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
)

const (
	namespace = "fettle-system"
	// checkNamespace is where claims are checked.
	checkNamespace = "fettle-selftest"
	// driverNamespace is where drivers are run.
	driverNamespace = "fettle-drivers"
)

// cluster is an API server with the namespace of a controller.
type cluster struct {
	config *rest.Config
	client client.Client // not cached
	// registry is where bitstreams are read from.
	registry *fpgaregistry.Registry
	// images is the same registry, where kernel caches are.
	images *signed.Registry
}

// replica is a running controller.
type replica struct {
	registry *prometheus.Registry
	// probes is the address of the controller's probes.
	probes string
}

// TestAPI runs the controller against a real API server; its parts share one to save time, and each cleans up after itself.
func TestAPI(t *testing.T) {
	t.Run("kernel caches in volumes", testVolumes)
	// Endpoint routing lets the API server reach the webhook's Service without a kube-proxy.
	c := newCluster(t, map[string]string{"enable-aggregator-routing": "true"})
	t.Run("CRDs", c.testCRDs)
	t.Run("shipped presets", c.testShipped)
	foreign := c.createForeignClass(t)
	left := c.testTaintsOfDeletedPolicy(t)
	r := c.start(t, allClasses())
	waits := c.waitingPod(t)
	t.Run("health", func(t *testing.T) { testHealth(t, r) })
	t.Run("foreign class", func(t *testing.T) { c.testForeignClass(t, r, foreign) })
	t.Run("a reconciler of one's own", func(t *testing.T) { c.testCounter(t, r) })
	t.Run("classes", c.testClasses)
	t.Run("classes of parts", c.testPartClasses)
	t.Run("nodes", c.testNodes)
	t.Run("prune", c.testPrune)
	t.Run("deleted claims", c.testDeletedClaims)
	t.Run("waiting claims", c.testWaitingClaims)
	t.Run("bitstream rules", c.testBitstreamRules)
	t.Run("bitstreams", func(t *testing.T) { c.testBitstreams(t, r) })
	t.Run("holders", c.testHolders)
	t.Run("signatures of bitstreams", c.testBitstreamTrust)
	t.Run("moving tag", c.testMovingTag)
	t.Run("pull secrets", c.testPullSecrets)
	t.Run("kernel cache rules", c.testCacheRules)
	t.Run("kernel caches' page", c.testCacheDocuments)
	t.Run("kernel caches", c.testCaches)
	t.Run("trust policies", c.testTrustPolicies)
	t.Run("kernel caches in an outage", c.testCacheOutage)
	t.Run("kernel caches on nodes", c.testCacheCounts)
	t.Run("kernel caches of the cluster", c.testClusterCaches)
	t.Run("status of volumes", c.testVolumesStatus)
	t.Run("partition policies", c.testPartitionPolicies)
	t.Run("taints of nodes", c.testNodeTaints)
	t.Run("taints of a deleted policy", left)
	t.Run("taints that end pods", c.testNoExecute)
	t.Run("what taints repel", c.testRepelled)
	t.Run("priority classes", c.testPriorityClasses)
	t.Run("devices for a higher priority", c.testReclaim)
	t.Run("stacks", c.testStacks)
	t.Run("presets", c.testPresets)
	t.Run("preset grants", c.testPresetGrants)
	t.Run("missing preset", func(t *testing.T) { c.testMissingPreset(t, r) })
	t.Run("waiting pods", func(t *testing.T) { c.testWaiting(t, waits) })
	t.Run("metrics", c.testMetrics)
	t.Run("webhook", func(t *testing.T) { c.testWebhook(t, r) })
	t.Run("second replica", func(t *testing.T) { c.testSecondReplica(t) })
	t.Run("uninstall refused", c.testUninstallRefused)
	t.Run("uninstall late", c.testUninstallDeadline)
	t.Run("uninstall forced", c.testUninstallForced)
}

// TestOlderAPI shows what is degraded on the oldest supported API, with a reason.
func TestOlderAPI(t *testing.T) {
	c := newCluster(t, map[string]string{"emulated-version": "1.34"})
	r := c.start(t, deviceclasses.Options{ExtendedResources: true})
	apitest.Eventually(t, func() string {
		return c.missingEvent("gpu.fettle.dev", "ExtendedResourceUnsupported")
	})
	apitest.Eventually(t, func() string {
		want := map[string]float64{
			"accelerator.fettle.dev": 1, "fpga.fettle.dev": 1, "gpu.fettle.dev": 1, "host.fettle.dev": 1, "amd.gpu.fettle.dev": 1,
			"intel.gpu.fettle.dev": 1, "nvidia.gpu.fettle.dev": 1,
		}
		return cmp.Diff(want, gauges(t, r.registry, "fettle_controller_extended_resource_unsupported"))
	})
}

// gauges returns the values of a gauge by the value of its one label.
func gauges(t *testing.T, registry prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// newCluster starts an API server and makes the controller's namespace.
func newCluster(t *testing.T, flags map[string]string) cluster {
	t.Helper()
	config := apitest.Start(t, flags)
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	images := signed.Start(t, true)
	c := cluster{config: config, client: direct, registry: images.Registry, images: images}
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: driverNamespace}})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: checkNamespace, Labels: map[string]string{"resource.kubernetes.io/admin-access": "true"},
	}})
	return c
}

// start runs a controller until the test ends.
func (c cluster) start(t *testing.T, classes deviceclasses.Options, presetVendors ...string) replica {
	t.Helper()
	probes, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := replica{registry: prometheus.NewRegistry(), probes: probes.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background()) // ends in the cleanup, before the API server
	done := make(chan error, 1)
	go func() {
		done <- controller.Controller{
			Config: c.config, CRDs: crds.Files, Registry: r.registry, Gatherer: r.registry, Clock: clock.RealClock{}, Table: withCounter,
			Probes: probes,
			Options: controller.Options{
				Namespace: namespace, Metrics: httpserver.Metrics{Address: "0"},
				ManageCRDs: true, Classes: classes, PresetVendors: presetVendors, ExplainWaitingPods: true,
				NodePartitions: true, NoExecuteTaintKeys: []string{noExecuteKey}, ReclaimGrace: reclaims.DefaultGrace,
				BitstreamInterval: time.Second, Registries: registry.Config{PlainHTTP: []string{c.registry.Host}},
				Checks:             stacks.Checks{Namespace: checkNamespace, Image: "registry.example/plugin:v1"},
				DriverNamespace:    driverNamespace,
				KernelCacheVolumes: volumes.Options{Enabled: true, Image: "registry.example/fettle:v1"},
			},
		}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controller ended with: %v", err)
		}
	})
	return r
}

func testHealth(t *testing.T, r replica) {
	for _, path := range []string{"/healthz", "/readyz"} {
		apitest.Eventually(t, func() string {
			answer, err := http.Get("http://" + r.probes + path) //nolint:noctx // a probe of our own
			if err != nil {
				return err.Error()
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return path + ": " + answer.Status
			}
			return ""
		})
	}
}

// testSecondReplica: one that is not elected is healthy.
func (c cluster) testSecondReplica(t *testing.T) {
	second := c.start(t, allClasses())
	testHealth(t, second)
}

// create creates an object and deletes it when the test ends.
func (c cluster) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), apitest.Patience())
		defer cancel()
		if err := client.IgnoreNotFound(c.client.Delete(ctx, object)); err != nil {
			t.Errorf("clean up %T %s: %v", object, object.GetName(), err)
		}
	})
}

// missingEvent returns why there is no Event with the reason about the cluster object.
func (c cluster) missingEvent(name, reason string) string {
	ctx, cancel := context.WithTimeout(context.Background(), apitest.Patience())
	defer cancel()
	var list eventsv1.EventList
	if err := c.client.List(ctx, &list); err != nil {
		return err.Error()
	}
	var seen []string
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == reason && e.ReportingController == names.Controller {
			return ""
		}
		seen = append(seen, e.Regarding.Name+" "+e.Reason)
	}
	return "no Event " + reason + " about " + name + ", only: " + strings.Join(seen, ", ")
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"path/filepath"
	"regexp"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	crfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/crd"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/kubeletplugin"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// described matches the name in the text of a description, which has no other way to it.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)"`)

func names(t *testing.T, into map[string]string, all ...prometheus.Collector) {
	t.Helper()
	for _, c := range all {
		descs := make(chan *prometheus.Desc)
		go func() { c.Describe(descs); close(descs) }()
		for d := range descs {
			found := described.FindStringSubmatch(d.String())
			if found == nil {
				t.Fatalf("a description without a name: %s", d)
			}
			into[found[1]] = d.String()
		}
	}
}

// registered returns the descriptions of the metrics that the plugin and the controller register, by their names.
func registered(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"up": "up"} // Prometheus' own
	dir := t.TempDir()
	plugin, err := kubeletplugin.New(t.Context(), kubeletplugin.Config{
		Node: nodefixture.Node, Namespace: "fettle-system", HostRoot: nodefixture.Expand(t, "empty"), PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "s"), HTTPAddress: "127.0.0.1:0",
		File: nodeconfig.File{}.WithDefaults(),
	}, kubeletplugin.Clients{
		Kube: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Events: events.NewFakeRecorder(1),
	}, "boot-1")
	check.Must(t, err)
	names(t, all, plugin.Metrics())
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	client := crfake.NewClientBuilder().WithScheme(scheme).Build()
	services := reconciler.Services{Client: client, Clock: clock.RealClock{}, Namespace: "fettle"}
	for _, row := range controller.Table(controller.Parts{
		Services: services, Options: controller.Options{ExplainWaitingPods: true},
		Policies: trustpolicies.NewReader(services.Client, nil, nil),
		Volumes:  volumes.NewPlanner(services, volumes.Options{Enabled: true}),
	}) {
		names(t, all, row.Metrics...)
	}
	registry, ok := crmetrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("controller-runtime's registry describes nothing")
	}
	names(t, all, webhook.NewServer(client, clock.RealClock{}, fstest.MapFS{}).Metrics()...)
	names(t, all, crd.NewInstaller(crd.Installation{}).Metrics(), registry)
	return all
}

var (
	// quoted matches what is no metric: values of labels, and names of labels after by and on.
	quoted = regexp.MustCompile(`"[^"]*"|(by|on|without|ignoring|group_left|group_right) *\([^)]*\)`)
	// metric matches metrics, and those that rules record.
	metric = regexp.MustCompile(`[a-z_:]*\b(?:fettle|controller_runtime|process|go)_[a-z0-9_:]+|\bup\b`)
	// ofHistogram matches the series of a histogram.
	ofHistogram = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// TestMetricsExist: every metric in a rule, a dashboard or an example is one that a program registers or a rule records.
func TestMetricsExist(t *testing.T) {
	known := registered(t)
	all := expressions(t)
	for _, r := range rules(t) {
		known[r.Record] = r.Record
		all["rule "+r.Alert+r.Record] = r.Expr
	}
	for _, e := range examples(t) {
		all["example "+e] = e
	}
	for where, expr := range all {
		found := metric.FindAllString(quoted.ReplaceAllString(expr, ""), -1)
		if len(found) == 0 {
			t.Errorf("%s: %s names no metric", where, expr)
		}
		for _, name := range found {
			if known[name] == "" && known[ofHistogram.ReplaceAllString(name, "")] == "" {
				t.Errorf("%s: no program registers %s", where, name)
			}
		}
	}
}

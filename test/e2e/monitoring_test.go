// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/prometheus"
)

// isMonitored has a real Prometheus scrape the plugin and the controller of the cluster.
func isMonitored() {
	It("answers every query of the dashboards with data, on a cluster that has what each asks about", answersDashboards,
		NodeTimeout(h.Patient(10*time.Minute)))
}

// answersDashboards makes everything happen that a dashboard shows. Then no query may be empty: neither without its "or vector(0)", which
// is for clusters where nothing of it has happened, nor where it groups by a label, or names its lines by one. A rate of 0 is an answer, so
// what counts must have counted.
func answersDashboards(ctx SpecContext) {
	f := startFPGAs(ctx)
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	server := startPrometheus(ctx)
	pod := newPod(ctx, ns, "watched", withTemplate("gpu"), onNode(gpuNode))
	running(ctx, pod)
	claim := onlyClaim(ctx, pod)
	device := results(claim)[0].Device
	makeNews(ctx, ns, &f)

	say("the metric names the pod, its container and its claim")
	who := fmt.Sprintf(`fettle_device_claim_info{node!="",pci_bus_id!="",device=%q,namespace=%q,claim=%q,pod=%q,container=%q}`,
		device, ns, claim.Name, pod.Name, main)
	eventuallyAnswered(ctx, server, who)
	for _, q := range dashboardQueries() {
		say("%s", q.where)
		for _, metric := range q.grouped() {
			eventuallyAnswered(ctx, server, metric)
		}
		for _, counter := range q.counters() {
			eventuallyAnswered(ctx, server, counter+" > 0")
		}
		eventuallyAnswered(ctx, server, q.expr, q.lines()...)
	}
	say("a pod waits, and a check is late")
	eventuallyAnswered(ctx, server, "fettle_controller_waiting_pods > 0")
	eventuallyAnswered(ctx, server, fmt.Sprintf("time() - fettle_controller_stack_check_due_timestamp_seconds{stack=%q} > 0", watchedStack))

	say("without the pod the metric is gone")
	Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	eventuallyGone(ctx, pod)
	Eventually(ctx, func(g Gomega) {
		samples, err := server.Query(ctx, who)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(samples).To(BeEmpty())
	}).Should(Succeed())
}

// watchedStack is a stack, and the class of its checks.
const watchedStack = "e2e-watched"

// makeNews has happen in a namespace what no cluster begins with: a stack with a check that is late, a pod that waits, a claim that is
// refused and one whose files are lost, a region that is programmed, a cache, registries that do not answer, and a kubelet that does not.
func makeNews(ctx context.Context, ns string, f *fpgas) {
	GinkgoHelper()
	lateCheck(ctx)
	newTemplate(ctx, ns, "many", spec(request("gpu", gpuClass, count(32))))
	waits := newPod(ctx, ns, "waits", withTemplate("many"))

	say("a region is programmed, and one is refused")
	r := f.regions(ctx, newFPGAClass) // specs before may have left something in the card's memory
	r.hold(ctx, "programs", 0)
	create(ctx, "fpgabitstreams", r.namespace, &v1alpha1.FPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: "unreachable"}, Spec: v1alpha1.FPGABitstreamSpec{Image: f.registry + "/team/nothing:v1"},
	})
	kernels.cache(ctx, ns, "unreachable", kernels.Host+"/team/nothing:v1")
	refused := v1alpha1.FPGAConfig{Bitstream: &v1alpha1.BitstreamSource{Name: "missing"}}
	missing := claimRegion("fpga-upgrade", 1, refused)
	tolerates(ctx, &missing, r.namespace)
	newTemplate(ctx, r.namespace, "missing", missing)
	refusedAtPrepare(ctx, newPod(ctx, r.namespace, "missing", withTemplate("missing")), "BitstreamUnusable", "does not exist")

	say("nodes fetch a cache ahead of claims, and have a store then")
	kernels.push(kernels.Registry, "team/news", "v1", mi300("news"))
	kernels.cache(ctx, ns, "news", kernels.Host+"/team/news:v1")

	say("the CDI files of a node are lost")
	newTemplate(ctx, ns, "placed", placedDisk())
	placed := newPod(ctx, ns, "placed", withTemplate("placed"), onNode(gpuNode))
	running(ctx, placed)
	_, err := h.OnNode(ctx, gpuNode, "sh", "-c", "find /var/run/cdi -mindepth 1 -delete")
	Expect(err).NotTo(HaveOccurred())
	eventuallyEvent(ctx, metav1.NamespaceDefault, "Node", gpuNode, "SpecRestored", onlyClaim(ctx, placed).Name)
	eventuallyUnschedulable(ctx, waits, noneLeft)

	say("the plugin cannot ask kubelet whose the devices are")
	plugin := pluginOf(ctx, gpuNode)
	Expect(h.StopComponent(ctx, gpuNode, "kubelet", true)).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		metrics, err := h.Metrics(ctx, plugin.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(metrics).To(HaveKey(`fettle_background_errors_total{source="claiminfo"}`))
	}).Should(Succeed())
	Expect(h.StartComponent(ctx, gpuNode, "kubelet")).To(Succeed())
}

// lateCheck makes a stack whose claims are checked every minute, of a class that has no device any more after the first check.
func lateCheck(ctx context.Context) {
	GinkgoHelper()
	newPartClass(ctx, watchedStack, partOf("gpu", ""))
	_, err := h.Apply(ctx, fmt.Sprintf(`
apiVersion: fettle.dev/v1alpha1
kind: AcceleratorStack
metadata: {name: %[1]s}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: %[2]s}}
  driver: {engine: Host}
  check: {deviceClassNames: [%[1]s], interval: 1m}
`, watchedStack, gpuNode))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.Kubectl(ctx, "delete", "acceleratorstack", watchedStack, "--wait")
		Expect(err).NotTo(HaveOccurred())
	})
	availableStack(ctx, watchedStack, gpuNode, "")
	class, err := h.Kube.ResourceV1().DeviceClasses().Get(ctx, watchedStack, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	class.Spec.Selectors = objects.Selectors("false")
	_, err = h.Kube.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// eventuallyAnswered waits until there is data, and each of its series has the labels.
func eventuallyAnswered(ctx context.Context, server *prometheus.Server, expr string, labels ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		samples, err := server.Query(ctx, expr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(samples).NotTo(BeEmpty(), expr)
		for _, s := range samples {
			for _, label := range labels {
				g.Expect(s.Metric[label]).NotTo(BeEmpty(), "label %s of %s", label, expr)
			}
		}
	}).Should(Succeed())
}

// startPrometheus starts a Prometheus that reads metrics through the API server, as the administrator.
func startPrometheus(ctx context.Context) *prometheus.Server {
	GinkgoHelper()
	program, err := exec.LookPath("prometheus")
	Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	file := func(name, path string, data []byte) string {
		if path != "" {
			return path
		}
		path = filepath.Join(dir, name)
		Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
		return path
	}
	target := prometheus.Target{
		CA: file("ca.crt", config.CAFile, config.CAData), Certificate: file("tls.crt", config.CertFile, config.CertData),
		Key: file("tls.key", config.KeyFile, config.KeyData),
	}
	var targets []prometheus.Target
	for job, component := range map[string]string{
		harness.Namespace + "/fettle-kubeletplugin": "kubeletplugin", "fettle-controller": "controller",
	} {
		pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=" + component,
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(pods.Items).NotTo(BeEmpty(), component)
		for i := range pods.Items {
			pod := &pods.Items[i]
			target.Job = job
			target.URL = fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", config.Host, pod.Namespace, pod.Name, harness.PluginPort)
			target.Labels = map[string]string{"namespace": pod.Namespace, "pod": pod.Name, "container": component}
			if component == "kubeletplugin" {
				target.Labels["node"] = pod.Spec.NodeName
			}
			targets = append(targets, target)
		}
	}
	server, err := prometheus.Start(program, dir, filepath.Join(h.Root, "deployments/helm/fettle/files/rules.yaml"), targets)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { AddReportEntry("the log of Prometheus", server.Stop()) })
	return server
}

// dashboardQuery is a query of a dashboard: what it is asked in, and the text that names its lines.
type dashboardQuery struct{ where, expr, legend string }

var (
	ofMetric = regexp.MustCompile(`[a-z_:]*\bfettle_[a-z0-9_:]+`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	inLegend = regexp.MustCompile(`\{\{ *([a-z_]+) *\}\}`)
)

// grouped are the metrics of the query with each label that it groups by: a label that no series has makes one group of all.
func (q *dashboardQuery) grouped() (all []string) {
	for _, metric := range ofMetric.FindAllString(q.expr, -1) {
		for _, by := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				all = append(all, fmt.Sprintf(`%s{%s!=""}`, metric, label))
			}
		}
	}
	return all
}

// counters are the metrics of the query that only grow.
func (q *dashboardQuery) counters() []string {
	return slices.DeleteFunc(ofMetric.FindAllString(q.expr, -1), func(metric string) bool {
		return !strings.HasSuffix(metric, "_total") && !strings.HasSuffix(metric, "_count") && !strings.HasSuffix(metric, "_bucket")
	})
}

// lines are the labels that name the lines of the query's panel.
func (q *dashboardQuery) lines() (labels []string) {
	for _, found := range inLegend.FindAllStringSubmatch(q.legend, -1) {
		labels = append(labels, found[1])
	}
	return labels
}

// dashboardQueries lists the queries of the chart's dashboards with every node and namespace. None has an answer where there is no data.
func dashboardQueries() (queries []dashboardQuery) {
	GinkgoHelper()
	paths, err := filepath.Glob(filepath.Join(h.Root, "deployments/helm/fettle/files/dashboards/*.json"))
	Expect(err).NotTo(HaveOccurred())
	Expect(paths).NotTo(BeEmpty())
	variable := regexp.MustCompile(`\$[a-z]+`)
	for _, path := range paths {
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ RefID, Expr, LegendFormat string }
			}
		}
		data, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(json.Unmarshal(data, &d)).To(Succeed())
		for _, p := range d.Panels {
			for _, t := range p.Targets {
				expr := strings.TrimSuffix(variable.ReplaceAllString(t.Expr, ".+"), " or vector(0)")
				Expect(expr).NotTo(ContainSubstring("vector("), "it would be an answer where there is no data")
				where := fmt.Sprintf("%s, %s, %s", filepath.Base(path), p.Title, t.RefID)
				queries = append(queries, dashboardQuery{where: where, expr: expr, legend: t.LegendFormat})
			}
		}
	}
	Expect(queries).NotTo(BeEmpty())
	return queries
}

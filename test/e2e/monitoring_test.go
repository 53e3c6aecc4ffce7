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
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/prometheus"
)

// isMonitored has a real Prometheus scrape the plugin and the controller of the cluster.
func isMonitored() {
	It("answers every query of the dashboards with data", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
		server := startPrometheus(ctx)
		pod := newPod(ctx, ns, "watched", withTemplate("gpu"))
		running(ctx, pod)
		claim := onlyClaim(ctx, pod)
		device := results(claim)[0].Device

		say("the metric names the pod, its container and its claim")
		who := fmt.Sprintf(`fettle_device_claim_info{node!="",pci_bus_id!="",device=%q,namespace=%q,claim=%q,pod=%q,container=%q}`,
			device, ns, claim.Name, pod.Name, main)
		eventuallyAnswered(ctx, server, who)
		for where, expr := range dashboardQueries() {
			say("%s", where)
			eventuallyAnswered(ctx, server, expr)
		}

		say("without the pod the metric is gone")
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
		Eventually(ctx, func(g Gomega) {
			samples, err := server.Query(ctx, who)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(samples).To(BeEmpty())
		}).Should(Succeed())
	}, NodeTimeout(h.Patient(10*time.Minute)))
}

func eventuallyAnswered(ctx context.Context, server *prometheus.Server, expr string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		samples, err := server.Query(ctx, expr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(samples).NotTo(BeEmpty(), expr)
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

// dashboardQueries lists the queries of the chart's dashboards with every node and namespace, by where they are.
func dashboardQueries() map[string]string {
	GinkgoHelper()
	paths, err := filepath.Glob(filepath.Join(h.Root, "deployments/helm/fettle/files/dashboards/*.json"))
	Expect(err).NotTo(HaveOccurred())
	Expect(paths).NotTo(BeEmpty())
	variable := regexp.MustCompile(`\$[a-z]+`)
	queries := map[string]string{}
	for _, path := range paths {
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ RefID, Expr string }
			}
		}
		data, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(json.Unmarshal(data, &d)).To(Succeed())
		for _, p := range d.Panels {
			for _, t := range p.Targets {
				expr := variable.ReplaceAllString(t.Expr, ".*")
				if strings.Contains(expr, "fettle_device_claim_info") {
					expr = strings.TrimSuffix(expr, " or vector(0)") // here it has to be more than nothing
				}
				queries[fmt.Sprintf("%s, %s, %s", filepath.Base(path), p.Title, t.RefID)] = expr
			}
		}
	}
	return queries
}

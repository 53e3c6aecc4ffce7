// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/harness"
)

// trapPort is where traps listen.
const trapPort = "5999"

// trap is a pod that notes who connects to it.
type trap struct {
	*corev1.Pod

	// host is where it listens.
	host string
}

// newTrap starts a trap on a node: at the node's own address, or at that of a pod.
func newTrap(ctx context.Context, namespace, name, node string, hostNetwork bool) trap {
	GinkgoHelper()
	pod := newPod(ctx, namespace, name, onNode(node), func(p *corev1.Pod) {
		p.Spec.HostNetwork = hostNetwork
		p.Spec.Containers[0].Command = []string{"sh", "-c", ": > /tmp/contacts; exec nc -ll -p " + trapPort + " -e sh -c 'echo >> /tmp/contacts'"}
	})
	running(ctx, pod)
	pod, err := h.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return trap{pod, net.JoinHostPort(pod.Status.PodIP, trapPort)}
}

// expectUntouched shows that nobody connected: one connection of the pod's own is the first.
func (t trap) expectUntouched(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		out, err := h.Exec(ctx, t.Namespace, t.Name, main, "nc -w 1 "+t.Status.PodIP+" "+trapPort+" < /dev/null; wc -l < /tmp/contacts")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(out)).NotTo(Equal("0"))
	}).Should(Succeed())
	Expect(strings.TrimSpace(inside(ctx, t.Pod, main, "wc -l < /tmp/contacts"))).To(Equal("1"), "contacts of %s", t.host)
}

// podRanges are the chart's values with the ranges of the nodes' pods, which no object of this cluster tells.
func podRanges(ctx context.Context) harness.Values {
	GinkgoHelper()
	var ranges []string
	for _, node := range h.NodeNames() {
		plugin, err := h.PluginPod(ctx, node)
		Expect(err).NotTo(HaveOccurred())
		address, err := netip.ParseAddr(plugin.Status.PodIP)
		Expect(err).NotTo(HaveOccurred())
		ranges = append(ranges, netip.PrefixFrom(address, 24).Masked().String())
	}
	return harness.Values{"bitstreams": harness.Values{"registries": harness.Values{"clusterCIDRs": ranges}}}
}

// contacts has a tenant name what she does not reach: nobody is contacted. Of what may be contacted and is no registry she reads
// one reason.
func (k *kernelCaches) contacts(ctx SpecContext) {
	ns, others := newNamespace(ctx, nil), newNamespace(ctx, nil)
	ofNode, ofPod := newTrap(ctx, others, "node", mixedNode, true), newTrap(ctx, others, "pod", gpuNode, false)
	inSilence := newTrap(ctx, others, "unasked", mixedNode, false)
	say("no policy is for it, and it is not contacted")
	k.cache(ctx, ns, "unasked", inSilence.host+"/team/cache:v1")
	k.condition(ctx, ns, "unasked", v1alpha1.ConditionResolved, metav1.ConditionFalse, "no TrustPolicy is for this repository")
	inSilence.expectUntouched(ctx)

	say("the policies would let everything pass")
	k.policy(ctx, "e2e-everything", nil, func(p *v1alpha1.TrustPolicySpec) {
		p.Mode, p.Images, p.Namespaces = v1alpha1.VerificationSkip, []string{"**"}, []string{ns}
	})
	for name, host := range map[string]string{
		"node": ofNode.host, "pod": ofPod.host, "service": "10.96.0.1", "loopback": "127.0.0.1:8081", "metadata": "169.254.169.254",
		"name": "kubernetes.default.svc",
	} {
		k.cache(ctx, ns, name, host+"/team/cache:v1")
		k.condition(ctx, ns, name, v1alpha1.ConditionResolved, metav1.ConditionFalse, host, "bitstreams.registries.allowedDestinations")
	}
	ofNode.expectUntouched(ctx)
	ofPod.expectUntouched(ctx)

	say("one reason for all that is no registry")
	texts := map[string]bool{}
	for name, start := range map[string]func(*httptest.Server){
		"page": (*httptest.Server).Start, "foreign": (*httptest.Server).StartTLS, "closed": func(s *httptest.Server) { s.Start(); s.Close() },
	} {
		host := k.serve(ctx, start)
		k.cache(ctx, ns, name, host+"/team/cache:v1")
		k.condition(ctx, ns, name, v1alpha1.ConditionResolved, metav1.ConditionFalse, host, "did not answer as a registry does")
		k.status(ctx, ns, name, func(_ Gomega, s *v1alpha1.GPUKernelCacheStatus) {
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionResolved)
			texts[c.Reason+" "+strings.ReplaceAll(c.Message, host, "HOST")] = true
		})
	}
	Expect(texts).To(HaveLen(1), "what a tenant reads of a page, a closed port and a foreign certificate")
}

// serve starts a server of pages, as start does it, at an address that the cluster reaches, and returns the address.
func (k *kernelCaches) serve(ctx context.Context, start func(*httptest.Server)) string {
	GinkgoHelper()
	host, _, err := net.SplitHostPort(k.Host)
	Expect(err).NotTo(HaveOccurred())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	Expect(err).NotTo(HaveOccurred())
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	Expect(s.Listener.Close()).To(Succeed())
	s.Listener = listener
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(s)
	DeferCleanup(s.Close)
	return listener.Addr().String()
}

// steal puts the manifest and the config of an image elsewhere into a repository, and no layer. It returns the manifest's digest.
func steal(ctx context.Context, host, repository, reference string, to *fpgaregistry.Registry, into string) string {
	GinkgoHelper()
	get := func(path string) (data []byte, contentType string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/v2/"+repository+path, http.NoBody)
		Expect(err).NotTo(HaveOccurred())
		r.Header.Set("Accept", fpgaregistry.ManifestType)
		resp, err := http.DefaultClient.Do(r)
		Expect(err).NotTo(HaveOccurred())
		defer resp.Body.Close()
		Expect(resp.StatusCode).To(Equal(http.StatusOK), path)
		data, err = io.ReadAll(resp.Body)
		Expect(err).NotTo(HaveOccurred())
		return data, resp.Header.Get("Content-Type")
	}
	manifest, mediaType := get("/manifests/" + reference)
	m, err := artifact.ParseManifest(manifest)
	Expect(err).NotTo(HaveOccurred())
	config, _ := get("/blobs/" + m.Config.Digest.String())
	to.Blob(GinkgoTB(), into, m.Config.MediaType, config)
	to.Raw(GinkgoTB(), into, m.Digest.String(), mediaType, manifest)
	return m.Digest.String()
}

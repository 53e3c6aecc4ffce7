// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/objects"
)

func refusesWrongConfigs() {
	It("refuses a wrong configuration in a claim, a template or a class, with the field's path", wrongConfigs)
	It("refuses at Prepare, with an Event and a condition, what slipped past admission", slippedThrough)
	It("lets claims of other drivers pass untouched, with the webhook up and down", later("takes the webhook down and up again"), otherDrivers)
	It("warns of a configuration for another driver when it is applied, and in an Event at Prepare", later("unit tests show every warning"),
		ignoredConfig)
	It("keeps a class to its allowed namespaces, at admission and at Prepare", allowedNamespaces)
}

func wrongConfigs(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	for _, c := range []struct{ name, parameters, path, says string }{
		{"unknown field", config("GPUConfig", `"sharing":{"strategie":"Exclusive"}`), "sharing.strategie", "unknown field"},
		{"wrong type", config("GPUConfig", `"sharing":{"strategy":7}`), "sharing.strategy", "must be a string"},
		{"bad enum", config("GPUConfig", `"sharing":{"strategy":"Sometimes"}`), "sharing.strategy", `"Sometimes"`},
		{"of another strategy", config("GPUConfig", `"sharing":{"strategy":"MPS","timeSlicing":{}}`), "sharing.timeSlicing", "is MPS"},
		{"wrong kind", `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfigs"}`, "kind", "GPUConfigs"},
		{"policy of a claim", config("GPUConfig", `"policy":{"allowedNamespaces":["default"]}`), "policy", "DeviceClass"},
		{"11 KiB", config("GPUConfig", `"sharing":{"strategy":"`+strings.Repeat("x", 11<<10)+`"}`), "", "10240"},
	} {
		say("%s", c.name)
		s := spec(request("gpu", gpuClass))
		s.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config("fettle.dev", c.parameters)}
		path := "devices.config[0].opaque.parameters"
		if c.path != "" {
			path += "." + c.path
		}
		object := metav1.ObjectMeta{Name: "wrong"}
		claim := &resourceapi.ResourceClaim{ObjectMeta: object, Spec: s}
		_, err := h.Kube.ResourceV1().ResourceClaims(ns).Create(ctx, claim, metav1.CreateOptions{})
		Expect(err).To(MatchError(And(ContainSubstring("spec."+path), ContainSubstring(c.says))), "claim")
		_, err = h.Kube.ResourceV1().ResourceClaimTemplates(ns).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: object, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: s},
		}, metav1.CreateOptions{})
		Expect(err).To(MatchError(And(ContainSubstring("spec.spec."+path), ContainSubstring(c.says))), "template")
		if c.name == "policy of a claim" {
			continue // which is where it belongs
		}
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "wrong.example.com"}}
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: s.Devices.Config[0].DeviceConfiguration}}
		_, err = h.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		classPath := strings.TrimPrefix(path, "devices.")
		Expect(err).To(MatchError(And(ContainSubstring("spec."+classPath), ContainSubstring(c.says))), "class")
	}
}

// ignoredConfig: a class has the name of another driver's and gives our devices. What a claim asks of that driver happens nowhere.
func ignoredConfig(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newClass(ctx, "e2e.nvidia.com", gpuClass)
	const claim = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec:
  devices:
    requests: [{name: gpu, exactly: {deviceClassName: e2e.nvidia.com}}]
    config:
    - requests: [gpu]
      opaque:
        driver: gpu.nvidia.com
        parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS}}
`
	const says = "the parameters for driver gpu.nvidia.com (GpuConfig: sharing.strategy) have no effect, because the devices of request gpu " +
		"are of driver fettle.dev"
	warned, err := warnedOf(ctx, ns, claim)
	Expect(err).NotTo(HaveOccurred())
	Expect(warned).To(ContainElement(ContainSubstring("spec.devices.config[0].opaque: " + says)))
	say("a misspelt attribute")
	misspelt := strings.NewReplacer("name: shared", "name: misspelt", "e2e.nvidia.com", `e2e.nvidia.com, selectors: [{cel: {expression: `+
		`'device.attributes["fettle.dev"].vender == "nvidia"'}}]`).Replace(claim)
	warned, err = warnedOf(ctx, ns, misspelt)
	Expect(err).NotTo(HaveOccurred())
	Expect(warned).To(ContainElement(ContainSubstring("no device of fettle.dev has vender")))
	say("at Prepare")
	running(ctx, newPod(ctx, ns, "user", withClaim("shared")))
	eventuallyEvent(ctx, ns, "ResourceClaim", "shared", "ConfigIgnored", "status.allocation.devices.config[0]: "+says)
}

// warnedOf creates a claim and returns the warnings of the API server, which kubectl prints.
func warnedOf(ctx context.Context, namespace, manifest string) ([]string, error) {
	GinkgoHelper()
	claim := &resourceapi.ResourceClaim{}
	Expect(yaml.UnmarshalStrict([]byte(manifest), claim)).To(Succeed())
	var warned warnings
	settings, err := clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	settings.WarningHandler = &warned
	client, err := kubernetes.NewForConfig(settings)
	Expect(err).NotTo(HaveOccurred())
	_, err = client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
	return warned, err
}

// warnings keeps the warnings of one client.
type warnings []string

// HandleWarningHeader is called for each warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// withoutWebhook runs something while no webhook does.
func withoutWebhook(ctx context.Context, do func()) {
	GinkgoHelper()
	scale(ctx, 0)
	defer scale(ctx, 2)
	do()
}

// scale sets how many webhooks there are and waits until that is so and the Service knows.
func scale(ctx context.Context, replicas int32) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := h.Kube.AppsV1().Deployments(harness.Namespace).Patch(ctx, "fettle-webhook", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}, "scale")
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Poll(ctx, fmt.Sprintf("%d webhooks", replicas), soon, func(ctx context.Context) error {
		webhooks := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=webhook"}
		pods, err := h.Kube.CoreV1().Pods(harness.Namespace).List(ctx, webhooks)
		if err != nil {
			return err
		}
		if len(pods.Items) != int(replicas) {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		for i := range pods.Items {
			if err := h.PodDone(ctx, harness.Namespace, pods.Items[i].Name, corev1.PodRunning); err != nil {
				return err
			}
		}
		return endpoints(ctx, int(replicas))
	})).To(Succeed())
}

// endpoints returns nil once the webhook's Service has so many ready addresses.
func endpoints(ctx context.Context, want int) error {
	list, err := h.Kube.DiscoveryV1().EndpointSlices(harness.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=fettle-webhook",
	})
	if err != nil {
		return err
	}
	have := 0
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				have += len(e.Addresses)
			}
		}
	}
	if have != want {
		return fmt.Errorf("the Service has %d ready addresses", have)
	}
	return nil
}

// eventuallyRefused waits until a claim says that it was refused at Prepare, and why.
func eventuallyRefused(ctx context.Context, pod *corev1.Pod, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		claims := claimsOf(ctx, pod)
		g.Expect(claims).To(HaveLen(1), "a template's claim is made soon")
		claim := slices.Collect(maps.Values(claims))[0]
		g.Expect(claim.Status.Devices).NotTo(BeEmpty())
		d := claim.Status.Devices[0]
		g.Expect(d.Driver).To(Equal("fettle.dev"))
		c := meta.FindStatusCondition(d.Conditions, "Prepared")
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(c.Reason).To(Equal(reason))
		g.Expect(c.Message).To(ContainSubstring(text))
	}).Should(Succeed())
	explainedAtNight(ctx, pod.Namespace, reason)
	eventuallyEvent(ctx, pod.Namespace, "ResourceClaim", onlyClaim(ctx, pod).Name, reason, text)
}

func slippedThrough(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	s := spec(request("gpu", gpuClass))
	s.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		objects.Config("fettle.dev", config("GPUConfig", `"sharing":{"strategie":"Exclusive"}`)),
	}
	withoutWebhook(ctx, func() { newClaim(ctx, ns, "slipped", s) })
	pod := newPod(ctx, ns, "refused", withClaim("slipped"))
	eventuallyRefused(ctx, pod, "ConfigInvalid", "sharing.strategie")
	Expect(h.PodDone(ctx, ns, pod.Name, corev1.PodPending)).To(Succeed(), "the pod waits, and says for what")
	node := claimNode(onlyClaim(ctx, pod))
	Expect(claimFiles(ctx, node, onlyClaim(ctx, pod))).To(BeEmpty(), "a refused claim leaves nothing")
	plugin, err := h.PluginPod(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	metrics, err := h.Metrics(ctx, plugin.Name)
	Expect(err).NotTo(HaveOccurred())
	Expect(metrics).To(HaveKey(`fettle_claim_refusals_total{reason="ConfigInvalid"}`))
}

func otherDrivers(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	other := spec(request("nic", "nic.example.com"))
	other.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		objects.Config("nic.example.com", `{"kind":"GPUConfig","sharing":7}`),
		objects.Config("gpu.example.com", config("GPUConfig", `"sharing":{"strategie":1}`)),
	}
	class := objects.Config("nic.example.com", `{"policy":{"allowedNamespaces":7}}`)
	pass := func(name string) {
		newClaim(ctx, ns, name, other)
		newTemplate(ctx, ns, name, other)
		newClass(ctx, name+".example.com", gpuClass, class)
		Expect(readClaim(ctx, ns, name).Spec.Devices.Config).To(Equal(other.Devices.Config))
	}
	pass("up")
	withoutWebhook(ctx, func() { pass("down") })
}

func allowedNamespaces(ctx SpecContext) {
	allowed, denied := newNamespace(ctx, nil), newNamespace(ctx, nil)
	policy := func(namespace string) resourceapi.DeviceClaimConfiguration {
		return objects.Config("fettle.dev", config("GPUConfig", fmt.Sprintf(`"policy":{"allowedNamespaces":[%q]}`, namespace)))
	}
	newClass(ctx, "team.example.com", gpuClass, policy(allowed))
	newClass(ctx, "open.example.com", gpuClass)
	team, late := spec(request("gpu", "team.example.com")), spec(request("gpu", "open.example.com"))

	newTemplate(ctx, allowed, "gpu", team)
	pod := newPod(ctx, allowed, "allowed", withTemplate("gpu"))

	say("a claim in another namespace is refused when it is written")
	// The API server's policies follow a new class within moments.
	Expect(h.Poll(ctx, "the class's policy", soon, func(ctx context.Context) error {
		object := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "denied-"}, Spec: team}
		_, err := h.Kube.ResourceV1().ResourceClaims(denied).Create(ctx, object, metav1.CreateOptions{})
		if err == nil {
			return errors.New("the claim was admitted")
		}
		Expect(err).To(MatchError(And(
			ContainSubstring("team.example.com"), ContainSubstring(denied), Not(ContainSubstring(allowed)))))
		return nil
	})).To(Succeed())

	say("and at Prepare, where the class was closed only after the claim was written")
	newClaim(ctx, denied, "late", late)
	newClaim(ctx, denied, "forged", late)
	class, err := h.Kube.ResourceV1().DeviceClasses().Get(ctx, "open.example.com", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: policy(allowed).DeviceConfiguration}}
	_, err = h.Kube.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
	refused := newPod(ctx, denied, "refused", withClaim("late"))
	eventuallyRefused(ctx, refused, "NamespaceNotAllowed", denied)

	say("and where the namespace's own administrator writes an allocation without the class's policy")
	forges(ctx, denied, "forged", freeDevice(ctx, onlyClaim(ctx, pod), onlyClaim(ctx, refused)))
	eventuallyRefused(ctx, newPod(ctx, denied, "forged", withClaim("forged")), "NamespaceNotAllowed", "DeviceClass[open.example.com]")
	running(ctx, pod)
	hasExactly(ctx, pod, main, devicesOf(results(onlyClaim(ctx, pod)))...)
}

// freeDevice is a device of a pool that none of the claims holds.
func freeDevice(ctx context.Context, claims ...*resourceapi.ResourceClaim) resourceapi.DeviceRequestAllocationResult {
	GinkgoHelper()
	taken := map[string]bool{}
	var free resourceapi.DeviceRequestAllocationResult
	for _, c := range claims {
		free = results(c)[0]
		taken[free.Pool+"/"+free.Device] = true
	}
	devices, err := poolDevices(ctx, free.Pool)
	Expect(err).NotTo(HaveOccurred())
	for _, d := range devices {
		if !taken[free.Pool+"/"+d.Name] {
			free.Device = d.Name
			return free
		}
	}
	Fail("pool " + free.Pool + " has no other device")
	return free
}

// forges has a tenant allocate a claim, as it can with a Role in its own namespace where nothing stops it. Something does; so it gets the
// right that schedulers have, and the allocation stands.
func forges(ctx context.Context, ns, claim string, device resourceapi.DeviceRequestAllocationResult) {
	GinkgoHelper()
	rule := rbacv1.PolicyRule{
		APIGroups: []string{resourceapi.GroupName}, Resources: []string{"resourceclaims", "resourceclaims/status"}, Verbs: []string{"*"},
	}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory-" + ns}}
	object := metav1.ObjectMeta{Name: "mallory-" + ns}
	_, err := h.Kube.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: object, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	_, err = h.Kube.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: object, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: object.Name},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	settings, err := clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	settings.Impersonate = rest.ImpersonationConfig{UserName: object.Name, Groups: []string{"system:authenticated"}}
	mallory, err := kubernetes.NewForConfig(settings)
	Expect(err).NotTo(HaveOccurred())
	var c *resourceapi.ResourceClaim
	Eventually(ctx, func() (err error) { // the Role takes a moment
		c, err = mallory.ResourceV1().ResourceClaims(ns).Get(ctx, claim, metav1.GetOptions{})
		return err
	}).Should(Succeed())

	// The scheduler reserves no claim for a pod that lacks what it writes itself.
	c.Finalizers = append(c.Finalizers, resourceapi.Finalizer)
	c, err = mallory.ResourceV1().ResourceClaims(ns).Update(ctx, c, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
	node, _, _ := strings.Cut(device.Pool, "/")
	c.Status.Allocation = &resourceapi.AllocationResult{
		AllocationTimestamp: new(metav1.Now()),
		Devices:             resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{device}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	write := func() error {
		_, err := mallory.ResourceV1().ResourceClaims(ns).UpdateStatus(ctx, c, metav1.UpdateOptions{})
		return err
	}
	err = write()
	Expect(err).To(Or(Satisfy(apierrors.IsForbidden), Satisfy(apierrors.IsInvalid)), "the allocation was written")

	rule.Resources = []string{"resourceclaims/binding"}
	_, err = h.Kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: object, Rules: []rbacv1.PolicyRule{rule}},
		metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.RbacV1().ClusterRoleBindings().Delete(ctx, object.Name, metav1.DeleteOptions{})).To(Succeed())
		Expect(h.Kube.RbacV1().ClusterRoles().Delete(ctx, object.Name, metav1.DeleteOptions{})).To(Succeed())
	})
	_, err = h.Kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: object, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: object.Name},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, write).Should(Succeed())
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
)

// testFences: with the controller's token, stolen, nothing can be changed that is not Fettle's, although RBAC gives the verbs.
func testFences(t *testing.T, server *apiServer) {
	clients, untyped := server.as(t, controllerAccount, "")
	server.createNamespace(t, "fenced")
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=bitstreams.pullSecretNamespaces={*}", "--set=drivers.enabled=true",
		"--set=deviceClasses.vfio=true", "--set=partitions.noExecuteTaintKeys={listed}",
		"--set=kubeletPlugin.image.repository=registry.example/plugin,kubeletPlugin.image.tag=v1")
	t.Run("DeviceClasses", func(t *testing.T) { fencedClasses(t, server, clients) })
	t.Run("CRDs", func(t *testing.T) {
		resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		foreign := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "xs.example.com"},
			"spec": map[string]any{
				"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": "xs", "kind": "X"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object"},
				}}},
			},
		}}
		eventually(t, func(ctx context.Context) error {
			_, err := untyped.Resource(resource).Create(ctx, foreign, metav1.CreateOptions{})
			return refused(err, "writes only the CustomResourceDefinitions that it ships")
		})
	})
	t.Run("checks", func(t *testing.T) { fencedChecks(t, clients) })
	t.Run("ClusterDevicePresets", func(t *testing.T) { fencedPresets(t, untyped) })
	t.Run("Roles", func(t *testing.T) { fencedRoles(t, server, clients) })
	t.Run("Nodes", func(t *testing.T) { fencedNodes(t, server, clients) })
	t.Run("Evictions", func(t *testing.T) { fencedEvictions(t, server, clients) })
	t.Run("PriorityClasses", func(t *testing.T) {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "fenced"}, Value: 1}
		create := func(ctx context.Context) error {
			_, err := clients.SchedulingV1().PriorityClasses().Create(ctx, class.DeepCopy(), metav1.CreateOptions{})
			return err
		}
		eventually(t, func(ctx context.Context) error {
			return refused(create(ctx), "writes only PriorityClasses that it made")
		})
		class.Labels = map[string]string{"app.kubernetes.io/managed-by": "fettle-controller"}
		class.GlobalDefault = true
		if err := refused(create(t.Context()), "makes no PriorityClass for all pods"); err != nil {
			t.Error(err)
		}
		class.GlobalDefault, class.Value = false, 1_000_000_001
		if err := refused(create(t.Context()), "maximum allowed value of a user defined priority is 1000000000"); err != nil {
			t.Error(err)
		}
		class.Value = 1
		if err := create(t.Context()); err != nil {
			t.Error(err)
		}
		theirs := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Value: 1}
		if _, err := server.clients.SchedulingV1().PriorityClasses().Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		err := clients.SchedulingV1().PriorityClasses().Delete(t.Context(), theirs.Name, metav1.DeleteOptions{})
		if err := refused(err, "writes only PriorityClasses that it made"); err != nil {
			t.Error(err)
		}
		if err := clients.SchedulingV1().PriorityClasses().Delete(t.Context(), "fenced", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// fencedChecks: the controller makes the pod and the template of a check, and with its token no other program opens the devices of tenants.
func fencedChecks(t *testing.T, clients kubernetes.Interface) {
	var template resourceapi.ResourceClaimTemplate
	var pod corev1.Pod
	for name, object := range map[string]any{"template": &template, "pod": &pod} {
		content, err := os.ReadFile(repository + "/controller/stacks/testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(content, object); err != nil {
			t.Fatal(err)
		}
	}
	const space = "fettle-selftest"
	template.Namespace, pod.Namespace, pod.OwnerReferences = space, space, nil
	create := func(ctx context.Context, change func(*corev1.Pod)) error {
		p := pod.DeepCopy()
		change(p)
		_, err := clients.CoreV1().Pods(space).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const ownProgram = "that run the self-test of its own image"
	another := func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/attacker:v1" }
	eventually(t, func(ctx context.Context) error { return refused(create(ctx, another), ownProgram) })
	eventually(t, func(ctx context.Context) error { return create(ctx, func(*corev1.Pod) {}) }) // with the upgrade's image
	for name, change := range map[string]func(*corev1.Pod){
		"another command": func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/bin/sh"} },
		"a variable":      func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}} },
	} {
		if err := refused(create(t.Context(), change), ownProgram); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	templates := clients.ResourceV1().ResourceClaimTemplates(space)
	taking := template.DeepCopy()
	taking.Spec.Spec.Devices.Requests[0].Exactly.AdminAccess = nil
	_, err := templates.Create(t.Context(), taking, metav1.CreateOptions{})
	if err := refused(err, "which look at one device"); err != nil {
		t.Error(err)
	}
	if _, err := templates.Create(t.Context(), &template, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("the template of a check: %v", err)
	}
}

// fencedPresets: the controller makes the presets that it ships, and gives no container another directory of the node.
func fencedPresets(t *testing.T, controller dynamic.Interface) {
	presets := controller.Resource(schema.GroupVersionResource{Group: "fettle.dev", Version: "v1alpha1", Resource: "clusterdevicepresets"})
	for i, p := range shippedpresets.Presets(shippedpresets.Vendors()) {
		p.APIVersion, p.Kind = "fettle.dev/v1alpha1", "ClusterDevicePreset"
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
		if err != nil {
			t.Fatal(err)
		}
		good := &unstructured.Unstructured{Object: content}
		wrong := good.DeepCopy()
		mounts := []any{map[string]any{"hostPath": "/usr", "containerPath": "/h", "readOnly": false}}
		if err := unstructured.SetNestedSlice(wrong.Object, mounts, "spec", "mounts"); err != nil {
			t.Fatal(err)
		}
		create := func(ctx context.Context) error {
			_, err := presets.Create(ctx, wrong, metav1.CreateOptions{})
			return refused(err, "only as they are shipped")
		}
		if i == 0 {
			eventually(t, create)
		}
		if err := create(t.Context()); err != nil {
			t.Errorf("%s with a mount: %v", p.Name, err)
		}
		made, err := presets.Create(t.Context(), good, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		wrong.SetResourceVersion(made.GetResourceVersion())
		_, err = presets.Update(t.Context(), wrong, metav1.UpdateOptions{})
		if err := refused(err, "only as they are shipped"); err != nil {
			t.Errorf("%s gets a mount: %v", p.Name, err)
		}
		if _, err := presets.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s again: %v", p.Name, err)
		}
		if err := presets.Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", p.Name, err)
		}
	}
}

// fencedNodes: the controller puts taints on nodes and takes off its own, and does nothing else to them.
func fencedNodes(t *testing.T, server *apiServer, clients kubernetes.Interface) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fenced", Annotations: map[string]string{"a": "b"}}}
	node.Spec.Taints = []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}
	if _, err := server.clients.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(ctx context.Context, noted, taints, more string) error {
		text := fmt.Sprintf(`{"metadata":{"annotations":{"fettle.dev/taints":%s}},"spec":{"taints":[%s]%s}}`, noted, taints, more)
		_, err := clients.CoreV1().Nodes().Patch(ctx, "fenced", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	const (
		theirs  = `{"key":"theirs","effect":"NoSchedule"}`
		ready   = `{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}` // the API server puts it on a new node
		there   = ready + "," + theirs
		ours    = `{"key":"ours","value":"a","effect":"NoSchedule"}`
		ends    = `{"key":"ours","value":"a","effect":"NoExecute"}`
		listed  = `{"key":"listed","effect":"NoExecute"}`
		kubes   = `,{"key":"a.kubernetes.io/b","effect":"NoSchedule"}`
		note    = `"ours=a:NoSchedule"`
		onlyTry = "writes of a node only its taints"
	)
	eventually(t, func(ctx context.Context) error {
		return refused(patch(ctx, note, there+","+ours, `,"unschedulable":true`), onlyTry)
	})
	for name, test := range map[string]struct{ noted, taints, want string }{
		"another's taint taken off":  {`null`, ready, "takes off a node only taints that it put there"},
		"another's taint noted":      {`"theirs=:NoSchedule"`, there, "notes no taint of a node that somebody else put there"},
		"noted and taken off":        {`"theirs=:NoSchedule"`, ready, "takes off a node only taints that it put there"},
		"a taint that is not noted":  {`null`, there + "," + ours, "notes the taints that it puts on a node"},
		"one of Kubernetes' own":     {`"a.kubernetes.io/b=:NoSchedule"`, there + kubes, "keys are not below"},
		"Kubernetes' own taken off":  {`null`, theirs, "takes off a node only taints that it put there"},
		"one that ends pods":         {`"ours=a:NoExecute"`, there + "," + ends, "puts taints with the effect NoExecute"},
		"a taint's value is changed": {`null`, ready + `,{"key":"theirs","value":"x","effect":"NoSchedule"}`, "takes off a node only"},
	} {
		if err := refused(patch(t.Context(), test.noted, test.taints, ""), test.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"a label": `{"metadata":{"labels":{"a":"b"}}}`, "an annotation": `{"metadata":{"annotations":{"c":"d"}}}`,
		"an annotation is changed": `{"metadata":{"annotations":{"a":"c"}}}`, "an annotation goes": `{"metadata":{"annotations":{"a":null}}}`,
		"a label of another's Module": `{"metadata":{"labels":{"kmm.node.kubernetes.io/version-module.kmm.driver":"1"}}}`,
		"a finalizer":                 `{"metadata":{"finalizers":["a.b/c"]}}`, "a provider": `{"spec":{"providerID":"x"}}`,
	} {
		_, err := clients.CoreV1().Nodes().Patch(t.Context(), "fenced", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		if err := refused(err, onlyTry); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, value := range []string{`"1"`, "null"} {
		text := `{"metadata":{"labels":{"kmm.node.kubernetes.io/version-module.fettle-drivers.driver-a":` + value + `}}}`
		eventually(t, func(ctx context.Context) error { // the upgrade changed the policy
			_, err := clients.CoreV1().Nodes().Patch(ctx, "fenced", types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		})
	}
	if err := patch(t.Context(), `"listed=:NoExecute,ours=a:NoSchedule"`, there+","+ours+","+listed, ""); err != nil {
		t.Errorf("taints are put: %v", err)
	}
	if err := refused(patch(t.Context(), "null", ready, ""), "takes off a node only"); err != nil {
		t.Errorf("another's with its own: %v", err)
	}
	if err := patch(t.Context(), "null", there, ""); err != nil {
		t.Errorf("what is noted is taken off: %v", err)
	}
}

// fencedEvictions: the controller evicts a pod by its UID and with the time that the pod wants or the administrator allows, and none of
// Kubernetes and of Fettle.
func fencedEvictions(t *testing.T, server *apiServer, clients kubernetes.Interface) {
	evicts := func(ctx context.Context, namespace string, options *metav1.DeleteOptions) error {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fenced"}, DeleteOptions: options}
		return clients.PolicyV1().Evictions(namespace).Evict(ctx, eviction)
	}
	uids := map[string]*metav1.Preconditions{}
	for _, namespace := range []string{"fenced", "kube-system", namespace} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fenced"}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "registry.example/c:v1"}}
		created, err := server.clients.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[namespace] = &metav1.Preconditions{UID: &created.UID}
	}
	eventually(t, func(ctx context.Context) error {
		return refused(evicts(ctx, "kube-system", &metav1.DeleteOptions{Preconditions: uids["kube-system"]}), "evicts no pods of Kubernetes")
	})
	const byUID, itsTime = "evicts a pod by its UID", "leaves a pod its time to end, or the 300 seconds"
	for name, test := range map[string]struct {
		namespace, want string
		options         *metav1.DeleteOptions
	}{
		"one of Fettle": {namespace, "evicts no pods of Kubernetes", &metav1.DeleteOptions{Preconditions: uids[namespace]}},
		"any of a name": {"fenced", byUID, nil},
		"at once":       {"fenced", itsTime, &metav1.DeleteOptions{Preconditions: uids["fenced"], GracePeriodSeconds: new(int64)}},
		"sooner than allowed": {
			"fenced", itsTime, &metav1.DeleteOptions{Preconditions: uids["fenced"], GracePeriodSeconds: new(int64(299))},
		},
	} {
		if err := refused(evicts(t.Context(), test.namespace, test.options), test.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	allowed := &metav1.DeleteOptions{Preconditions: uids["fenced"], GracePeriodSeconds: new(int64(300)), DryRun: []string{metav1.DryRunAll}}
	if err := evicts(t.Context(), "fenced", allowed); err != nil {
		t.Errorf("a pod with the time that the administrator allows: %v", err)
	}
	if err := evicts(t.Context(), "fenced", &metav1.DeleteOptions{Preconditions: uids["fenced"]}); err != nil {
		t.Errorf("a pod by its UID: %v", err)
	}
}

func fencedClasses(t *testing.T, server *apiServer, clients kubernetes.Interface) {
	const want = "writes only the DeviceClasses that it ships"
	foreign := newClass("foreign", "")
	if _, err := server.clients.ResourceV1().DeviceClasses().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"fettle-controller"}},"spec":{"selectors":[]}}`)
	eventually(t, func(ctx context.Context) error {
		_, err := clients.ResourceV1().DeviceClasses().Patch(ctx, foreign.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return refused(err, want)
	})
	_, err := clients.ResourceV1().DeviceClasses().Create(t.Context(), newClass("more", ""), metav1.CreateOptions{})
	if err := refused(err, want); err != nil {
		t.Errorf("a class of another name: %v", err)
	}
	uninstall, _ := server.as(t, "fettle-uninstall", "")
	if err := uninstall.ResourceV1().DeviceClasses().Delete(t.Context(), foreign.Name, metav1.DeleteOptions{}); err == nil {
		t.Error("an uninstall deleted a class that is not ours")
	}
	for i, class := range deviceclasses.Classes(deviceclasses.Options{ExtendedResources: true, Parts: deviceclasses.PartTypes()}) {
		wrong := class.DeepCopy()
		wrong.Spec.Selectors[0].CEL.Expression = "true"
		create := func(ctx context.Context) error {
			_, err := clients.ResourceV1().DeviceClasses().Create(ctx, wrong, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return refused(err, "only what is shipped")
		}
		if i == 0 {
			eventually(t, create)
		}
		if err := create(t.Context()); err != nil {
			t.Errorf("%s of all devices: %v", class.Name, err)
		}
		// The policy of before, without the class of VFIO, is forgotten a moment after the chart was changed.
		eventually(t, func(ctx context.Context) error {
			_, err := clients.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
			return err
		})
		_, err := clients.ResourceV1().DeviceClasses().Patch(t.Context(), class.Name, types.MergePatchType,
			[]byte(`{"spec":{"extendedResourceName":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Errorf("%s: %v", class.Name, err)
		}
		// None of them is switched off.
		if err := clients.ResourceV1().DeviceClasses().Delete(t.Context(), class.Name, metav1.DeleteOptions{}); err == nil {
			t.Errorf("the controller deleted %s", class.Name)
		}
		if err := server.clients.ResourceV1().DeviceClasses().Delete(t.Context(), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("%s: %v", class.Name, err)
		}
	}
}

func fencedRoles(t *testing.T, server *apiServer, clients kubernetes.Interface) {
	kube := server.clients.RbacV1()
	role, binding := pullGrant("fenced", "fence", "get")
	eventually(t, func(ctx context.Context) error { // the right to read any Secret, which the upgrade gave
		_ = kube.Roles("fenced").Delete(ctx, role.Name, metav1.DeleteOptions{})
		return makeGrant(ctx, clients, role, binding)
	})
	wrong := func(change func(*rbacv1.Role, *rbacv1.RoleBinding)) error {
		role, binding := pullGrant("fenced", "wrong", "get")
		change(role, binding)
		return makeGrant(t.Context(), clients, role, binding)
	}
	for name, test := range map[string]struct {
		want   string
		change func(*rbacv1.Role, *rbacv1.RoleBinding)
	}{
		"another name": {"writes only Roles that it made", func(r *rbacv1.Role, _ *rbacv1.RoleBinding) { r.Name = "admin" }},
		"no label":     {"writes only Roles that it made", func(r *rbacv1.Role, _ *rbacv1.RoleBinding) { r.Labels = nil }},
		"kube-system": {"writes no roles in namespaces of Kubernetes' own", func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Namespace, b.Namespace = "kube-system", "kube-system"
		}},
		"all Secrets": {"each by its name", func(r *rbacv1.Role, _ *rbacv1.RoleBinding) { r.Rules[0].ResourceNames = nil }},
		"the webhook's key": {"none of Helm's and of the webhook", func(r *rbacv1.Role, _ *rbacv1.RoleBinding) {
			r.Rules[0].ResourceNames = []string{"fettle-webhook-tls"}
		}},
		"the release": {"none of Helm's and of the webhook", func(r *rbacv1.Role, _ *rbacv1.RoleBinding) {
			r.Rules[0].ResourceNames = []string{"sh.helm.release.v1.fettle.v1"}
		}},
		"another user": {"binds only its own Roles, and only to the kubelet plugin", func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Name = "fettle.dev:fpgabitstream:another"
			b.Name, b.RoleRef.Name, b.Subjects[0].Name = r.Name, r.Name, "default"
		}},
		"another role": {"not currently held", func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Name, b.Name = "fettle.dev:fpgabitstream:clusterwide", "fettle.dev:fpgabitstream:clusterwide"
			b.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fettle-kubeletplugin"}
		}},
	} {
		if err := refusedGrant(wrong(test.change), test.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	others := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "others"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "x"},
	}
	if _, err := kube.RoleBindings("fenced").Create(t.Context(), others, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := clients.RbacV1().RoleBindings("fenced").Delete(t.Context(), "others", metav1.DeleteOptions{})
	if err := refused(err, "writes only RoleBindings that it made"); err != nil {
		t.Errorf("delete of another's RoleBinding: %v", err)
	}
	if err := clients.RbacV1().RoleBindings("fenced").Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete of its own: %v", err)
	}
}

// refusedGrant is refused for what makeGrant returns.
func refusedGrant(err error, want string) error { return refused(errors.Unwrap(err), want) }

// testEvents: a node's token, stolen, writes Events in the plugin's name only, about no other node, and about pods
// only that a preset is missing.
func testEvents(t *testing.T, server *apiServer) {
	node, _ := server.as(t, plugin, "node1")
	event := func(change func(*eventsv1.Event)) func(context.Context) error {
		e := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e-", Namespace: "default"}, EventTime: metav1.NowMicro(), Type: "Normal", Reason: "R",
			Action: "A", ReportingController: plugin, ReportingInstance: plugin + "-x",
			Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node1"},
		}
		change(e)
		return func(ctx context.Context) error {
			_, err := node.EventsV1().Events("default").Create(ctx, e, metav1.CreateOptions{})
			return err
		}
	}
	otherNode := event(func(e *eventsv1.Event) { e.Regarding.Name = "node2" })
	eventually(t, func(ctx context.Context) error { return refused(otherNode(ctx), "writes Events only about this node") })
	for name, test := range map[string]struct {
		change func(*eventsv1.Event)
		want   string
	}{
		"its node": {func(*eventsv1.Event) {}, ""},
		"a claim": {func(e *eventsv1.Event) {
			e.Regarding = corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: "default", Name: "c"}
		}, ""},
		"a pod": {func(e *eventsv1.Event) {
			e.Regarding = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "p"}
		}, "writes Events only about"},
		"a pod without a preset": {func(e *eventsv1.Event) {
			e.Regarding = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "p"}
			e.Reason = "PresetMissing"
		}, ""},
		"in kubelet's name": {func(e *eventsv1.Event) { e.ReportingController = "kubelet" }, "only in its own name"},
	} {
		err := event(test.change)(t.Context())
		if test.want != "" {
			err = refused(err, test.want)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// fullJob is a Job with all that the controller of kernel caches writes.
func fullJob(t *testing.T) *batchv1.Job {
	t.Helper()
	content, err := os.ReadFile(repository + "/controller/volumes/testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var j batchv1.Job
	if err := yaml.UnmarshalStrict(content, &j); err != nil {
		t.Fatal(err)
	}
	return &j
}

// testJobFences: where the controller may make Jobs, they are of its own image and have nothing of the node.
func testJobFences(t *testing.T, server *apiServer) {
	server.createNamespace(t, "jobs")
	const image = "registry.example/fettle:v1"
	server.runHelm(t, "upgrade", "fettle", chartDir, "--set=kernelCaches.volumes.enabled=true",
		"--set=kernelCaches.volumes.image.repository=registry.example/fettle,kernelCaches.volumes.image.tag=v1")
	clients, _ := server.as(t, controllerAccount, "")
	job := func(ctx context.Context, namespace string, change func(*batchv1.Job)) error {
		j := fullJob(t)
		j.Name, j.Namespace, j.GenerateName, j.OwnerReferences = "", "", "fill-", nil
		change(j)
		_, err := clients.BatchV1().Jobs(namespace).Create(ctx, j, metav1.CreateOptions{})
		return err
	}
	const ownImage, noRights = "of its own image", "only Jobs without a token, an account, rights"
	eventually(t, func(ctx context.Context) error { return job(ctx, "jobs", func(*batchv1.Job) {}) })
	pod := func(change func(*corev1.PodSpec)) func(*batchv1.Job) {
		return func(j *batchv1.Job) { change(&j.Spec.Template.Spec) }
	}
	for name, test := range map[string]struct {
		namespace, want string
		change          func(*batchv1.Job)
	}{
		"kube-system": {"kube-system", "writes no jobs in namespaces of Kubernetes' own", func(*batchv1.Job) {}},
		"no label":    {"jobs", "writes only Jobs of kernel caches", func(j *batchv1.Job) { j.Labels = map[string]string{"a": "b"} }},
		"a token":     {"jobs", noRights, pod(func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = nil })},
		"an account":  {"jobs", noRights, pod(func(p *corev1.PodSpec) { p.ServiceAccountName = "admin" })},
		"a Secret by a variable": {"jobs", ownImage, pod(func(p *corev1.PodSpec) {
			p.Containers[0].Env = []corev1.EnvVar{{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password",
			}}}}
		})},
		"another command": {"jobs", ownImage, pod(func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"/fettle", "$(S)"} })},
		"another container": {"jobs", noRights, pod(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "i", Image: image}}
		})},
		"a path of the node": {"jobs", "only Jobs with a claim", pod(func(p *corev1.PodSpec) {
			root := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "v", VolumeSource: root})
		})},
		"the node's network": {"jobs", noRights, pod(func(p *corev1.PodSpec) { p.HostNetwork = true })},
		"another image":      {"jobs", ownImage, pod(func(p *corev1.PodSpec) { p.Containers[0].Image = "x" })},
		"privileged": {"jobs", ownImage, pod(func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		})},
	} {
		if err := refused(job(t.Context(), test.namespace, test.change), test.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "others"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
	}}
	if _, err := server.clients.CoreV1().PersistentVolumeClaims("jobs").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := clients.CoreV1().PersistentVolumeClaims("jobs").Delete(t.Context(), "others", metav1.DeleteOptions{})
	if err := refused(err, "writes only PersistentVolumeClaims of kernel caches"); err != nil {
		t.Errorf("delete of another's claim: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const schedulerUser = "system:kube-scheduler"

// protectionRemoved is in the refusal of whoever takes the finalizer from a claim that holds a device.
const protectionRemoved = "Delete these pods"

// hold makes a claim in a namespace, and does what the scheduler does for a pod that uses it.
func (s *apiServer) hold(ctx context.Context, t *testing.T, space, name, driver string, pod *corev1.Pod) {
	t.Helper()
	_, err := s.clients.ResourceV1().ResourceClaims(space).Create(ctx, newClaim(name, "any"), metav1.CreateOptions{})
	check.Must(t, err)
	claims := s.user(t, schedulerUser).ResourceV1().ResourceClaims(space)
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	check.Must(t, err)
	claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
	claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
	check.Must(t, err)
	claim.Status.Allocation = objects.Allocation(objects.Result("gpu", driver, "node1/gpu", "gpu-0"))
	claim.Status.ReservedFor = objects.ReservedFor(pod.Name, pod.UID)
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	check.Must(t, err)
}

// takings are the ways in which a tenant might take the finalizer from its claim.
func takings(claims typedv1.ResourceClaimInterface, name string) map[string]func(context.Context) error {
	patch := func(kind types.PatchType, data string) func(context.Context) error {
		return func(ctx context.Context) error {
			o := metav1.PatchOptions{}
			if kind == types.ApplyPatchType {
				force := true
				o = metav1.PatchOptions{FieldManager: "kube-scheduler", Force: &force}
			}
			_, err := claims.Patch(ctx, name, kind, []byte(data), o)
			return err
		}
	}
	return map[string]func(context.Context) error{
		"merge patch":           patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`),
		"JSON patch":            patch(types.JSONPatchType, `[{"op":"remove","path":"/metadata/finalizers"}]`),
		"replaced by another's": patch(types.MergePatchType, `{"metadata":{"finalizers":["example.com/mine"]}}`),
		"another spelling":      patch(types.MergePatchType, `{"metadata":{"finalizers":["resource.kubernetes.io/Delete-protection"]}}`),
		"strategic patch": patch(types.StrategicMergePatchType,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["resource.kubernetes.io/delete-protection"]}}`),
		"PUT": func(ctx context.Context) error {
			claim, err := claims.Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				claim.Finalizers, claim.Status = nil, resourcev1.ResourceClaimStatus{}
				_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
			}
			return err
		},
	}
}

// testDeleteProtection checks that a tenant does not get a claim that holds a device of Fettle deleted, whatever it does to the claim, and
// that everything else about claims stays with their owners.
func testDeleteProtection(t *testing.T, server *apiServer) {
	const space = "vanishing"
	server.createNamespace(t, space)
	all := rbacv1.PolicyRule{
		APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaims/status"}, Verbs: []string{"*"},
	}
	everywhere := all
	everywhere.Resources = []string{"resourceclaims/driver"}
	server.grant(t, "vanisher", space, all, everywhere)
	server.grant(t, "system:serviceaccount:kube-system:resource-claim-controller", space, all)
	claims := server.user(t, "vanisher").ResourceV1().ResourceClaims(space)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	server.hold(t.Context(), t, space, "held", "fettle.dev", pod)
	try := func(when, want string) {
		t.Helper()
		for name, take := range takings(claims, "held") {
			if err := refused(take(t.Context()), want); err != nil {
				t.Errorf("%s, %s: %v", when, name, err)
			}
		}
	}
	tries := 0
	eventually(t, func(ctx context.Context) error {
		tries++
		name := fmt.Sprint("try-", tries)
		server.hold(ctx, t, space, name, "fettle.dev", pod)
		return refused(takings(claims, name)["merge patch"](ctx), protectionRemoved)
	})
	try("a claim in use", protectionRemoved)

	unreserved, err := claims.Get(t.Context(), "held", metav1.GetOptions{})
	check.Must(t, err)
	unreserved.Status.ReservedFor = nil
	_, err = claims.UpdateStatus(t.Context(), unreserved, metav1.UpdateOptions{})
	check.Must(t, refused(err, ""))
	for name, change := range map[string]string{
		"label":    `{"metadata":{"labels":{"a":"b"}}}`,
		"owner":    `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}}`,
		"own mark": `{"metadata":{"finalizers":["resource.kubernetes.io/delete-protection","example.com/mine"]}}`,
		"mark off": `{"metadata":{"finalizers":["resource.kubernetes.io/delete-protection"]}}`,
	} {
		if _, err := claims.Patch(t.Context(), "held", types.MergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = claims.Patch(t.Context(), "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}, "status")
	check.Must(t, err) // it changes nothing, as is seen below
	now := int64(0)
	for _, how := range []metav1.DeletionPropagation{
		metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground,
	} {
		check.Must(t, claims.Delete(t.Context(), "held", metav1.DeleteOptions{PropagationPolicy: &how, GracePeriodSeconds: &now}))
	}
	check.Must(t, claims.DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	try("a deleted claim", "")
	left, err := claims.Get(t.Context(), "held", metav1.GetOptions{})
	check.Must(t, err)
	if !slices.Contains(left.Finalizers, resourcev1.Finalizer) || left.Status.Allocation == nil || len(left.Status.ReservedFor) == 0 {
		t.Errorf("left: finalizers %v, status %+v", left.Finalizers, left.Status)
	}

	server.hold(t.Context(), t, space, "theirs", "nic.example.com", pod)
	check.Must(t, takings(claims, "theirs")["merge patch"](t.Context()))
	for _, user := range []string{schedulerUser, "system:serviceaccount:kube-system:resource-claim-controller"} {
		server.hold(t.Context(), t, space, "given-back", "fettle.dev", pod)
		check.Must(t, takings(server.user(t, user).ResourceV1().ResourceClaims(space), "given-back")["PUT"](t.Context()))
		check.Must(t, claims.Delete(t.Context(), "given-back", metav1.DeleteOptions{}))
	}
	server.hold(t.Context(), t, space, "repaired", "fettle.dev", pod)
	check.Must(t, takings(server.clients.ResourceV1().ResourceClaims(space), "repaired")["merge patch"](t.Context()))
}

// manage runs Kubernetes' controllers of claims, quotas, garbage and namespaces, each as its own account, until the test ends.
func (s *apiServer) manage(t *testing.T, flags map[string]string) {
	t.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(repository, ".cache/bin")
	}
	program := filepath.Join(assets, "kube-controller-manager")
	check.Needs(t, program, "build the cluster's binaries with `make cluster-build`")
	args := []string{
		"--kubeconfig=" + s.kubeconfig, "--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
		"--controllers=resourceclaim-controller,resourcequota-controller,garbage-collector-controller,namespace-controller",
		"--kube-api-qps=500", "--kube-api-burst=500",
	}
	if version := flags["emulated-version"]; version != "" {
		args = append(args, "--emulated-version=kube="+version)
	}
	command := exec.Command(program, args...)
	output := &check.Buffer{}
	command.Stdout, command.Stderr = output, output
	check.Must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			lines := strings.Split(strings.TrimSpace(output.String()), "\n")
			t.Logf("the end of the log:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	})
}

// counting is a namespace with a quota of one device, in which Kubernetes' controllers run.
type counting struct {
	*apiServer
	space  string
	claims typedv1.ResourceClaimInterface // as a tenant
}

// deviceCount is what the quota counts.
const deviceCount = corev1.ResourceName("any.deviceclass.resource.k8s.io/devices")

func (s *apiServer) count(t *testing.T, space string) *counting {
	t.Helper()
	s.createNamespace(t, space)
	_, err := s.clients.CoreV1().ResourceQuotas(space).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{deviceCount: resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	check.Must(t, err)
	s.grant(t, "vanisher", space, rbacv1.PolicyRule{
		APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"*"},
	})
	c := &counting{s, space, s.user(t, "vanisher").ResourceV1().ResourceClaims(space)}
	c.used(t, "0")
	return c
}

// used waits until the quota's use is so much.
func (c *counting) used(t *testing.T, want string) {
	t.Helper()
	check.Eventually(t, "the quota's use is "+want, func() bool {
		q, err := c.clients.CoreV1().ResourceQuotas(c.space).Get(t.Context(), "devices", metav1.GetOptions{})
		if err != nil {
			return false
		}
		got, ok := q.Status.Used[deviceCount]
		return ok && got.String() == want
	})
}

// run makes a pod on a node, with a claim of the same name that holds a device.
func (c *counting) run(t *testing.T, name string) {
	t.Helper()
	pod, err := c.clients.CoreV1().Pods(c.space).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		},
	}, metav1.CreateOptions{})
	check.Must(t, err)
	c.hold(t.Context(), t, c.space, name, "fettle.dev", pod)
}

// end ends the pod, in kubelet's place, and waits until its claim is gone.
func (c *counting) end(t *testing.T, name string) {
	t.Helper()
	now := int64(0)
	check.Must(t, c.clients.CoreV1().Pods(c.space).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	check.Eventually(t, "claim "+name+" is gone", func() bool {
		_, err := c.clients.ResourceV1().ResourceClaims(c.space).Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// testQuotaOfDeleted checks that the quota of a namespace counts a claim for as long as it holds a device, also after a tenant deleted it
// under its pod, and that Kubernetes' own controllers end claims as ever.
func testQuotaOfDeleted(t *testing.T, server *apiServer, flags map[string]string) {
	server.manage(t, flags)
	c := server.count(t, "counted")
	c.run(t, "q")
	now := int64(0)
	for range 3 {
		for name, take := range takings(c.claims, "q") {
			if err := refused(take(t.Context()), ""); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		check.Must(t, c.claims.Delete(t.Context(), "q", metav1.DeleteOptions{GracePeriodSeconds: &now}))
		for _, name := range []string{"q", "another"} {
			_, err := c.claims.Create(t.Context(), newClaim(name, "any"), metav1.CreateOptions{})
			if err := refused(err, "exceeded quota"); err != nil {
				t.Errorf("claim %s: %v", name, err)
			}
		}
	}
	c.used(t, "1")
	c.end(t, "q")
	c.used(t, "0")

	c.run(t, "owned")
	_, err := c.claims.Patch(t.Context(), "owned", types.MergePatchType, []byte(
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}}`), metav1.PatchOptions{})
	check.Must(t, err)
	check.Eventually(t, "garbage collection deletes the claim", func() bool {
		claim, err := c.claims.Get(t.Context(), "owned", metav1.GetOptions{})
		return err == nil && claim.DeletionTimestamp != nil
	})
	c.used(t, "1")
	c.end(t, "owned")

	c.run(t, "last")
	check.Must(t, c.clients.CoreV1().Namespaces().Delete(t.Context(), c.space, metav1.DeleteOptions{}))
	c.end(t, "last")
	check.Eventually(t, "the namespace is gone", func() bool {
		_, err := c.clients.CoreV1().Namespaces().Get(t.Context(), c.space, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

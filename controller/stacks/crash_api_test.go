// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// TestAPI: wherever the controller is killed while it changes the drivers of nodes, the next one ends the change as if nothing had been. It
// has the account that the chart gives it, and the chart's admission policies are in force.
func TestAPI(t *testing.T) {
	c := startCluster(t)
	for _, tc := range []struct {
		name, end string
		begin     func(*fixture, *testing.T) *fixture
		least     int
	}{
		{"another version", "a [] 2-6.1.0-1 user false; b [] 2-6.1.0-1 user false", (*fixture).upgrading, 16},
		{"another kernel", "a [] 1-6.1.0-1 user true; b [] 1-6.1.0-2 user false", (*fixture).otherKernel, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			whole := &mortal{}
			tc.begin(c.fixture(t), t).goOn(t, whole, tc.end)
			if whole.writes < tc.least {
				t.Fatalf("the change took %d writes: not all were seen", whole.writes)
			}
			t.Logf("the change takes %d writes", whole.writes)
			for n := 1; n <= whole.writes; n++ {
				tc.begin(c.fixture(t), t).goOn(t, &mortal{left: n}, tc.end)
			}
		})
	}
}

// apiServer is a real API server with the chart, its CRDs and its policies.
type apiServer struct {
	// admin is the administrator's client, controller that of the controller's own account.
	admin, controller client.WithWatch
}

const (
	repository = "../.."
	account    = "system:serviceaccount:" + namespace + ":fettle-controller"
)

// startCluster installs the chart with the right to run drivers, and waits until its policies are in force.
func startCluster(t *testing.T) *apiServer {
	t.Helper()
	config := apitest.Start(t, nil)
	crds := envtest.CRDInstallOptions{Paths: []string{repository + "/deployments/crds"}, ErrorIfPathMissing: true}
	_, err := envtest.InstallCRDs(config, crds)
	check.Must(t, err)
	installChart(t, config)
	own := rest.CopyConfig(config)
	own.Impersonate = rest.ImpersonationConfig{
		UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	c := &apiServer{}
	c.admin, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	check.Must(t, err)
	c.controller, err = client.NewWithWatch(own, client.Options{Scheme: scheme})
	check.Must(t, err)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fenced"}}
	check.Must(t, c.admin.Create(t.Context(), node))
	apitest.Eventually(t, func() string {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		err := c.controller.Patch(t.Context(), node.DeepCopy(), patch, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "writes of a node only") {
			return "the policies are not in force: the controller labels a node: " + errorText(err)
		}
		return ""
	})
	check.Must(t, c.admin.Delete(t.Context(), node))
	return c
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// installChart installs the chart in the release's namespace, without the webhook, which nothing would serve here.
func installChart(t *testing.T, config *rest.Config) {
	t.Helper()
	kubeconfig := apitest.Kubeconfig(t, t.TempDir(), config)
	helm := check.Helm(t, repository)
	image, tag, _ := strings.Cut(pluginImage, ":")
	output, err := exec.CommandContext(t.Context(), helm, "install", "fettle", repository+"/deployments/helm/fettle", "--create-namespace",
		"--namespace="+namespace, "--kubeconfig="+kubeconfig, "--set=drivers.enabled=true,admission.webhook=false",
		"--set=kubeletPlugin.image.repository="+image+",kubeletPlugin.image.tag="+tag).CombinedOutput()
	if err != nil {
		t.Fatalf("helm install: %v\n%s", err, output)
	}
}

// fixture is that of the other tests, on the API server: nothing that an earlier one left is there.
func (c *apiServer) fixture(t *testing.T) *fixture {
	t.Helper()
	for _, kind := range []client.Object{&v1alpha1.AcceleratorStack{}, &v1alpha1.AcceleratorNode{}, &corev1.Node{}} {
		check.Must(t, c.admin.DeleteAllOf(t.Context(), kind))
	}
	for _, namespace := range []string{namespace, drivers, "fettle-selftest", "default"} {
		for _, kind := range []client.Object{
			&appsv1.DaemonSet{}, &corev1.Pod{}, &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{},
		} {
			check.Must(t, c.admin.DeleteAllOf(t.Context(), kind, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
		}
	}
	f := &fixture{api: c.admin, own: c.controller, recorder: events.NewFakeRecorder(100), t: t}
	for _, o := range slices.Concat(machine("a", "x"), machine("b", "x"), machine("c", "y"), []client.Object{stackOf("s", "x")}) {
		if a, ok := o.(*v1alpha1.AcceleratorNode); ok {
			var plugin corev1.Pod
			check.Must(t, c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "plugin-" + a.Name}, &plugin))
			a.Status.Facts.PluginPod = string(plugin.UID)
			for i := range a.Status.Conditions {
				a.Status.Conditions[i].LastTransitionTime = metav1.Now()
			}
		}
		f.write(t, o)
	}
	f.restart()
	return f
}

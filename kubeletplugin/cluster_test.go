// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/objects"
)

const namespace = "team-a"

// cluster is a real API server without a kubelet: the tests are the kubelet.
type cluster struct {
	config  *rest.Config
	clients Clients
	// requests counts what the API server was asked by way of config.
	requests atomic.Int64
}

// counted counts requests.
type counted struct {
	http.RoundTripper
	requests *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// newCluster starts an API server with flags of its own.
func newCluster(t *testing.T, flags map[string]string) *cluster {
	t.Helper()
	config := apitest.Start(t, flags)
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{"../deployments/crds"}, ErrorIfPathMissing: true})
	check.Must(t, err)
	// What the binary sets by default.
	config.QPS, config.Burst = 200, 400
	c := &cluster{config: config}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, &c.requests} })
	c.clients.Dynamic, err = dynamic.NewForConfig(config)
	check.Must(t, err)
	compact := rest.CopyConfig(config)
	compact.ContentType = "application/vnd.kubernetes.protobuf"
	compact.AcceptContentTypes = compact.ContentType + ",application/json"
	c.clients.Kube, err = kubernetes.NewForConfig(compact)
	check.Must(t, err)
	labels := map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}
	_, err = c.clients.Kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}, metav1.CreateOptions{})
	check.Must(t, err)
	_, err = c.clients.Kube.ResourceV1().DeviceClasses().Create(t.Context(),
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Class}}, metav1.CreateOptions{})
	check.Must(t, err)
	return c
}

// node is a plugin on a machine of its own, and its kubelet.
type node struct {
	*cluster
	t      *testing.T
	name   string
	config Config
	plugin *Plugin
	stop   func()

	registration registerapi.RegistrationClient
	dra          drapb.DRAPluginClient
	health       drahealth.DRAResourceHealthClient
}

// newNode makes a Node object and a machine.
func (c *cluster) newNode(t *testing.T, name, machine string) *node {
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.clients.Kube.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	check.Must(t, err)
	dir, err := os.MkdirTemp("", "fkp") //nolint:usetesting // the test's own directory is too long for a socket
	check.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{cluster: c, t: t, name: name, config: Config{
		Node: name, Namespace: "fettle-system", HostRoot: filepath.Join(dir, "host"), PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"),
		Version: "test",
		File:    nodeconfig.File{HostDevices: nodefixture.LocalSSD(), DiscoveryInterval: metav1.Duration{Duration: time.Second}}.WithDefaults(),
	}}
	check.Must(t, os.Mkdir(n.config.RegistryDir, 0o700))
	nodefixture.ExpandInto(t, machine, n.config.HostRoot)
	return n
}

// start runs a plugin and registers it as kubelet would.
func (n *node) start(podUID string) {
	n.t.Helper()
	n.config.PodUID = podUID
	var err error
	n.config.HTTPListener, err = new(net.ListenConfig).Listen(n.t.Context(), "tcp", "127.0.0.1:0")
	check.Must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: n.clients.Kube.EventsV1()})
	check.Must(n.t, broadcaster.StartRecordingToSinkWithContext(ctx))
	clients := n.clients
	clients.Events = broadcaster.NewRecorder(scheme.Scheme, "fettle-kubeletplugin")
	plugin, err := New(n.t.Context(), n.config, clients, "boot-1")
	check.Must(n.t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Run(ctx)
		broadcaster.Shutdown()
	}()
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := receive(n.t, ended); err != nil {
			n.t.Errorf("the plugin ended with: %v", err)
		}
	}
	n.t.Cleanup(n.stop)
	n.plugin = plugin
	n.register()
}

// register finds the socket in the registry directory, asks who is there, and says that it is registered.
func (n *node) register() {
	n.t.Helper()
	registrar, _ := n.config.sockets()
	n.eventually(func() string {
		if _, err := os.Stat(registrar); err != nil {
			return err.Error()
		}
		return ""
	})
	n.registration = registerapi.NewRegistrationClient(n.dial(registrar))
	// The file is there a moment before the server listens.
	info, err := n.registration.GetInfo(n.t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	check.Must(n.t, err)
	if info.Name != v1alpha1.DriverName || info.Type != registerapi.DRAPlugin {
		n.t.Fatalf("the plugin says that it is %s %s", info.Type, info.Name)
	}
	if err := n.plugin.Ready(); err == nil {
		n.t.Error("ready before kubelet registered the plugin")
	}
	_, err = n.registration.NotifyRegistrationStatus(n.t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true})
	check.Must(n.t, err)
	connection := n.dial(info.Endpoint)
	n.dra, n.health = drapb.NewDRAPluginClient(connection), drahealth.NewDRAResourceHealthClient(connection)
	n.eventually(func() string {
		if err := n.plugin.Ready(); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (n *node) dial(path string) *grpc.ClientConn {
	n.t.Helper()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check.Must(n.t, err)
	n.t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func (n *node) eventually(look func() string) {
	n.t.Helper()
	apitest.Eventually(n.t, look)
}

// slices are the node's ResourceSlices by name.
func (n *node) slices() map[string]resourceapi.ResourceSlice {
	n.t.Helper()
	list, err := n.clients.Kube.ResourceV1().ResourceSlices().List(n.t.Context(), metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name,
	})
	check.Must(n.t, err)
	out := map[string]resourceapi.ResourceSlice{}
	for _, s := range list.Items {
		out[s.Name] = s
	}
	return out
}

// devices counts the published devices by pool.
func (n *node) devices() map[string]int {
	n.t.Helper()
	out := map[string]int{}
	for _, s := range n.slices() {
		out[s.Spec.Pool.Name] += len(s.Spec.Devices)
	}
	return out
}

// status is the AcceleratorNode's, nil where there is none.
func (n *node) status() *v1alpha1.AcceleratorNodeStatus {
	n.t.Helper()
	nodes := n.clients.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratornodes"))
	object, err := nodes.Get(n.t.Context(), n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	check.Must(n.t, err)
	var out v1alpha1.AcceleratorNode
	check.Must(n.t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &out))
	return &out.Status
}

// claim makes a claim that is allocated as the results say: the tests are the scheduler too.
func (n *node) claim(name string, change func(*resourceapi.ResourceClaim), results ...apiResult) *resourceapi.ResourceClaim {
	n.t.Helper()
	claims := n.clients.Kube.ResourceV1().ResourceClaims(namespace)
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	for i := range results {
		results[i].Pool = n.name + results[i].Pool[len(testNode):]
	}
	c.Status.Allocation = objects.Allocation(results...)
	if change != nil {
		change(c)
	}
	objects.Asked(c, nodefixture.Class)
	status := c.Status
	c, err := claims.Create(n.t.Context(), c, metav1.CreateOptions{})
	check.Must(n.t, err)
	c.Status = status
	c, err = claims.UpdateStatus(n.t.Context(), c, metav1.UpdateOptions{})
	check.Must(n.t, err)
	return c
}

// prepare asks as kubelet does, and returns the answer for one claim.
func (n *node) prepare(c *resourceapi.ResourceClaim) *drapb.NodePrepareResourceResponse {
	n.t.Helper()
	response, err := n.dra.NodePrepareResources(n.t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{wire(c)}})
	check.Must(n.t, err)
	answer := response.Claims[string(c.UID)]
	if answer == nil {
		n.t.Fatalf("no answer for claim %s: %v", c.Name, response)
	}
	return answer
}

func (n *node) unprepare(c *resourceapi.ResourceClaim) {
	n.t.Helper()
	response, err := n.dra.NodeUnprepareResources(n.t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{wire(c)}})
	check.Must(n.t, err)
	if answer := response.Claims[string(c.UID)]; answer == nil || answer.Error != "" {
		n.t.Errorf("unprepare %s: %v", c.Name, answer)
	}
}

func wire(c *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

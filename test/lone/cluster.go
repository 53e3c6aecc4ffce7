// SPDX-License-Identifier: Apache-2.0

package lone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
)

// Cluster is etcd and an API server with Fettle's kinds, and nothing else.
type Cluster struct {
	environment *envtest.Environment
	config      *rest.Config
	// Kubeconfig is the file for programs.
	Kubeconfig string
	// Kube calls as fast as the API server takes it. It GETs claims as kubelet's helper does in the plugin.
	Kube kubernetes.Interface
	// Dynamic is for objects of Fettle.
	Dynamic dynamic.Interface
}

// ClusterConfig says what a cluster is made of.
type ClusterConfig struct {
	// Programs is the directory with etcd and kube-apiserver, CRDs the one with CustomResourceDefinitions, Dir the one for their data.
	Programs, CRDs, Dir string
	// Namespace is made for claims.
	Namespace string
	// Arguments are further ones of the kube-apiserver, without dashes.
	Arguments map[string]string
}

// StartCluster runs etcd and the kube-apiserver.
func StartCluster(ctx context.Context, from ClusterConfig) (c *Cluster, err error) {
	log.SetLogger(klog.Background()) // envtest's; without one it complains
	c = &Cluster{
		environment: &envtest.Environment{
			BinaryAssetsDirectory: from.Programs, ControlPlaneStartTimeout: time.Minute, ControlPlaneStopTimeout: time.Minute,
			CRDInstallOptions: envtest.CRDInstallOptions{Paths: []string{from.CRDs}, ErrorIfPathMissing: true},
		},
		Kubeconfig: filepath.Join(from.Dir, "kubeconfig"),
	}
	c.environment.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(from.Dir, "etcd")}
	certificates := filepath.Join(from.Dir, "certificates") // stay, so that the server can start again
	if err := os.MkdirAll(certificates, 0o700); err != nil {
		return nil, err
	}
	server := c.environment.ControlPlane.GetAPIServer()
	server.CertDir = certificates
	for name, value := range from.Arguments {
		server.Configure().Append(name, value)
	}
	config, err := c.environment.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server with the programs of %s: %w", from.Programs, err), c.Stop())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	c.config = config
	if err := apitest.WriteKubeconfig(c.Kubeconfig, config); err != nil {
		return nil, err
	}
	if c.Kube, err = newClient(config); err != nil {
		return nil, err
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: from.Namespace}}
	if _, err := c.Kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make the claims' namespace: %w", err)
	}
	return c, nil
}

// Create makes an object of Fettle, with its status if it has one. Resource is the plural of its kind; namespace is empty for an object of
// the cluster.
func (c *Cluster) Create(ctx context.Context, resource, namespace string, object any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	client := c.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace)
	made, err := client.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create one of %s: %w", resource, err)
	}
	status, ok := content["status"]
	if !ok {
		return nil
	}
	made.Object["status"] = status
	if _, err := client.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the status of one of %s: %w", resource, err)
	}
	return nil
}

// User makes an account of some groups, which may do nothing yet.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	user, err := c.environment.AddUser(envtest.User{Name: name, Groups: groups}, c.config)
	if err != nil {
		return nil, fmt.Errorf("make user %s: %w", name, err)
	}
	return user.Config(), nil
}

// RestartServer ends the kube-apiserver in order, and starts it again. Etcd and the accounts stay.
func (c *Cluster) RestartServer() error {
	server := c.environment.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	return nil
}

// Stop ends both.
func (c *Cluster) Stop() error { return c.environment.Stop() }

// newClient is the client of the plugin's own build: the compact encoding, and one kept-alive connection.
func newClient(config *rest.Config) (kubernetes.Interface, error) {
	own := rest.CopyConfig(config)
	own.QPS, own.Burst = -1, -1
	own.ContentType = "application/vnd.kubernetes.protobuf"
	own.AcceptContentTypes = own.ContentType + ",application/json"
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

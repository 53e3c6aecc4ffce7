// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/fettle-dev/fettle/test/apitest"
)

// namespace is that of all claims.
const namespace = "bench"

// cluster is a control plane without kubelets.
type cluster struct {
	environment *envtest.Environment
	kubeconfig  string
	// kube calls as fast as the API server takes it. It GETs claims as kubelet's helper does in the plugin.
	kube kubernetes.Interface
	// dynamic is for objects of ours.
	dynamic dynamic.Interface
}

// startCluster runs etcd, with its data in dir, and kube-apiserver.
func startCluster(ctx context.Context, assets, root, dir string) (c *cluster, err error) {
	log.SetLogger(klog.Background()) // envtest's; without one it complains
	c = &cluster{
		environment: &envtest.Environment{
			BinaryAssetsDirectory: assets, ControlPlaneStartTimeout: time.Minute, ControlPlaneStopTimeout: time.Minute,
			CRDInstallOptions: envtest.CRDInstallOptions{
				Paths: []string{filepath.Join(root, "deployments", "crds")}, ErrorIfPathMissing: true,
			},
		},
		kubeconfig: filepath.Join(dir, "kubeconfig"),
	}
	c.environment.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(dir, "etcd")}
	config, err := c.environment.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server with the binaries of %s: %w", assets, err), c.stop())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if err := apitest.WriteKubeconfig(c.kubeconfig, config); err != nil {
		return nil, err
	}
	if c.kube, err = newClient(config); err != nil {
		return nil, err
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := c.kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make the claims' namespace: %w", err)
	}
	return c, nil
}

func (c *cluster) stop() error { return c.environment.Stop() }

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

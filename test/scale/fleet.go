// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fettle-dev/fettle/kubeletplugin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/lone"
)

// node is one of many: the shipped plugin, in this process.
type node struct {
	name   string
	plugin *kubeletplugin.Plugin
	kube   kubernetes.Interface
	count  *counter
	// device is one that it publishes, in this pool. Empty: nobody has looked yet.
	device, pool string
	// sockets is the directory of kubelet's sockets.
	sockets string
}

// newNode makes the Node object, the directories and the plugin. All nodes look at the same host tree.
func (s *scale) newNode(ctx context.Context, i int) (*node, error) {
	n := &node{name: fmt.Sprintf("node-%04d", i), sockets: filepath.Join(s.fast, strconv.Itoa(i))}
	disk := filepath.Join(s.fast, "s", strconv.Itoa(i))
	for _, dir := range []string{filepath.Join(n.sockets, "r"), filepath.Join(n.sockets, "cdi"), disk} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a node's directories: %w", err)
		}
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	if _, err := s.cluster.Kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make node %s: %w", n.name, err)
	}
	clients, err := s.clients(n)
	if err != nil {
		return nil, err
	}
	config := kubeletplugin.Config{
		Node: n.name, Namespace: systemNamespace, HostRoot: s.host, PluginsDir: filepath.Join(n.sockets, "p"),
		RegistryDir: filepath.Join(n.sockets, "r"), CDIRoot: filepath.Join(n.sockets, "cdi"), StateDir: filepath.Join(disk, "state"),
		HealthPort: -1, Version: "scale", Registries: registry.Config{PlainHTTP: []string{s.registryHost}},
	}
	file, err := nodeconfig.Parse([]byte(configuration))
	if err != nil {
		return nil, err
	}
	config.File = file
	n.plugin, err = kubeletplugin.New(ctx, config, clients, "00000000-0000-4000-8000-000000000000")
	return n, err
}

// clients makes the clients that the program makes for itself, with a connection of their own.
func (s *scale) clients(n *node) (c kubeletplugin.Clients, err error) {
	config := rest.CopyConfig(s.access)
	config.QPS, config.Burst = 200, 400 // as the program has by default
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return c, err
	}
	n.count = newCounter(&http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true})
	client := &http.Client{Transport: n.count}
	if c.Dynamic, err = dynamic.NewForConfigAndClient(config, client); err != nil {
		return c, err
	}
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	if c.Kube, err = kubernetes.NewForConfigAndClient(config, client); err != nil {
		return c, err
	}
	n.kube, c.Events = c.Kube, &events.FakeRecorder{}
	return c, nil
}

// register does what kubelet does once it sees the socket.
func (n *node) register(ctx context.Context) error {
	socket := filepath.Join(n.sockets, "r", "fettle.dev-reg.sock")
	if _, err := lone.Await(ctx, time.Now(), "the socket of "+n.name, func() (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, nil
	}); err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = registerapi.NewRegistrationClient(connection).NotifyRegistrationStatus(ctx,
		&registerapi.RegistrationStatus{PluginRegistered: true}, grpc.WaitForReady(true))
	return errors.Join(err, connection.Close())
}

// prepare does what kubelet's helper does for a claim: read it, and prepare it.
func (n *node) prepare(ctx context.Context, name string) (types.UID, error) {
	claim, err := n.kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	results, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return "", err
	}
	if err := results[claim.UID].Err; err != nil {
		return "", fmt.Errorf("prepare claim %s on %s: %w", name, n.name, err)
	}
	return claim.UID, nil
}

// unprepare takes a claim back.
func (n *node) unprepare(ctx context.Context, uid types.UID) error {
	errs, err := n.plugin.UnprepareResourceClaims(ctx, []draplugin.NamespacedObject{{UID: uid}})
	return errors.Join(err, errs[uid])
}

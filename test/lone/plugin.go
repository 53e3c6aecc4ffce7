// SPDX-License-Identifier: Apache-2.0

package lone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Node is where a plugin runs. Starting it again finds what the last one left.
type Node struct {
	// Name is the Node object's.
	Name string
	// Fast holds the directories of sockets and CDI files, Disk the plugin's state, and Host is the host tree. The path of Fast is short,
	// because of the sockets.
	Fast, Disk, Host string
	// Flags are given to the plugin beside those that every node needs, and win over them.
	Flags []string
}

// CDI is the directory of the node's CDI files.
func (n Node) CDI() string { return filepath.Join(n.Fast, "cdi") }

// Make makes the Node object, unless it is there, and the directories.
func (n Node) Make(ctx context.Context, c *Cluster) error {
	for _, dir := range []string{filepath.Join(n.Fast, "r"), n.CDI(), n.Disk} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a node's directories: %w", err)
		}
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if _, err := c.Kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make node %s: %w", n.Name, err)
	}
	return nil
}

// Plugin is a running plugin that is registered.
type Plugin struct {
	*Process
	// DRA is what kubelet calls.
	DRA        drapb.DRAPluginClient
	connection *grpc.ClientConn
	// HTTP is the address of its metrics.
	HTTP string
	// Sockets is how long after its start both sockets answered.
	Sockets time.Duration
}

// Start runs a plugin and registers it as kubelet would.
func (n Node) Start(ctx context.Context, c *Cluster, program string) (p *Plugin, err error) {
	args := append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--node-name=" + n.Name, "--host-root=" + n.Host,
		"--kubelet-plugins-dir=" + filepath.Join(n.Fast, "p"), "--kubelet-registry-dir=" + filepath.Join(n.Fast, "r"),
		"--cdi-root=" + n.CDI(), "--state-dir=" + filepath.Join(n.Disk, "state"),
		"--http-address=127.0.0.1:0", "--health-port=0", "--nvml-command=",
	}, n.Flags...)
	child, err := Start(0, program, args...)
	if err != nil {
		return nil, err
	}
	p = &Plugin{Process: child}
	if err := p.register(ctx, n); err != nil {
		return nil, errors.Join(fmt.Errorf("register the plugin of node %s: %w", n.Name, err), p.Stop())
	}
	return p, nil
}

func (p *Plugin) register(ctx context.Context, n Node) (err error) {
	socket := filepath.Join(n.Fast, "r", "fettle.dev-reg.sock")
	endpoint := filepath.Join(n.Fast, "p", "fettle.dev", "dra.sock")
	p.Sockets, err = Await(ctx, p.Begin, "the sockets", func() (bool, error) {
		return listening(socket) && listening(endpoint), p.Running()
	})
	if err != nil {
		return err
	}
	if _, err = Await(ctx, p.Begin, "the address of the probes", func() (bool, error) {
		p.HTTP = p.Output.Served("probes")
		return p.HTTP != "", p.Running()
	}); err != nil {
		return err
	}
	registrar, err := dial(socket)
	if err != nil {
		return err
	}
	defer registrar.Close() //nolint:errcheck // nothing is lost
	client := registerapi.NewRegistrationClient(registrar)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return err
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return err
	}
	if p.connection, err = dial(info.Endpoint); err != nil {
		return err
	}
	p.DRA = drapb.NewDRAPluginClient(p.connection)
	return nil
}

// Stop ends the plugin.
func (p *Plugin) Stop() error {
	var err error
	if p.connection != nil {
		err = p.connection.Close()
	}
	return errors.Join(err, p.Process.Stop())
}

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func listening(path string) bool {
	connection, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

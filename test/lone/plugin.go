// SPDX-License-Identifier: Apache-2.0

package lone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// Flags are more flags of the plugin. They win over those that Start gives.
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
	// dra is what kubelet calls.
	dra        drapb.DRAPluginClient
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
	if _, err = Await(ctx, p.Begin, "the address of its metrics", func() (bool, error) {
		p.HTTP = p.Output.Served("health")
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
	p.dra = drapb.NewDRAPluginClient(p.connection)
	return nil
}

// goesOn is in the answer to a call whose time was used up. On a busy machine that happens, and kubelet calls again.
const goesOn = "goes on in the background"

// Prepare asks for claims as kubelet does, and says how long that took. An answer that refuses one of them is an error, so that no refusal
// is taken for a fast answer.
func (p *Plugin) Prepare(ctx context.Context, claims []*drapb.Claim) (*drapb.NodePrepareResourcesResponse, time.Duration, error) {
	request := &drapb.NodePrepareResourcesRequest{Claims: claims}
	begin := time.Now()
	response, err := p.dra.NodePrepareResources(ctx, request)
	for err == nil && slices.ContainsFunc(claims, func(c *drapb.Claim) bool {
		return strings.Contains(response.Claims[c.Uid].GetError(), goesOn)
	}) {
		response, err = p.dra.NodePrepareResources(ctx, request)
	}
	took := time.Since(begin)
	if err != nil {
		return nil, 0, fmt.Errorf("prepare: %w", err)
	}
	for _, c := range claims {
		if answer := response.Claims[c.Uid]; answer == nil || answer.Error != "" || len(answer.Devices) == 0 {
			return nil, 0, fmt.Errorf("prepare claim %s: the plugin answered %v", c.Name, answer)
		}
	}
	return response, took, nil
}

// Unprepare lets go of a claim.
func (p *Plugin) Unprepare(ctx context.Context, c *drapb.Claim) (time.Duration, error) {
	request := &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}}
	begin := time.Now()
	response, err := p.dra.NodeUnprepareResources(ctx, request)
	for err == nil && strings.Contains(response.Claims[c.Uid].GetError(), goesOn) {
		response, err = p.dra.NodeUnprepareResources(ctx, request)
	}
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("unprepare: %w", err)
	}
	if answer := response.Claims[c.Uid]; answer == nil || answer.Error != "" {
		return 0, fmt.Errorf("unprepare claim %s: the plugin answered %v", c.Name, answer)
	}
	return took, nil
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

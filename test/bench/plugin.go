// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// build makes the binary of a package as an image has it.
func build(ctx context.Context, root, binary, from string) error {
	return buildWith(ctx, root, binary, from, "CGO_ENABLED=0")
}

// buildWith is build with a variable of the environment.
func buildWith(ctx context.Context, root, binary, from, variable string) error {
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, from)
	command.Dir = root
	command.Env = append(os.Environ(), variable)
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s: %w", from, err)
	}
	return nil
}

// node is where a plugin runs. Starting it again finds what the last one left.
type node struct {
	// name is the Node object's.
	name string
	// fast holds the directories that are in memory, disk those that are not, and host the host tree.
	fast, disk, host string
	// flags are given to the plugin beside those that every node needs.
	flags []string
}

func (n node) cdi() string { return filepath.Join(n.fast, "cdi") }

// directory is where the plugin finds the directory of a host device, see configuration.
func (n node) directory(device string) string {
	return filepath.Join(n.host, "mnt", "disks", strings.TrimPrefix(device, "disk-"))
}

// newNode makes a Node object and empty directories.
func (b *bench) newNode(ctx context.Context, name string, flags ...string) (node, error) {
	b.nodes++
	n := node{name: name, flags: flags}
	n.fast, n.disk = filepath.Join(b.fast, strconv.Itoa(b.nodes)), filepath.Join(b.disk, strconv.Itoa(b.nodes))
	n.host = filepath.Join(n.fast, "host")
	for _, dir := range []string{filepath.Join(n.fast, "r"), n.cdi(), n.disk} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return n, fmt.Errorf("make a node's directories: %w", err)
		}
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := b.cluster.kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return n, fmt.Errorf("make node %s: %w", name, err)
	}
	return n, nil
}

// plugin is a running plugin that kubelet has registered.
type plugin struct {
	*process
	node       node
	dra        drapb.DRAPluginClient
	connection *grpc.ClientConn
	// http is the address of its metrics.
	http string
	// sockets is how long after its start both sockets answered.
	sockets time.Duration
	// standing is how many CDI files there are while no measured claim is prepared.
	standing int
}

// start runs a plugin and registers it as kubelet would.
func (b *bench) start(ctx context.Context, n node) (p *plugin, err error) {
	args := append([]string{
		"--kubeconfig=" + b.cluster.kubeconfig, "--node-name=" + n.name, "--host-root=" + n.host,
		"--kubelet-plugins-dir=" + filepath.Join(n.fast, "p"), "--kubelet-registry-dir=" + filepath.Join(n.fast, "r"),
		"--cdi-root=" + n.cdi(), "--state-dir=" + filepath.Join(n.disk, "state"),
		"--http-address=127.0.0.1:0", "--health-port=0", "--nvml-command=",
	}, n.flags...)
	child, err := startProcess(0, b.plugin, args...)
	if err != nil {
		return nil, err
	}
	p = &plugin{process: child, node: n}
	if err := p.register(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("register the plugin of node %s: %w", n.name, err), p.stop())
	}
	return p, nil
}

func (p *plugin) register(ctx context.Context) (err error) {
	socket := filepath.Join(p.node.fast, "r", "fettle.dev-reg.sock")
	endpoint := filepath.Join(p.node.fast, "p", "fettle.dev", "dra.sock")
	p.sockets, err = await(ctx, p.begin, "the sockets", func() (bool, error) {
		return listening(socket) && listening(endpoint), p.running()
	})
	if err != nil {
		return err
	}
	if _, err = await(ctx, p.begin, "the address of the probes", func() (bool, error) {
		p.http = p.output.Served("probes")
		return p.http != "", p.running()
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

func (p *plugin) stop() error {
	var err error
	if p.connection != nil {
		err = p.connection.Close()
	}
	return errors.Join(err, p.process.stop())
}

// files counts the files that the runtime reads.
func (p *plugin) files() (int, error) {
	specs, err := filepath.Glob(filepath.Join(p.node.cdi(), "[^.]*.json"))
	return len(specs), err
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

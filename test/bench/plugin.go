// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/test/lone"
)

// build makes the binary of a package as an image has it.
func build(ctx context.Context, root, binary, from string) error {
	return buildWith(ctx, root, binary, from, "CGO_ENABLED=0")
}

// buildWith is build with a variable of the environment.
func buildWith(ctx context.Context, root, binary, from, variable string) error {
	const flags = "-ldflags=-s -w -X github.com/fettle-dev/fettle/pkg/nvml.Simulated=/"
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", flags, "-o", binary, from)
	command.Dir = root
	command.Env = append(os.Environ(), variable)
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s: %w", from, err)
	}
	return nil
}

// namespace is that of all claims.
const namespace = "bench"

// node is where a plugin runs.
type node struct{ lone.Node }

// directory is where the plugin finds the directory of a host device, see configuration.
func (n node) directory(device string) string {
	return filepath.Join(n.Host, "mnt", "disks", strings.TrimPrefix(device, "disk-"))
}

// newNode makes a Node object and empty directories.
func (b *bench) newNode(ctx context.Context, name string, flags ...string) (node, error) {
	b.nodes++
	n := node{lone.Node{Name: name, Flags: flags}}
	n.Fast, n.Disk = filepath.Join(b.fast, strconv.Itoa(b.nodes)), filepath.Join(b.disk, strconv.Itoa(b.nodes))
	n.Host = filepath.Join(n.Fast, "host")
	return n, n.Make(ctx, b.cluster.Cluster)
}

// plugin is a running plugin that kubelet has registered.
type plugin struct {
	*lone.Plugin
	node node
	// standing is how many CDI files there are while no measured claim is prepared.
	standing int
}

// start runs a plugin and registers it.
func (b *bench) start(ctx context.Context, n node) (*plugin, error) {
	running, err := n.Start(ctx, b.cluster.Cluster, b.plugin)
	if err != nil {
		return nil, err
	}
	return &plugin{Plugin: running, node: n}, nil
}

// files counts the files that the runtime reads.
func (p *plugin) files() (int, error) {
	specs, err := filepath.Glob(filepath.Join(p.node.CDI(), "[^.]*.json"))
	return len(specs), err
}

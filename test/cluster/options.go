// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/test/cluster/internal/cluster"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// options are the flags of all commands.
type options struct {
	state, bin, name                     string
	nodes                                int
	emulate, featureGates, runtimeConfig string
	registry                             bool
	patience                             int
	image, node, component               string
	kill, otherKernel                    bool
	lines                                int
	args                                 []string
}

func (o *options) flags(command string, stderr io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.state, "state", "", "directory of the cluster's files (default CACHE/cluster)")
	f.StringVar(&o.bin, "bin", "", "directory of the binaries (default CACHE/bin)")
	f.StringVar(&o.name, "name", "fettle", "name of the cluster; with --state it decides the addresses")
	f.IntVar(&o.nodes, "nodes", 1, "number of nodes")
	f.StringVar(&o.emulate, "emulate", "", "Kubernetes minor version whose API the control plane emulates, as 1.34")
	f.StringVar(&o.featureGates, "feature-gates", "", "feature gates of the control plane")
	f.StringVar(&o.runtimeConfig, "runtime-config", "", "API groups to switch, as the API server's flag")
	f.BoolVar(&o.registry, "registry", false, "also start a registry")
	f.IntVar(&o.patience, "patience", 1, "how many times longer than usual to wait for what must come; for slow machines")
	f.StringVar(&o.image, "image", "", "image archive")
	f.StringVar(&o.node, "node", "", "node, as node1")
	f.StringVar(&o.component, "component", "", "kubelet or containerd; without --node etcd, kube-apiserver, ...")
	f.BoolVar(&o.kill, "kill", false, "use SIGKILL")
	f.BoolVar(&o.otherKernel, "other-kernel", false, "start with another kernel's release, until the next reboot")
	f.IntVar(&o.lines, "lines", 40, "lines of a log")
	return f
}

// resolve fills in defaults and makes paths absolute, without symbolic links: mounts are listed that way.
func (o *options) resolve() error {
	if o.state == "" || o.bin == "" {
		cache, err := cacheDir()
		if err != nil {
			return err
		}
		if o.state == "" {
			o.state = filepath.Join(cache, "cluster")
		}
		if o.bin == "" {
			o.bin = filepath.Join(cache, "bin")
		}
	}
	var err error
	if o.state, err = realPath(o.state); err != nil {
		return err
	}
	o.bin, err = realPath(o.bin)
	return err
}

func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve path: %w", err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		return real, nil
	}
	parent := filepath.Dir(path)
	if !errors.Is(err, os.ErrNotExist) || parent == path {
		return "", fmt.Errorf("resolve path: %w", err)
	}
	// What does not exist yet has no link at its end.
	parent, err = realPath(parent)
	return filepath.Join(parent, filepath.Base(path)), err
}

func cacheDir() (string, error) {
	if dir := os.Getenv("FETTLE_CACHE"); dir != "" {
		return dir, nil
	}
	root, err := repository()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, ".cache"), nil
}

// repository finds the root of Fettle's repository from the working directory upwards.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "test", "cluster", "go.mod"))
		if err == nil && strings.Contains(string(mod), "module github.com/fettle-dev/fettle/test/cluster\n") {
			return dir, nil
		}
	}
	return "", errors.New("not inside Fettle's repository: give --state and --bin, or set FETTLE_CACHE")
}

func (o *options) source() (string, error) {
	root, err := repository()
	return filepath.Join(root, "test", "cluster"), err
}

func (o *options) plan() plan.Options {
	return plan.Options{
		Name: o.name, State: o.state, Bin: o.bin, Nodes: o.nodes,
		Emulate: o.emulate, FeatureGates: o.featureGates, RuntimeConfig: o.runtimeConfig, Patience: o.patience,
	}
}

func (o *options) forComponent() (*cluster.Cluster, error) {
	if o.component == "" {
		return nil, usageError{errors.New("give --component, as kubelet or containerd")}
	}
	return cluster.Open(o.state)
}

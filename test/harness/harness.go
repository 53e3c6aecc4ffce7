// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Harness drives one cluster. Kube and Dynamic are there after Up or Connect.
type Harness struct {
	*Config
	Chart
	Machines

	Kube    kubernetes.Interface
	Dynamic dynamic.Interface

	// out is told what takes long.
	out io.Writer
}

// New builds a Harness without any effect. What takes long is told to out.
func New(c Config, out io.Writer) *Harness {
	return &Harness{Config: &c, Chart: Chart{&c}, Machines: Machines{&c}, out: out}
}

// ErrUnable is in the error of Check on a machine that cannot run a cluster.
var ErrUnable = errors.New("this machine cannot run a test cluster")

// exitUnable is the status of "cluster check" for it.
const exitUnable = 3

// Tools builds the cluster's program, its binaries, Helm and the images, unless make did so already.
func (h *Harness) Tools(ctx context.Context) error {
	if h.Built {
		return nil
	}
	fmt.Fprintln(h.out, "building the images, Helm and the cluster's binaries")
	_, err := h.run(ctx, nil, "make", "VERSION="+h.Version, h.helm(), "cluster-build", "image")
	return err
}

// Check returns an error with ErrUnable and the reason in one line where this machine cannot run a cluster.
func (h *Harness) Check(ctx context.Context) error {
	if !h.Built {
		if _, err := h.run(ctx, nil, "make", h.binary("cluster")); err != nil {
			return err
		}
	}
	_, err := h.cluster(ctx, "check")
	var command *CommandError
	var exit *exec.ExitError
	if errors.As(err, &command) && errors.As(err, &exit) && exit.ExitCode() == exitUnable {
		reason := strings.TrimPrefix(strings.TrimSpace(command.Output), ErrUnable.Error()+": ")
		return fmt.Errorf("%w: %s", ErrUnable, strings.ReplaceAll(reason, "\n", "; "))
	}
	return err
}

// Up starts the cluster, an earlier one in the same state directory is removed first, and gives its nodes the project's images.
func (h *Harness) Up(ctx context.Context) error {
	args := []string{"--nodes", strconv.Itoa(h.Nodes), "--patience", strconv.Itoa(max(1, h.Patience))}
	if h.Emulate != "" {
		args = append(args, "--emulate", h.Emulate)
	}
	phases, err := h.cluster(ctx, "up", args...)
	fmt.Fprint(h.out, phases)
	if err != nil {
		return err
	}
	if err := h.Connect(); err != nil {
		return err
	}
	return h.LoadImages(ctx, h.Images)
}

// Renew makes a new cluster of the one that runs, with the API of another Kubernetes minor, "" for the newest: it has no objects, and its
// nodes know of none. Their images and machines stay.
func (h *Harness) Renew(ctx context.Context, emulate string) error {
	phases, err := h.cluster(ctx, "renew", "--emulate", emulate)
	fmt.Fprint(h.out, phases)
	for _, node := range h.NodeNames() {
		if err == nil {
			err = h.mirror(ctx, node)
		}
	}
	return err
}

// Connect makes the clients of a cluster that runs already.
func (h *Harness) Connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	// Tests wait by asking often.
	config.QPS, config.Burst = 500, 1000
	if h.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	if h.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	return nil
}

// Down removes the cluster and returns an error where something of it is left on this machine.
func (h *Harness) Down(ctx context.Context) error {
	if _, err := h.cluster(ctx, "down"); err != nil {
		return err
	}
	_, err := h.cluster(ctx, "verify-clean")
	return err
}

// LoadImages gives every node the image archives of a directory.
func (h *Harness) LoadImages(ctx context.Context, dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	if len(archives) == 0 {
		return fmt.Errorf("%s holds no image archive: run make image", dir)
	}
	var group errgroup.Group
	for _, archive := range archives {
		group.Go(func() error {
			_, err := h.cluster(ctx, "load", "--image", archive)
			return err
		})
	}
	return group.Wait()
}

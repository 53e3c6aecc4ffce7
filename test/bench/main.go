// SPDX-License-Identifier: Apache-2.0

// Command bench measures the kubelet plugin as it is shipped, against a real API server, and prints one JSON object a figure. It
// needs etcd and kube-apiserver, which "make cluster-up" builds into .cache/bin. Run it from the root of the repository:
//
//	go run ./test/bench
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// figure is one line of output. The value is the median of the runs.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	assets := flags.String("assets", filepath.Join(".cache", "bin"), "directory of etcd and kube-apiserver")
	runs := flags.Int("runs", 3, "how often each figure is measured")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "fettle-kubeletplugin")
	size, err := build(ctx, binary)
	if err != nil {
		return err
	}
	environment := &envtest.Environment{BinaryAssetsDirectory: *assets}
	config, err := environment.Start()
	if err != nil {
		return fmt.Errorf("start the API server with the binaries of %s: %w", *assets, err)
	}
	defer func() { err = errors.Join(err, environment.Stop()) }()
	b, err := newBench(config, dir, binary)
	if err != nil {
		return err
	}
	figures := []figure{{Name: "plugin.binary", Unit: "MiB", Value: size}}
	for _, machine := range []string{"empty", "200-devices"} {
		measured, err := b.median(ctx, machine, *runs)
		if err != nil {
			return fmt.Errorf("machine %s: %w", machine, err)
		}
		figures = append(figures, measured...)
	}
	encoder := json.NewEncoder(out)
	for _, f := range figures {
		if err := encoder.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// build makes the binary as an image has it, and returns its size in MiB.
func build(ctx context.Context, binary string) (float64, error) {
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "./cmd/fettle-kubeletplugin")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return 0, fmt.Errorf("build the plugin: %w", err)
	}
	info, err := os.Stat(binary)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / mebi, nil
}

const mebi = 1 << 20

// median measures a machine a number of times.
func (b *bench) median(ctx context.Context, machine string, runs int) ([]figure, error) {
	var all []sample
	for i := range runs {
		s, err := b.measure(ctx, machine, i)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	middle := func(value func(sample) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, value(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	rss := "plugin.rss.idle"
	if machine != "empty" {
		rss = "plugin.rss." + machine
	}
	return []figure{
		{rss, "MiB", middle(func(s sample) float64 { return s.rss })},
		{"plugin.start.sockets." + machine, "ms", middle(func(s sample) float64 { return s.sockets.Seconds() * 1000 })},
		{"plugin.start.published." + machine, "ms", middle(func(s sample) float64 { return s.published.Seconds() * 1000 })},
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

// Command bench measures the kubelet plugin as it is shipped: the binary, its gRPC socket, and a real etcd and kube-apiserver, which
// "make cluster-build" puts into .cache/bin. The bench is kubelet and scheduler. Run it from the root of the repository, on a
// machine that does nothing else:
//
//	go run ./test/bench [-short] [-check]
//
// It prints one JSON object a line and nothing else; what it is doing goes to standard error. Latency goes up and down with the
// machine by more than any target, so each call is measured in turn with what it is compared with (the GET of the claim that
// kubelet's helper makes, the cheapest durable writes, an empty call, the same plugin without a claim), and targets are ratios
// wherever they can be.
//
// An object has these fields, of which only name, unit and value are always there:
//
//	name      what was measured; README.md lists the names
//	machine   the simulated machine: gpus, disks, 8xh100-iommu; presets or caches where none is part
//	          of it
//	held      claims that were prepared already
//	devices   devices of a claim
//	parallel  calls at once, one claim each
//	case      what a Prepare has to do: plain, own, effect or driver; gzip or zstd for a cache of kernels; short for a search for one
//	          device more than there is
//	bytes     size of the tar of a cache of kernels
//	files     how many files that cache has
//	form      how it lies on the node: Image or Directory
//	nodes     how many such machines there are
//	samples   how many calls or rounds the value is from
//	unit      ms, MiB, B, 1/s or ratio
//	value     null where it could not be measured; reason then says why
//	target    the most that value should be
//	met       whether it is
//
// A figure is there because a target reads it, or because it says what a target that is missed comes from.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// options are the command line.
type options struct {
	// root is the repository's.
	root   string
	assets string
	plugin string
	state  string
	check  bool
	// caches, drivers, partitions and plans are the parts that can be measured alone.
	caches, drivers, partitions, plans bool

	form form
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if len(os.Args) == 3 && os.Args[1] == cacheChild {
		if err := answerErrand(ctx, os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{root: ".", form: full()}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.assets, "assets", filepath.Join(".cache", "bin"), "directory of etcd, kube-apiserver and containerd")
	flags.StringVar(&o.plugin, "plugin", "", "binary of the plugin; built from this checkout where it is empty")
	flags.StringVar(&o.state, "state-dir", ".cache", "directory on the disk that the plugin's records shall be on")
	flags.BoolVar(&o.check, "check", false, "exit with 1 where a target is missed")
	flags.BoolVar(&o.caches, "caches", false, "measure caches of kernels and nothing else")
	flags.BoolVar(&o.drivers, "drivers", false, "measure claims with the driver's preset and nothing else")
	flags.BoolVar(&o.partitions, "partitions", false, "measure MIG instances and shares of GPUs, and nothing else")
	flags.BoolVar(&o.plans, "plans", false, "measure fettle plan and nothing else, which needs no cluster")
	brief := flags.Bool("short", false, "fewer claims and samples, in about a minute")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *brief {
		o.form = short()
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: settings are flags, see -help", flags.Arg(0))
	}
	return o, nil
}

// run measures everything. A missed target is an error only where it was asked for.
func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	begin := newBench
	if o.plans {
		begin = newPlanBench
	}
	b, err := begin(ctx, o, newReport(out), progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report.verdict(progress, o.check)
}

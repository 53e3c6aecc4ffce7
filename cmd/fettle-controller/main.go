// SPDX-License-Identifier: Apache-2.0

// Command fettle-controller runs the cluster side of Fettle, or its webhook, or removes Fettle from a cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	// The public certificate authorities: the images have no files of them.
	_ "golang.org/x/crypto/x509roots/fallback"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/fettle-dev/fettle/controller/uninstall"
	"github.com/fettle-dev/fettle/pkg/apicall"
	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// Exit codes of the command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage: fettle-controller [run] [flags]      serve until stopped
       fettle-controller webhook [flags]    answer the API server's reviews of configurations
       fettle-controller uninstall [flags]  remove Fettle from the cluster
       fettle-controller probe ADDRESS PATH ask a running one, for the probes of its container
Add -h to see the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	_, _ = memlimit.Set() // to 90 % of the container's limit: garbage is collected before the kernel ends the program
	code := run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	os.Exit(code)
}

// run picks the sub-command; no word, or a flag first, means "run".
func run(ctx context.Context, args []string, env func(string) string, stderr io.Writer) int {
	name := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if name == "probe" && len(args) == 2 {
		return report(name, httpserver.Probe(ctx, args[0], args[1]), stderr)
	}
	commands := map[string]func(context.Context, []string, func(string) string, io.Writer) error{
		"run":       serve,
		"webhook":   reviewAll,
		"uninstall": uninstallAll,
	}
	command, known := commands[name]
	if !known {
		fmt.Fprintf(stderr, "unknown sub-command %q\n%s", name, usage)
		return exitUsage
	}
	return report(name, command(ctx, args, env, stderr), stderr)
}

// report prints the error of a sub-command and returns the exit code. Helm prints a refused uninstall, so that begins with the reason.
func report(name string, err error, stderr io.Writer) int {
	var wrong *usageError
	var inUse *uninstall.InUseError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &inUse):
		fmt.Fprintf(stderr, "%v\n", err)
		return exitFailed
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "fettle-controller %s: %v\n", name, err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "fettle-controller %s: %v\n", name, err)
		return exitFailed
	}
}

// usageError is a mistake in how the command was called.
type usageError struct{ error }

// common are the flags that all sub-commands have.
type common struct {
	namespace, kubeconfig string
	qps                   float64
	burst, verbosity      int
}

// add defines the flags.
func (c *common) add(fs *flag.FlagSet, env func(string) string) {
	fs.StringVar(&c.namespace, "namespace", env("POD_NAMESPACE"), "the controller's own namespace (default $POD_NAMESPACE)")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty uses the pod's service account")
	fs.Float64Var(&c.qps, "kube-api-qps", 50, "requests a second to the API server")
	fs.IntVar(&c.burst, "kube-api-burst", 100, "requests at once to the API server")
	fs.IntVar(&c.verbosity, "v", 0, "log verbosity, 0 to 6")
}

// parse parses the flags and refuses other arguments.
func parse(fs *flag.FlagSet, args []string, stderr io.Writer) error {
	fs.SetOutput(io.Discard) // the error is printed once, by run
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(stderr)
			fs.Usage()
			return err
		}
		return &usageError{err}
	}
	if fs.NArg() > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", fs.Arg(0))}
	}
	return nil
}

// start sets logging up and returns how to reach the API server.
func (c *common) start() (*rest.Config, error) {
	logFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logFlags)
	if err := logFlags.Set("v", strconv.Itoa(c.verbosity)); err != nil {
		return nil, &usageError{fmt.Errorf("-v: %w", err)}
	}
	ctrllog.SetLogger(klog.Background())
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = float32(c.qps), c.burst
	config.UserAgent = "fettle-controller"
	config.Wrap(apicall.Bounded)
	return config, nil
}

// config reads the kubeconfig, or the pod's service account.
func (c *common) config() (*rest.Config, error) {
	if c.kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server from inside a pod: %w; outside one, give --kubeconfig", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	return config, nil
}

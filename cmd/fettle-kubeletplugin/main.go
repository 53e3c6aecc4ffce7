// SPDX-License-Identifier: Apache-2.0

// Command fettle-kubeletplugin runs on every node with accelerators: it publishes ResourceSlices and prepares ResourceClaims.
//
// Its subcommand probe asks a running plugin for a path at the address of --probe-address, for the probes of its container.
// Its subcommand selftest runs inside a container that was given devices and reports whether they can be opened. Its subcommand rights
// prints what a configuration file leaves it of the rights of its container.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	// The public authorities, where there are no files of them: the images have none.
	_ "golang.org/x/crypto/x509roots/fallback"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin"
	"github.com/fettle-dev/fettle/pkg/apicall"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/httpserver"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// version is set by the build.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	_, _ = memlimit.Set() // to 90 % of the container's limit: garbage is collected before the kernel ends the program
	code := (&command{args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr, confine: become}).run(ctx)
	stop()
	os.Exit(code)
}

// command is this program with its command line and environment.
type command struct {
	args, environ  []string
	stdout, stderr io.Writer
	// confine leaves the process only the rights that a configuration needs.
	confine func(*nodeconfig.File) error
}

// run returns the exit status: 0 after a clean stop, 1 after an error, 2 for a wrong command line.
func (c *command) run(ctx context.Context) int {
	args := c.args
	if len(args) > 0 && args[0] == "selftest" {
		return selftest(args[1:], c.environ, c.stdout, c.stderr)
	}
	if len(args) > 0 && args[0] == "rights" {
		return rights(args[1:], c.stdout, c.stderr, c.confine)
	}
	if len(args) == 3 && args[0] == "probe" {
		if err := httpserver.Probe(ctx, args[1], args[2]); err != nil {
			fmt.Fprintln(c.stderr, "fettle-kubeletplugin probe:", err)
			return 1
		}
		return 0
	}
	if len(args) > 0 && args[0] == "version" {
		fmt.Fprintln(c.stdout, version)
		return 0
	}
	options, err := parse(args, c.environ, c.stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(c.stderr, "fettle-kubeletplugin:", err)
		return 2
	}
	if err := serve(ctx, options, c.confine); err != nil {
		fmt.Fprintln(c.stderr, "fettle-kubeletplugin:", err)
		return 1
	}
	return 0
}

// serve runs the plugin until ctx ends. It confines the process first, if the options say so.
func serve(ctx context.Context, o options, confine func(*nodeconfig.File) error) error {
	file, err := nodeconfig.Load(o.configFile)
	if err != nil {
		return err
	}
	if o.confine {
		if err := confine(&file); err != nil {
			return err
		}
	}
	o.config.File, o.config.Version = file, version
	if o.config.Registries, err = registry.LoadConfig(o.registriesFile); err != nil {
		return fmt.Errorf("--registries: %w", err)
	}
	if o.config.PublicTrustRoot, err = trust.ReadPublicRoot(o.trustedRootFile); err != nil {
		return fmt.Errorf("--trust-public-root: %w", err)
	}
	clients, err := connect(o)
	if err != nil {
		return err
	}
	if o.config.Metrics.Address != "" {
		if o.config.Metrics.Filter, err = metricsFilter(o); err != nil {
			return err
		}
	}
	bootID, err := readBootID(o.config.HostRoot)
	if err != nil {
		return err
	}
	if o.config.BootTime, err = readBootTime(o.config.HostRoot); err != nil {
		return err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.Kube.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("start the recorder of Events: %w", err)
	}
	clients.Events = broadcaster.NewRecorder(scheme.Scheme, "fettle-kubeletplugin")
	plugin, err := kubeletplugin.New(ctx, o.config, clients, bootID)
	if err != nil {
		return err
	}
	// Bursts of claims make garbage of decoded objects. At the default of 100 a plugin with 1,000 claims has 20 MiB of anonymous memory, at
	// 50 it has 17 (test/bench, rss.anon).
	debug.SetGCPercent(gcPercent)
	klog.FromContext(ctx).Info("Starting", "version", version, "node", o.config.Node)
	return plugin.Run(ctx)
}

const gcPercent = 50

// readBootID takes the boot id from the host tree, so that a simulated machine can be rebooted, and from this kernel where the tree
// has none.
func readBootID(hostRoot string) (string, error) {
	data, err := readKernelFile(hostRoot, "proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// readBootTime returns when the kernel started, which is in the same tree as its boot id. The kernel reckons it from the clock and its
// uptime, so it is exact to a second.
func readBootTime(hostRoot string) (time.Time, error) {
	data, err := readKernelFile(hostRoot, "proc/stat")
	if err != nil {
		return time.Time{}, fmt.Errorf("read when the kernel started: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if text, found := strings.CutPrefix(line, "btime "); found {
			seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("read when the kernel started: /proc/stat: %w", err)
			}
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, nil
}

func readKernelFile(hostRoot, file string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(hostRoot, file))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile("/" + file)
	}
	return data, err
}

func connect(o options) (kubeletplugin.Clients, error) {
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return kubeletplugin.Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = float32(o.qps), o.burst
	config.UserAgent = "fettle-kubeletplugin/" + version
	config.Wrap(apicall.Bounded)
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return kubeletplugin.Clients{}, fmt.Errorf("make a client: %w", err)
	}
	// Claims are read and slices written in the compact encoding; custom resources have JSON only.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return kubeletplugin.Clients{}, fmt.Errorf("make a client: %w", err)
	}
	return kubeletplugin.Clients{Kube: kube, Dynamic: dynamicClient}, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// options are the command line and environment.
type options struct {
	config     kubeletplugin.Config
	configFile string
	// registriesFile says how registries are reached.
	registriesFile string
	// trustedRootFile has the trusted root of TrustPolicies that have none of their own.
	trustedRootFile string
	kubeconfig      string
	// confine has the process give up the rights that its configuration does not need.
	confine bool
	qps     float64
	burst   int
}

const envPrefix = "FETTLE_"

// foreignEnv are the names under which a DaemonSet's downward API and the Kernel Module Management operator's spec.dra set the same
// things. Fettle's own name for a flag wins over them.
func foreignEnv() map[string]string {
	return map[string]string{
		"node-name": "NODE_NAME", "namespace": "POD_NAMESPACE", "pod-uid": "POD_UID", "cdi-root": "CDI_ROOT",
		"kubelet-registry-dir": "KUBELET_REGISTRAR_DIRECTORY_PATH", "kubelet-plugins-dir": "KUBELET_PLUGINS_DIRECTORY_PATH",
		"health-port": "HEALTHCHECK_PORT",
	}
}

// parse merges flag over FETTLE_ variable over foreign variable over default. A FETTLE_ variable that names no flag is refused.
func parse(args, environ []string, stderr io.Writer) (options, error) {
	var o options
	flags := flagSet(&o)
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: settings are flags, see --help", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	var errs []error
	foreign := foreignEnv()
	flags.VisitAll(func(f *flag.Flag) {
		own := envName(f.Name)
		value, ok := env[own]
		delete(env, own)
		if !ok && foreign[f.Name] != "" {
			own = foreign[f.Name]
			value, ok = env[own]
		}
		if ok && !given[f.Name] {
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", own, err))
			}
		}
	})
	links := serviceLink()
	for name := range env {
		if strings.HasPrefix(name, envPrefix) && !links.MatchString(name) {
			errs = append(errs, fmt.Errorf("environment variable %s names no flag", name))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return o, errors.Join(errs...)
}

// serviceLink matches the variables that kubelet sets for the Services of a pod's namespace, fettle-controller's among them.
func serviceLink() *regexp.Regexp {
	return regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)
}

func envName(flagName string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

func flagSet(o *options) *flag.FlagSet {
	const (
		defaultHealthPort = 51515
		defaultQPS        = 200
		defaultBurst      = 400
		// Beside the health port: Kernel Module Management runs plugins on the host's network, where 8080 is rarely free.
		defaultHTTPAddress = ":51516"
	)
	c := &o.config
	flags := flag.NewFlagSet("fettle-kubeletplugin", flag.ContinueOnError)
	flags.StringVar(&c.Node, "node-name", "", "name of this node's Node object")
	flags.StringVar(&c.Namespace, "namespace", "", "namespace of the plugin's own pod")
	flags.StringVar(&c.PodUID, "pod-uid", "", "UID of the plugin's own pod; lets an old and a new version serve side by side")
	flags.StringVar(&c.HostRoot, "host-root", "/", "directory that holds the host's sys, dev and proc")
	flags.StringVar(&c.PluginsDir, "kubelet-plugins-dir", "/var/lib/kubelet/plugins", "kubelet's directory of plugins")
	flags.StringVar(&c.RegistryDir, "kubelet-registry-dir", "/var/lib/kubelet/plugins_registry", "kubelet's directory of registration sockets")
	flags.StringVar(&c.KubeletState, "kubelet-state", "/var/lib/kubelet/dra_manager_state",
		"kubelet's own list of prepared claims, or the socket of fettle-claims, read before a claim that was lost is given back; empty: never")
	flags.StringVar(&c.PodResources, "pod-resources", "",
		"kubelet's socket of pod resources, /var/lib/kubelet/pod-resources/kubelet.sock, by which metrics name pods; empty: they do not")
	flags.StringVar(&c.CDIRoot, "cdi-root", "/var/run/cdi", "directory of CDI specs that the container runtime reads")
	flags.StringVar(&c.StateDir, "state-dir", "/var/lib/fettle", "directory of the claims' records; must outlive a reboot")
	flags.StringVar(&c.ProbeAddress, "probe-address", "",
		"unix socket of /livez, /readyz and /healthz, unix:PATH or unix:@NAME, which the subcommand probe asks; empty: none")
	flags.StringVar(&c.HTTPAddress, "http-address", defaultHTTPAddress,
		"address of /readyz and /healthz, and of /metrics without --metrics-address; empty: none")
	flags.StringVar(&c.Metrics.Address, "metrics-address", "", "address of /metrics by HTTPS, for callers whose token may get that path; "+
		"empty: at --http-address, by HTTP and for all")
	flags.StringVar(&c.Metrics.CertificateDir, "metrics-certificate-dir", "",
		"directory with tls.crt and tls.key of /metrics; empty makes a certificate that no authority signed")
	flags.IntVar(&c.HealthPort, "health-port", defaultHealthPort,
		"port of the gRPC health service \"liveness\"; 0 is any free one, which the log names; -1: none")
	flags.StringVar(&c.HookCommand, "hook-command", "", "fettle-hook, which is installed on the host for containers with libraries of "+
		"presets; empty: presets with libraries are refused")
	flags.StringVar(&c.NVMLCommand, "nvml-command", "/fettle-nvml", "binary that asks NVIDIA's library; empty: never asked")
	flags.StringVar(&o.configFile, "config", "", "configuration file, "+nodeconfig.APIVersion+" "+nodeconfig.Kind)
	flags.StringVar(&o.registriesFile, "registries", "", "file that says how registries are reached: plainHTTP, mirrors, caFile")
	flags.StringVar(&o.trustedRootFile, "trust-public-root", "",
		"file with the Sigstore trusted root of TrustPolicies that have none of their own")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "credentials for use outside a pod")
	flags.BoolVar(&o.confine, "confine", true,
		"give up the capabilities and system calls that no feature in the configuration file needs, and execute the program again")
	flags.Float64Var(&o.qps, "kube-api-qps", defaultQPS, "calls a second to the API server that are not delayed")
	flags.IntVar(&o.burst, "kube-api-burst", defaultBurst, "calls to the API server in one burst that are not delayed")
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	verbosity := klogFlags.Lookup("v")
	flags.Var(verbosity.Value, "v", "log verbosity: 2 decisions, 4 detail, 6 calls")
	return flags
}

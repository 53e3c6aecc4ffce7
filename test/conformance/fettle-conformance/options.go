// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/conformance"
)

// options are the command line.
type options struct {
	config                 conformance.Config
	kubeconfig, parameters string
	restart, reboot        string
	commandTimeout         time.Duration
	focus, skip            *regexp.Regexp
	list, version          bool
	junit                  string
}

// parse reads the command line. It prints nothing.
func parse(args []string) (options, error) {
	var o options
	flags := flagSet(&o)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: what is given is given by flags, see --help", flags.Arg(0))
	}
	if o.list || o.version {
		return o, nil
	}
	if o.config.Driver == "" {
		return o, errors.New("--driver is missing: the name in the driver's ResourceSlices")
	}
	if o.config.Endpoint == "" && o.config.Registration == "" {
		return o, errors.New("--registration or --endpoint is missing: a socket of the plugin, below kubelet's directory")
	}
	if o.config.Parallel < 2 {
		return o, fmt.Errorf("--parallel is %d: want at least 2", o.config.Parallel)
	}
	return o, nil
}

func flagSet(o *options) *flag.FlagSet {
	const (
		callTimeout    = 45 * time.Second
		patience       = time.Minute
		stableFor      = 30 * time.Second
		commandTimeout = 2 * time.Minute
		parallel       = 16
	)
	c := &o.config
	c.CDIDirs = []string{"/etc/cdi", "/var/run/cdi"}
	flags := flag.NewFlagSet("fettle-conformance", flag.ContinueOnError)
	flags.StringVar(&c.Driver, "driver", "", "`name` of the driver, as in its ResourceSlices")
	flags.StringVar(&c.Registration, "registration", "", "registration `socket`, or a quoted pattern of which the newest match is taken")
	flags.StringVar(&c.Endpoint, "endpoint", "", "`socket` of the DRA service; empty: as the registration tells, after each restart anew")
	flags.StringVar(&c.Node, "node", "", "`name` of the Node that the plugin serves; empty: the only one that the driver's slices name")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with credentials; empty: $KUBECONFIG, ~/.kube/config or the pod's own")
	flags.Func("cdi-dir", "`directory` of CDI specs, or several with commas, the last of which wins (default /etc/cdi,/var/run/cdi)",
		func(value string) error {
			c.CDIDirs = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
			return nil
		})
	flags.StringVar(&c.Class, "class", "conformance.example.com", "`name` of the claims' DeviceClass, made for the run where there is none")
	flags.StringVar(&o.parameters, "parameters", "", "YAML or JSON `file` with the opaque configuration that goes into every allocation")
	flags.Func("devices", "regular `expression` for POOL/DEVICE of the devices to use; empty: all that are free", pattern(&c.Devices))
	flags.StringVar(&o.restart, "restart-command", "", "`program` and arguments that restart the plugin, split at spaces, without a shell")
	flags.StringVar(&o.reboot, "reboot-command", "", "`program` and arguments that do to the plugin what a reboot of the node does")
	flags.DurationVar(&o.commandTimeout, "command-timeout", commandTimeout, "how long one of these commands may take")
	flags.DurationVar(&c.CallTimeout, "call-timeout", callTimeout, "how long one call may take; the default is kubelet's")
	flags.DurationVar(&c.Patience, "patience", patience, "how long the plugin may take to start, publish, free a device, delete files")
	flags.DurationVar(&c.StableFor, "stable-for", stableFor, "how long ResourceSlices are watched for needless writes")
	flags.IntVar(&c.Parallel, "parallel", parallel, "calls side by side in the checks of concurrency")
	flags.Func("focus", "regular `expression`: run only checks whose names match", pattern(&o.focus))
	flags.Func("skip", "regular `expression`: leave out checks whose names match", pattern(&o.skip))
	flags.BoolVar(&o.list, "list", false, "print the checks and what each expects, and run none")
	flags.StringVar(&o.junit, "junit", "", "`file` for the report as JUnit XML")
	flags.BoolVar(&o.version, "version", false, "print the version")
	return flags
}

func pattern(to **regexp.Regexp) func(string) error {
	return func(value string) (err error) {
		*to, err = regexp.Compile(value)
		return err
	}
}

// resolve reads files and makes the client.
func (o *options) resolve(stderr io.Writer) (conformance.Config, error) {
	c := o.config
	c.Restart, c.Reboot = command(o.restart, o.commandTimeout, stderr), command(o.reboot, o.commandTimeout, stderr)
	if o.parameters != "" {
		text, err := os.ReadFile(o.parameters)
		if err != nil {
			return c, fmt.Errorf("read the parameters: %w", err)
		}
		if c.Parameters, err = yaml.YAMLToJSONStrict(text); err != nil {
			return c, fmt.Errorf("parameters %s: %w", o.parameters, err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	client, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return c, fmt.Errorf("find the API server: %w", err)
	}
	// The checks of concurrency are about the plugin and not about the client's own brake.
	client.QPS, client.Burst = -1, -1
	client.UserAgent = "fettle-conformance"
	c.Kube, err = kubernetes.NewForConfig(client)
	if err != nil {
		return c, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

// command runs a program as the words of a line say, without a shell. An empty line is no command. What it prints goes to stderr; a
// file is inherited, so that a plugin which the command leaves running may go on printing.
func command(line string, timeout time.Duration, stderr io.Writer) func(context.Context) error {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		program := exec.CommandContext(ctx, words[0], words[1:]...)
		program.Stdout, program.Stderr = stderr, stderr
		if err := program.Run(); err != nil {
			return fmt.Errorf("command %q: %w", line, errors.Join(err, context.Cause(ctx)))
		}
		return nil
	}
}

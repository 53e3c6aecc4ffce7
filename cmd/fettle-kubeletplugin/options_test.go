// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/kubeletplugin"
)

// defaults are what nothing given means.
func defaults() options {
	return options{confine: true, qps: 200, burst: 400, config: kubeletplugin.Config{
		HostRoot: "/", PluginsDir: "/var/lib/kubelet/plugins", RegistryDir: "/var/lib/kubelet/plugins_registry", CDIRoot: "/var/run/cdi",
		StateDir: "/var/lib/fettle", KubeletState: "/var/lib/kubelet/dra_manager_state", HTTPAddress: ":51516", HealthPort: 51515,
		NVMLCommand: "/fettle-nvml",
	}}
}

func TestParse(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		environ []string
		// change makes what is wanted from the defaults.
		change func(*options)
	}{
		{name: "nothing", change: func(*options) {}},
		{
			name: "flags", args: []string{"--node-name=n", "--health-port", "1234", "-kubeconfig=k", "--config=c", "--kube-api-qps=1.5", "--v=4"},
			change: func(o *options) {
				o.config.Node, o.config.HealthPort, o.kubeconfig, o.configFile, o.qps = "n", 1234, "k", "c", 1.5
			},
		},
		{
			name:    "own variables",
			environ: []string{"FETTLE_NODE_NAME=n", "FETTLE_HTTP_ADDRESS=:1", "FETTLE_KUBE_API_BURST=7", "FETTLE_NVML_COMMAND="},
			change: func(o *options) {
				o.config.Node, o.config.HTTPAddress, o.burst, o.config.NVMLCommand = "n", ":1", 7, ""
			},
		},
		{
			name: "Kernel Module Management's variables",
			environ: []string{
				"NODE_NAME=n", "POD_UID=u", "CDI_ROOT=/cdi", "KUBELET_REGISTRAR_DIRECTORY_PATH=/r",
				"KUBELET_PLUGINS_DIRECTORY_PATH=/p", "HEALTHCHECK_PORT=5",
			},
			change: func(o *options) {
				c := &o.config
				c.Node, c.PodUID, c.CDIRoot, c.RegistryDir, c.PluginsDir, c.HealthPort = "n", "u", "/cdi", "/r", "/p", 5
			},
		},
		{
			name: "flag over own over foreign", args: []string{"--node-name=flag"},
			environ: []string{"FETTLE_NODE_NAME=own", "NODE_NAME=foreign", "FETTLE_POD_UID=own", "POD_UID=foreign", "CDI_ROOT=/foreign"},
			change: func(o *options) {
				o.config.Node, o.config.PodUID, o.config.CDIRoot = "flag", "own", "/foreign"
			},
		},
		{
			name: "service links and the rest of the world",
			environ: []string{
				"FETTLE_CONTROLLER_SERVICE_HOST=10.0.0.1", "FETTLE_CONTROLLER_SERVICE_PORT=443", "FETTLE_CONTROLLER_SERVICE_PORT_WEBHOOK=443",
				"FETTLE_CONTROLLER_PORT=tcp://10.0.0.1:443", "FETTLE_CONTROLLER_PORT_443_TCP=tcp://10.0.0.1:443",
				"FETTLE_CONTROLLER_PORT_443_TCP_PROTO=tcp", "FETTLE_CONTROLLER_PORT_443_TCP_PORT=443", "FETTLE_CONTROLLER_PORT_443_TCP_ADDR=10.0.0.1",
				"PATH=/bin", "HOME", "=odd", "FETTLER=x", "V=9",
			},
			change: func(*options) {},
		},
		{name: "a value with an equals sign", environ: []string{"FETTLE_CONFIG=/a=b"}, change: func(o *options) { o.configFile = "/a=b" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.args, tt.environ, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			tt.change(&want)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		environ []string
		want    []string
	}{
		{name: "unknown flag", args: []string{"--node"}, want: []string{"-node"}},
		{name: "argument", args: []string{"serve"}, want: []string{`"serve"`, "--help"}},
		{name: "unknown variable", environ: []string{"FETTLE_NODENAME=n"}, want: []string{"FETTLE_NODENAME"}},
		{name: "wrong value", environ: []string{"FETTLE_HEALTH_PORT=high"}, want: []string{"FETTLE_HEALTH_PORT"}},
		{name: "wrong foreign value", environ: []string{"HEALTHCHECK_PORT=high"}, want: []string{"HEALTHCHECK_PORT"}},
		{
			name: "all at once, in order", environ: []string{"FETTLE_Z=1", "FETTLE_A=1", "FETTLE_M=1"},
			want: []string{"FETTLE_A names no flag\nenvironment variable FETTLE_M names no flag\nenvironment variable FETTLE_Z"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.args, tt.environ, t.Output())
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{name: "version", args: []string{"version"}, stdout: version},
		{name: "help", args: []string{"--help"}, stderr: "-node-name"},
		{name: "wrong flag", args: []string{"--nope"}, code: 2, stderr: "nope"},
		{name: "no such configuration", args: []string{"--config=/nonexistent/config.yaml"}, code: 1, stderr: "/nonexistent/config.yaml"},
		{name: "not in a cluster", args: nil, code: 1, stderr: "find the API server"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			var stdout, stderr strings.Builder
			c := &command{args: tt.args, stdout: &stdout, stderr: &stderr, confine: unconfined}
			if code := c.run(t.Context()); code != tt.code {
				t.Errorf("exit status %d, want %d", code, tt.code)
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

// TestEveryFlagHasItsVariable: names are derived, and must not collide with one another or with a service link.
func TestEveryFlagHasItsVariable(t *testing.T) {
	seen := map[string]string{}
	links := serviceLink()
	foreign := foreignEnv()
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		name := envName(f.Name)
		if seen[name] != "" {
			t.Errorf("%s stands for %s and %s", name, seen[name], f.Name)
		}
		seen[name] = f.Name
		if links.MatchString(name) && f.Name != "health-port" {
			t.Errorf("%s may be a service link", name)
		}
		delete(foreign, f.Name)
	})
	for name := range foreign {
		t.Errorf("a foreign variable stands for --%s, which is no flag", name)
	}
	if _, err := parse([]string{"-h"}, nil, t.Output()); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error %v, want flag.ErrHelp", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
)

func TestConfigValidate(t *testing.T) {
	valid := Config{
		Node: testNode, PodUID: "0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11", HostRoot: "/", PluginsDir: "/var/lib/kubelet/plugins",
		RegistryDir: "/var/lib/kubelet/plugins_registry", CDIRoot: "/var/run/cdi", StateDir: "/var/lib/fettle", HealthPort: 51515,
	}
	long := "/" + strings.Repeat("k", 80)
	tests := []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{name: "valid", change: func(*Config) {}},
		{name: "outside a pod", change: func(c *Config) { c.PodUID = "" }},
		{name: "no node", change: func(c *Config) { c.Node = "" }, want: []string{"NODE_NAME"}},
		{
			name: "relative", change: func(c *Config) { c.HostRoot, c.StateDir, c.KubeletState = "host", "", "s" },
			want: []string{`--host-root`, `--state-dir`, `--kubelet-state`},
		},
		{name: "any free port", change: func(c *Config) { c.HealthPort = 0 }},
		{name: "no port", change: func(c *Config) { c.HealthPort = -1 }},
		{name: "port", change: func(c *Config) { c.HealthPort = -2 }, want: []string{"--health-port"}},
		{name: "high port", change: func(c *Config) { c.HealthPort = 65536 }, want: []string{"--health-port"}},
		{name: "kubelet's directory for namespaces", change: func(c *Config) {
			c.PluginsDir = "/mnt/kube/plugins"
			c.File.Presets.AllowedHostPaths = []preset.AllowedHostPath{{Path: "/mnt/kube/pods"}, {Path: "/mnt/data"}, {Path: "/mnt"}}
		}, want: []string{"allowedHostPaths[0]: /mnt/kube/pods", "/mnt/kube, kubelet's directory", "allowedHostPaths[2]: /mnt:"}},
		{name: "long plugins", change: func(c *Config) { c.PluginsDir = long }, want: []string{"--kubelet-plugins-dir", "107"}},
		{name: "long registry", change: func(c *Config) { c.RegistryDir = long }, want: []string{"--kubelet-registry-dir", "107"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := valid
			tt.change(&c)
			err := c.Validate()
			if len(tt.want) == 0 {
				check.Must(t, err)
				return
			}
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

// SPDX-License-Identifier: Apache-2.0

package features

import "strings"

// Samples are a value of each list and each directory of the chart's values.
func Samples() map[string]any {
	list := func(elements ...any) []any { return elements }
	type values = map[string]any
	return values{
		"admission.allocators":                      list("system:serviceaccount:scheduling:other"),
		"bitstreams.pullSecretNamespaces":           list("team-a"),
		"bitstreams.registries.allowedDestinations": list("10.0.0.0/8"),
		"bitstreams.registries.clusterCIDRs":        list("10.244.0.0/16"),
		"bitstreams.registries.mirrors":             values{"registry.example": list("mirror.example")},
		"bitstreams.registries.mirrorsOnly":         list("registry.example"),
		"bitstreams.registries.plainHTTP":           list("registry.example:5000"),
		"claimLimits":                               list(values{"name": "x", "namespaceSelector": values{}, "maxDevices": 1}),
		"controller.tolerations":                    list(values{"operator": "Exists"}),
		"foreignDevices": list(values{
			"owner": "NVIDIA device plugin", "nodeSelector": values{"matchLabels": values{"pool": "mixed"}}, "pciAddresses": list("0000:1b:00.0"),
		}),
		"fpga.firmwareDir":    "/srv/firmware",
		"fpga.stores":         list("/srv/fpga"),
		"fpga.xrt.driverRoot": "/srv/xrt",
		"fpgaRegions": list(values{
			"device": "x", "interfaceID": strings.Repeat("5f", 16), "nodes": list("/dev/x"),
		}),
		"health.rules":                   list(values{"source": "aer", "severity": "ignored"}),
		"hostDevices":                    list(values{"name": "ssd", "directories": list("/mnt/disks/ssd*")}),
		"hostRoot":                       "/srv/host",
		"image.pullSecrets":              list(values{"name": "registry"}),
		"kubeletDir":                     "/var/lib/k0s/kubelet",
		"kubeletPlugin.tolerations":      list(values{"key": "x", "operator": "Exists"}),
		"networkPolicy.apiServer.cidrs":  list("10.0.0.1/32"),
		"networkPolicy.apiServer.ports":  list(443),
		"networkPolicy.metricsFrom":      list(values{"podSelector": values{}}),
		"networkPolicy.webhookFrom":      list(values{"podSelector": values{}}),
		"partitions.noExecuteTaintKeys":  list("example.com/team"),
		"partitions.sharedTaintKeys":     list("example.com/team"),
		"networkPolicy.registries.cidrs": list("10.0.0.2/32"),
		"networkPolicy.registries.ports": list(443),
		"nfd.labels":                     list("example.com/gpu"),
		"nvidia.driverRoot":              "/run/nvidia/driver",
		"presets.allowedHostPaths":       list(values{"path": "/mnt/team", "writable": true}),
		"presets.configMapNamespaces":    list("team-a"),
		"presets.hostDirectories":        list("/usr", "/srv/models"),
		"webhook.tolerations":            list(values{"operator": "Exists"}),
	}
}

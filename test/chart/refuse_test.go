// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"strings"
	"testing"
)

// TestRefusals checks that wrong values are refused with a message that names the value and what to do.
func TestRefusals(t *testing.T) {
	const region = "--set=fpgaRegions[0].device=x,fpgaRegions[0].interfaceID=5f2c81d0a4b94e0fb7c36d1e8f02a957"
	const ssd = "hostDevices[0].name=ssd,hostDevices[0].directories[0]="
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"unknown key", []string{"--set=colour=red"}, "additional properties 'colour' not allowed"},
		{"unknown nested key", []string{"--set=nvidia.enable=true"}, "at '/nvidia': additional properties 'enable'"},
		{"feature of a later release", []string{"--set=features.mig=true"}, "additional properties 'features'"},
		{"wrong type", []string{"--set=controller.replicas=many"}, "at '/controller/replicas': got string, want integer"},
		{"string for bool", []string{"--set-string=nvidia.enabled=true"}, "at '/nvidia/enabled': got string, want boolean"},
		{"bad privileged", []string{"--set=kubeletPlugin.privileged=yes"}, "must be one of 'auto', true, false"},
		{"bad duration", []string{"--set=discoveryInterval=often"}, "at '/discoveryInterval'"},
		{"bad health interval", []string{"--set=health.interval=often"}, "at '/health/interval'"},
		{"unknown key of health", []string{"--set=health.rule=x"}, "at '/health': additional properties 'rule'"},
		{
			"unknown source of health",
			[]string{"--set=health.rules[0].source=xids,health.rules[0].severity=fatal"},
			"at '/health/rules/0/source': value must be one of",
		},
		{"event that is switched off", []string{"--set=health.disabledSources[0]=xid"}, "at '/health/disabledSources/0': value must be one of"},
		{
			"unknown severity",
			[]string{"--set=health.rules[0].source=xid,health.rules[0].severity=critical"},
			"at '/health/rules/0/severity': value must be one of",
		},
		{"rule without severity", []string{"--set=health.rules[0].source=xid"}, "at '/health/rules/0': missing property 'severity'"},
		{
			"number for a code",
			[]string{"--set=health.rules[0].source=xid,health.rules[0].severity=fatal,health.rules[0].code=94"},
			"at '/health/rules/0/code': got number, want string",
		},
		{"mirror with a scheme", []string{"--set=bitstreams.registries.mirrors.a=https://b"}, "at '/bitstreams/registries/mirrors/a'"},
		{
			"mirror with a header of the client's",
			[]string{"--set=bitstreams.registries.mirrors.a[0].host=b,bitstreams.registries.mirrors.a[0].headers.Authorization=c"},
			"at '/bitstreams/registries/mirrors/a/0/headers'",
		},
		{
			"registry without the mirrors that alone are asked",
			[]string{"--set=bitstreams.registries.mirrorsOnly={a}"},
			`bitstreams.registries.mirrorsOnly[0]: "a" is not in mirrors`,
		},
		{"scheme of plain http", []string{"--set=bitstreams.registries.plainHTTP={http://a}"}, "at '/bitstreams/registries/plainHTTP/0'"},
		{
			"scheme of an allowed destination",
			[]string{"--set=bitstreams.registries.allowedDestinations={https://a}"},
			"at '/bitstreams/registries/allowedDestinations/0'",
		},
		{"host for a range", []string{"--set=bitstreams.registries.clusterCIDRs={a}"}, "at '/bitstreams/registries/clusterCIDRs/0'"},
		{"a key for a certificate", []string{"--set=bitstreams.registries.caBundle=secret"}, "at '/bitstreams/registries/caBundle'"},
		{"bad namespace of secrets", []string{"--set=bitstreams.pullSecretNamespaces={team-*}"}, "at '/bitstreams/pullSecretNamespaces/0'"},
		{"a certificate for a trusted root", []string{"--set=trust.publicRoot=MA=="}, "at '/trust/publicRoot'"},
		{"unknown key of trust", []string{"--set=trust.root=x"}, "at '/trust': additional properties 'root'"},
		{"unknown vendor", []string{"--set=presets.vendors={NVIDIA}"}, "at '/presets/vendors/0'"},
		{"bad namespace of ConfigMaps", []string{"--set=presets.configMapNamespaces={A}"}, "at '/presets/configMapNamespaces/0'"},
		{"relative path for namespaces", []string{"--set=presets.allowedHostPaths[0].path=data"}, "at '/presets/allowedHostPaths/0/path'"},
		{"path for namespaces without a name", []string{"--set=presets.allowedHostPaths={/data}"}, "at '/presets/allowedHostPaths/0'"},
		{"bad digest", []string{"--set=controller.image.digest=sha256:12"}, "at '/controller/image/digest'"},
		{"latest", []string{"--set=controller.image.tag=latest"}, `controller.image.tag is "latest"`},
		{"latest for all", []string{"--set=image.tag=latest"}, `image.tag is "latest"`},
		{"relative host root", []string{"--set=hostRoot=machine"}, "at '/hostRoot'"},
		{"dots in host root", []string{"--set=hostRoot=/opt/../etc"}, `hostRoot: "/opt/../etc" contains`},
		{"dots in glob", []string{"--set=" + ssd + "/mnt/../etc/*"}, `hostDevices[0] glob 0: "/mnt/../etc/*" contains`},
		{"host device without globs", []string{"--set=hostDevices[0].name=ssd"}, "at '/hostDevices/0'"},
		{"bad host device name", []string{"--set=hostDevices[0].name=S D,hostDevices[0].directories[0]=/a/b"}, "hostDevices/0/name"},
		{"char device outside dev", []string{"--set=hostDevices[0].name=x,hostDevices[0].charDevices[0]=/etc/x"}, "charDevices/0"},
		{"limit of nothing", []string{"--set-json=claimLimits=[{\"name\":\"a\",\"namespaceSelector\":{}}]"}, "at '/claimLimits/0'"},
		{
			"limit without a selector",
			[]string{"--set=claimLimits[0].name=a,claimLimits[0].maxDevices=1"},
			"at '/claimLimits/0': missing property 'namespaceSelector'",
		},
		{"limit that no claim reaches", []string{limits(33, "a")}, "at '/claimLimits/0/maxDevices'"},
		{"limit twice", []string{limits(1, "a", "a")}, `claimLimits[1].name: "a" appears twice`},
		{"unknown kind of FPGA", []string{"--set=fpga.backends={f2}"}, "at '/fpga/backends/0': value must be one of"},
		{"no kind of FPGA", []string{"--set-json=fpga.backends=[]"}, "at '/fpga/backends'"},
		{"firmware everywhere", []string{"--set=fpga.firmwareDir=/"}, "at '/fpga/firmwareDir'"},
		{"dots in XRT's root", []string{"--set=fpga.xrt.driverRoot=/a/../b"}, `fpga.xrt.driverRoot: "/a/../b" contains`},
		{"region without an interface", []string{"--set=fpgaRegions[0].device=x"}, "at '/fpgaRegions/0': missing property 'interfaceID'"},
		{"bad interface", []string{region + "0"}, "at '/fpgaRegions/0/interfaceID'"},
		{"unknown key of a region", []string{region + ",fpgaRegions[0].node=/dev/dpu"}, "at '/fpgaRegions/0': additional properties 'node'"},
		{"node outside dev", []string{region + ",fpgaRegions[0].nodes={/etc/passwd}"}, "at '/fpgaRegions/0/nodes/0'"},
		{"node with a wildcard", []string{region + ",fpgaRegions[0].nodes={/dev/dpu*}"}, "at '/fpgaRegions/0/nodes/0'"},
		{
			"region twice",
			[]string{region, "--set=fpgaRegions[1].device=x,fpgaRegions[1].interfaceID=5f2c81d0a4b94e0fb7c36d1e8f02a957"},
			`fpgaRegions[1].device: "x" appears twice`,
		},
		{"glob under root", []string{"--set=" + ssd + "/ssd*"}, `"/ssd*" lies directly under /`},
		{
			"name twice",
			[]string{"--set=" + ssd + "/mnt/a,hostDevices[1].name=ssd,hostDevices[1].directories[0]=/mnt/b"},
			`hostDevices[1].name: "ssd" is used twice`,
		},
		{
			"two affinities",
			[]string{"--set=nfd.enabled=true,kubeletPlugin.affinity.nodeAffinity.x=y"},
			"nfd.enabled and kubeletPlugin.affinity both set",
		},
		{"self-test at home", []string{"--set=selfTest.namespace=" + namespace}, "the release's own namespace"},
		{"label of ours", []string{"--set-string=commonLabels.helm\\.sh/chart=x"}, "is a label that the chart sets itself"},
		{"monitor without operator", []string{"--set=monitoring.podMonitor.enabled=true"}, "Install the Prometheus operator's CRDs"},
		{"SCC without OpenShift", []string{"--set=openshift.enabled=true"}, "Set openshift.enabled=false"},
		{"old Kubernetes", []string{"--kube-version=1.33.9"}, "Fettle needs Kubernetes 1.34 or newer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, stderr, err := helmTemplate(t, test.args...)
			if err == nil {
				t.Fatal("rendered, want a refusal")
			}
			if !strings.Contains(stderr, test.want) {
				t.Errorf("got %q, want it to contain %q", stderr, test.want)
			}
		})
	}
}

// TestAccepts checks values near the limits of what is refused.
func TestAccepts(t *testing.T) {
	for _, arg := range []string{
		"--kube-version=1.34.0",
		"--kube-version=v1.35.2-gke.1000",
		"--set=image.registry=registry.local:5000/fettle,image.tag=dev-1,image.pullPolicy=Never",
		"--set=controller.image.repository=registry.local:5000/fettle/controller",
		"--set=hostDevices[0].name=ssd,hostDevices[0].directories[0]=/mnt/ssd",
		"--set=kubeletPlugin.resources.limits.memory=1Gi",
		"--set=kubeletDir=/var/lib/k0s/kubelet",
		"--set=priorityClass.create=false,priorityClass.name=system-node-critical",
		"--set=global.imageRegistry=x",
	} {
		t.Run(arg, func(t *testing.T) {
			render(t, arg)
		})
	}
}

// limits sets claimLimits of these names.
func limits(most int, names ...string) string {
	entries := make([]string, 0, len(names))
	for _, name := range names {
		entries = append(entries, fmt.Sprintf(`{"name":%q,"namespaceSelector":{},"maxDevices":%d}`, name, most))
	}
	return "--set-json=claimLimits=[" + strings.Join(entries, ",") + "]"
}

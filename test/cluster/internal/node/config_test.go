// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"net/netip"
	"strings"
	"testing"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

func testPlan(t *testing.T) plan.Cluster {
	t.Helper()
	c, err := plan.New(plan.Options{Name: "fettle", State: "/state", Bin: "/bins", Nodes: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKubeletConfigHasOnlyKnownFields(t *testing.T) {
	c := testPlan(t)
	var config kubeletconfig.KubeletConfiguration
	if err := yaml.UnmarshalStrict([]byte(node.KubeletConfig(c, c.Nodes[0])), &config); err != nil {
		t.Fatal(err)
	}
	if want := "/" + c.ID + "/node1"; config.CgroupRoot != want {
		t.Errorf("cgroup root is %q, want %q", config.CgroupRoot, want)
	}
	if config.FailCgroupV1 == nil || *config.FailCgroupV1 {
		t.Error("the kubelet would refuse cgroup v1")
	}
}

func TestContainerdConfig(t *testing.T) {
	c := testPlan(t)
	got := node.ContainerdConfig(c, c.Nodes[0])
	for _, want := range []string{
		"version = 3\n",
		"sandbox = \"fettle.dev/test/pause:1\"\n",
		"config_path = \"/state/nodes/node1/config/certs.d\"\n",
		"BinaryName = \"/bins/runc\"\n",
		"BinaryName = \"/state/nodes/node1/config/crun\"\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
}

func TestCNIConfig(t *testing.T) {
	n := plan.Node{Pods: netip.MustParsePrefix("10.128.17.0/24")}
	const want = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipMasq": false,
    "hairpinMode": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "10.128.17.0/24"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`
	if got := node.CNIConfig(n); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestRegistryHost(t *testing.T) {
	const want = `server = "http://10.128.16.1:5000"

[host."http://10.128.16.1:5000"]
capabilities = ["pull", "resolve"]
`
	if got := node.RegistryHost(plan.Cluster{Registry: "10.128.16.1:5000"}); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package plan decides, as plain values, what a test cluster is called and where it lives: its names, addresses and
// directories. Nothing here touches the kernel; every other package takes its names and paths from here.
package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"
)

// MaxNodes is how many pod subnets fit beside the machine subnet in one block.
const MaxNodes = blockSubnets - 1

// ServiceSubnet holds the one Service address that works without kube-proxy.
const ServiceSubnet = "10.96.0.0/24"

// ServiceAddress is the address of the kubernetes Service, on the control plane's loopback.
const ServiceAddress = "10.96.0.1"

// RegistryPort is where the registry listens on the host's address.
const RegistryPort = 5000

// Options are what a user chooses.
type Options struct {
	Name          string `json:"name"`
	State         string `json:"state"` // absolute
	Bin           string `json:"bin"`   // absolute
	Nodes         int    `json:"-"`
	Emulate       string `json:"emulate,omitempty"`
	FeatureGates  string `json:"featureGates,omitempty"`
	RuntimeConfig string `json:"runtimeConfig,omitempty"`
	// Patience is how many times longer than usual to wait for what must come; 0 is 1.
	Patience int `json:"patience,omitempty"`
}

// Cluster is one planned cluster; it is what STATE/cluster.json holds.
type Cluster struct {
	Options

	// ID marks everything the kernel can see of this cluster: interface, cgroups, environment of processes.
	ID           string     `json:"id"`
	Kubeconfig   string     `json:"kubeconfig"`
	Server       string     `json:"server"`
	Registry     string     `json:"registry"`
	Host         netip.Addr `json:"hostAddress"`
	ControlPlane netip.Addr `json:"controlPlaneAddress"`
	// Subnet is the machines' network: host, control plane, nodes.
	Subnet netip.Prefix `json:"subnet"`
	Nodes  []Node       `json:"nodes"`
}

// Node is one planned node.
type Node struct {
	Name    string       `json:"name"`
	Address netip.Addr   `json:"address"`
	Pods    netip.Prefix `json:"podSubnet"`
	Dirs    Dirs         `json:"dirs"`
	// PIDs are the running daemons by component; filled in when the state is written.
	PIDs map[string]int `json:"pids,omitempty"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// New plans a cluster whose addresses overlap none of the prefixes in use on the host. Name and state directory
// together choose the ID and the first block tried, so that clusters side by side differ and a cluster that comes up
// again gets the same addresses.
func New(o Options, inUse []netip.Prefix) (Cluster, error) {
	if !nameForm.MatchString(o.Name) {
		return Cluster{}, fmt.Errorf("cluster name %q: use at most 32 of a-z, 0-9 and -", o.Name)
	}
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		return Cluster{}, fmt.Errorf("%d nodes: a cluster has 1 to %d", o.Nodes, MaxNodes)
	}
	sum := identity(o.Name, o.State)
	block, err := freeBlock(binary.BigEndian.Uint32(sum[4:8]), inUse)
	if err != nil {
		return Cluster{}, err
	}
	c := Cluster{
		Options:      o,
		ID:           ID(o.Name, o.State),
		Kubeconfig:   filepath.Join(o.State, "kubeconfig"),
		Subnet:       block.subnet(0),
		Host:         block.address(0, 1),
		ControlPlane: block.address(0, 2),
	}
	c.Server = fmt.Sprintf("https://%s:443", c.ControlPlane)
	c.Registry = fmt.Sprintf("%s:%d", c.Host, RegistryPort)
	for i := range o.Nodes {
		name := fmt.Sprintf("node%d", i+1)
		c.Nodes = append(c.Nodes, Node{
			Name:    name,
			Address: block.address(0, 10+i),
			Pods:    block.subnet(1 + i),
			Dirs:    nodeDirs(filepath.Join(o.State, "nodes", name)),
		})
	}
	return c, nil
}

// ID is the short mark of the cluster with this name and state directory. An interface name has room for 15 bytes.
func ID(name, state string) string {
	sum := identity(name, state)
	return "ft-" + hex.EncodeToString(sum[:4])
}

func identity(name, state string) [sha256.Size]byte {
	return sha256.Sum256([]byte(name + "\x00" + state))
}

// Patient is how long to wait on this machine for what takes at most limit on a usual one.
func (c Cluster) Patient(limit time.Duration) time.Duration {
	return limit * time.Duration(max(1, c.Patience))
}

// Node finds a node by name.
func (c Cluster) Node(name string) (Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("no node %q: this cluster has node1 to node%d", name, len(c.Nodes))
}

// SPDX-License-Identifier: Apache-2.0

// Package controlplane renders the command lines and files of etcd, the API server, the controller manager and the
// scheduler of a cluster.
package controlplane

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/test/cluster/internal/pki"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// Names of the components, which are also those of their binaries.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// Command returns the command line of a component, or false for one this package does not know.
func Command(c plan.Cluster, component string) ([]string, bool) {
	var flags []string
	switch component {
	case Etcd:
		flags = etcdFlags(c)
	case APIServer:
		flags = apiServerFlags(c)
	case ControllerManager:
		flags = controllerManagerFlags(c)
	case Scheduler:
		flags = schedulerFlags(c)
	default:
		return nil, false
	}
	return append([]string{filepath.Join(c.Bin, component)}, flags...), true
}

// EtcdDir is where all objects are.
func EtcdDir(c plan.Cluster) string { return c.File("etcd") }

func etcdFlags(c plan.Cluster) []string {
	return []string{
		"--name=test",
		"--data-dir=" + EtcdDir(c),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // a test's data need not outlive the machine
		"--log-level=warn",
	}
}

func apiServerFlags(c plan.Cluster) []string {
	pki := pkiFile(c)
	return append([]string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0",
		// Port and address of the kubernetes Service, so that it works without kube-proxy.
		"--secure-port=443",
		"--advertise-address=" + c.ControlPlane.String(),
		"--service-cluster-ip-range=" + plan.ServiceSubnet,
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + pki("ca.crt"),
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--cert-dir=" + c.File("pki"),
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"),
		"--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("service-account.crt"),
		"--service-account-signing-key-file=" + pki("service-account.key"),
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + pki("front-proxy-client.key"),
		// Webhooks and aggregated APIs are reached at their pods: nothing implements ClusterIPs.
		"--enable-aggregator-routing=true",
	}, optional("--runtime-config=", c.RuntimeConfig, common(c))...)
}

func controllerManagerFlags(c plan.Cluster) []string {
	return append([]string{
		"--kubeconfig=" + c.File("pki", ControllerManager+".kubeconfig"),
		"--root-ca-file=" + c.File("pki", "ca.crt"),
		"--service-account-private-key-file=" + c.File("pki", "service-account.key"),
		"--cluster-signing-cert-file=" + c.File("pki", "ca.crt"),
		"--cluster-signing-key-file=" + c.File("pki", "ca.key"),
		"--cert-dir=" + c.File("pki"),
		"--use-service-account-credentials=true",
		// With the default of 20 a second the controllers' own tokens alone take five seconds.
		"--kube-api-qps=500",
		"--kube-api-burst=500",
		"--leader-elect=false",
	}, common(c)...)
}

func schedulerFlags(c plan.Cluster) []string {
	return append([]string{
		"--kubeconfig=" + c.File("pki", Scheduler+".kubeconfig"),
		"--cert-dir=" + c.File("pki"),
		"--leader-elect=false",
	}, common(c)...)
}

func common(c plan.Cluster) []string {
	flags := optional("--feature-gates=", c.FeatureGates, nil)
	if c.Emulate != "" {
		flags = append(flags, "--emulated-version=kube="+c.Emulate)
	}
	return flags
}

func optional(flag, value string, rest []string) []string {
	if value == "" {
		return rest
	}
	return append([]string{flag + value}, rest...)
}

func pkiFile(c plan.Cluster) func(string) string {
	return func(name string) string { return c.File("pki", name) }
}

// WriteFiles makes the cluster's certificates and all client configurations.
func WriteFiles(c plan.Cluster) error {
	ca, err := pki.NewAuthority("fettle-test-ca")
	if err != nil {
		return err
	}
	proxyCA, err := pki.NewAuthority("fettle-test-front-proxy-ca")
	if err != nil {
		return err
	}
	if err := writePairs(c, ca, proxyCA); err != nil {
		return err
	}
	return writeKubeconfigs(c, ca)
}

func writePairs(c plan.Cluster, ca, proxyCA *pki.Authority) error {
	pairs := []struct {
		name string
		make func() (pki.Pair, error)
	}{
		{"ca", func() (pki.Pair, error) { return ca.Pair, nil }},
		{"front-proxy-ca", func() (pki.Pair, error) { return proxyCA.Pair, nil }},
		{"front-proxy-client", func() (pki.Pair, error) { return proxyCA.Client("front-proxy-client") }},
		{"kubelet-client", func() (pki.Pair, error) { return ca.Client("kube-apiserver-kubelet-client", "system:masters") }},
		{"service-account", pki.KeyPair},
		{"apiserver", func() (pki.Pair, error) {
			return ca.Server(APIServer, []net.IP{
				net.ParseIP(c.ControlPlane.String()), net.ParseIP(plan.ServiceAddress), net.IPv4(127, 0, 0, 1),
			}, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local")
		}},
	}
	for _, p := range pairs {
		pair, err := p.make()
		if err != nil {
			return err
		}
		if err := pair.Write(c.File("pki"), p.name); err != nil {
			return err
		}
	}
	return nil
}

func writeKubeconfigs(c plan.Cluster, ca *pki.Authority) error {
	type user struct{ file, name, group string }
	users := []user{
		{c.Kubeconfig, "admin", "system:masters"},
		{c.File("pki", ControllerManager+".kubeconfig"), "system:kube-controller-manager", ""},
		{c.File("pki", Scheduler+".kubeconfig"), "system:kube-scheduler", ""},
	}
	for _, n := range c.Nodes {
		users = append(users, user{c.File("pki", n.Name+".kubeconfig"), "system:node:" + n.Name, "system:nodes"})
	}
	for _, u := range users {
		var groups []string
		if u.group != "" {
			groups = []string{u.group}
		}
		client, err := ca.Client(u.name, groups...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(u.file, pki.Kubeconfig(c.Server, ca.Cert, client), 0o600); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		if u.name == "admin" {
			if err := client.Write(c.File("pki"), "admin"); err != nil {
				return err
			}
		}
	}
	return nil
}

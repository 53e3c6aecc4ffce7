// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/lone"
)

const (
	// namespace has the claims, systemNamespace Fettle itself.
	namespace, systemNamespace = "scale", "fettle-system"
	// pluginUser and controllerUser are the accounts of the chart.
	pluginUser     = "system:serviceaccount:fettle-system:fettle-kubeletplugin"
	controllerUser = "system:serviceaccount:fettle-system:fettle-controller"
	// machineName is the machine of test/machines that all nodes are.
	machineName = "8xh100-sxm"
	// configuration is the chart's, as far as it concerns such a node.
	configuration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
kernelCaches: {enabled: true, fetchAhead: true}
`
)

// scale is a cluster with many nodes.
type scale struct {
	options
	report   report
	progress io.Writer
	// fast has the nodes' directories, host the tree of the machine.
	fast, host string
	// registry has the images, audit what the controller calls.
	registry     *http.Server
	registryHost string
	audit        *audit
	cluster      *lone.Cluster
	access       *rest.Config
	program      *lone.Process
	nodes        []*node
	// stop ends all nodes, and ended has how each ended.
	stop  context.CancelFunc
	ended chan error
	// running is how many nodes have not said how they ended.
	running int
}

// open starts what is there before the first node.
func (s *scale) open(ctx context.Context) (err error) {
	if s.fast, err = os.MkdirTemp("", "fs"); err != nil {
		return err
	}
	s.host = filepath.Join(s.fast, "host")
	text, err := os.ReadFile(filepath.Join("test", "machines", machineName+".txtar"))
	if err != nil {
		return fmt.Errorf("read a machine (run this from the root of the repository): %w", err)
	}
	machine, err := sim.Parse(text)
	if err != nil {
		return err
	}
	// What could not be made without root is device nodes, which discovery does not need where sysfs tells their numbers.
	if _, err = machine.Expand(s.host, sim.Options{}); err != nil {
		return err
	}
	if s.audit, err = newAudit(s.fast); err != nil {
		return err
	}
	arguments := s.audit.arguments()
	// Without it a server that ends waits a minute for thousands of watches, and kubelet would kill it before.
	arguments["shutdown-watch-termination-grace-period"] = "10s"
	s.cluster, err = lone.StartCluster(ctx, lone.ClusterConfig{
		Programs: s.assets, CRDs: filepath.Join("deployments", "crds"), Dir: s.fast, Namespace: namespace, Arguments: arguments,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(s.makeAccounts(ctx), s.serveImages()); err != nil {
		return err
	}
	return s.startController(ctx)
}

// makeAccounts makes the accounts of plugins and controller, as ones that the API server may keep waiting: an administrator is never. What
// they may do is not the matter here.
func (s *scale) makeAccounts(ctx context.Context) (err error) {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}
	if _, err := s.cluster.Kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scale"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}
	for _, name := range []string{pluginUser, controllerUser} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
	}
	if _, err := s.cluster.Kube.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	const group = "system:serviceaccounts"
	if s.access, err = s.cluster.User(pluginUser, group); err != nil {
		return err
	}
	access, err := s.cluster.User(controllerUser, group)
	if err != nil {
		return err
	}
	return errors.Join(apitest.WriteKubeconfig(s.kubeconfig(), access), s.makeFlows(ctx))
}

// kubeconfig is the controller's.
func (s *scale) kubeconfig() string { return filepath.Join(s.fast, "controller.kubeconfig") }

// makeFlows makes the chart's FlowSchemas.
func (s *scale) makeFlows(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join("test", "chart", "testdata", "golden", "default.yaml"))
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var flow flowcontrolv1.FlowSchema
		if !strings.Contains(document, "kind: FlowSchema") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &flow); err != nil {
			return err
		}
		if _, err := s.cluster.Kube.FlowcontrolV1().FlowSchemas().Create(ctx, &flow, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (s *scale) startController(ctx context.Context) (err error) {
	if s.controller == "" {
		s.controller = filepath.Join(s.fast, "fettle-controller")
		build := exec.CommandContext(ctx, "go", "build", "-o", s.controller, "./cmd/fettle-controller")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build the controller: %w", err)
		}
	}
	registries := filepath.Join(s.fast, "registries.yaml")
	if err := os.WriteFile(registries, fmt.Appendf(nil, "plainHTTP: [%q]\n", s.registryHost), 0o600); err != nil {
		return err
	}
	s.program, err = lone.Start(0, s.controller, "--kubeconfig="+s.kubeconfig(), "--namespace="+systemNamespace, "--registries="+registries,
		"--metrics-bind-address=0", "--health-probe-bind-address=unix:"+filepath.Join(s.fast, "probe"))
	return err
}

func (s *scale) close() error {
	var errs []error
	if s.stop != nil {
		s.stop()
		for ; s.running > 0; s.running-- {
			errs = append(errs, <-s.ended)
		}
	}
	if s.program != nil {
		errs = append(errs, s.program.Stop())
	}
	if s.registry != nil {
		errs = append(errs, s.registry.Close())
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Stop())
	}
	if s.fast != "" {
		errs = append(errs, os.RemoveAll(s.fast))
	}
	return errors.Join(errs...)
}

// wantMemory tells how much memory the controller has now. How much it may have is what the chart's limit by the number of nodes goes by.
func (s *scale) wantMemory() error {
	memory, err := s.memory()
	const each, base = 25.0 / 1024, 64
	return errors.Join(err, s.report.want("controller", "MiB", memory, base+each*float64(len(s.nodes))))
}

// memory is what the controller has of the machine's memory for itself (RssAnon), in MiB. Pages of its binary are not in it.
func (s *scale) memory() (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.program.PID()), "status"))
	if err != nil {
		return 0, errors.Join(err, s.program.Running())
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "RssAnon:"); found {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			return float64(kib) / (1 << 10), err
		}
	}
	return 0, errors.New("the kernel does not say how much memory the controller has")
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fettle-dev/fettle/pkg/sim"
)

const (
	patience = time.Minute
	// idle is how long the plugin idles before its memory is read: two looks at the machine.
	idle = 65 * time.Second
)

// bench starts plugins on machines of their own.
type bench struct {
	kube                    kubernetes.Interface
	dir, binary, kubeconfig string
}

// sample is one run. The times count from the start of the process.
type sample struct {
	sockets, published time.Duration
	// rss is the resident memory in MiB, as the kernel counts it in VmRSS (proc_pid_status(5)).
	rss float64
}

func newBench(config *rest.Config, dir, binary string) (*bench, error) {
	file := clientcmdapi.NewConfig()
	file.Clusters["bench"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["bench"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	file.CurrentContext = "bench"
	b := &bench{dir: dir, binary: binary, kubeconfig: filepath.Join(dir, "kubeconfig")}
	if err := clientcmd.WriteToFile(*file, b.kubeconfig); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.QPS, own.Burst = -1, -1
	kube, err := kubernetes.NewForConfig(own)
	b.kube = kube
	return b, err
}

func (b *bench) measure(ctx context.Context, machine string, run int) (s sample, err error) {
	node := fmt.Sprintf("bench-%s-%d", machine, run)
	root, err := b.prepare(ctx, node, machine)
	if err != nil {
		return s, err
	}
	ports, err := freePorts()
	if err != nil {
		return s, err
	}
	plugin := exec.CommandContext(ctx, b.binary, "--kubeconfig="+b.kubeconfig, "--node-name="+node, "--host-root="+filepath.Join(root, "host"),
		"--kubelet-plugins-dir="+filepath.Join(root, "p"), "--kubelet-registry-dir="+filepath.Join(root, "r"),
		"--cdi-root="+filepath.Join(root, "cdi"),
		"--state-dir="+filepath.Join(root, "state"), "--http-address=127.0.0.1:"+ports[0], "--health-port="+ports[1], "--nvml-command=")
	var log bytes.Buffer
	plugin.Stderr = &log
	begin := time.Now()
	if err := plugin.Start(); err != nil {
		return s, err
	}
	defer func() {
		err = errors.Join(err, plugin.Process.Signal(syscall.SIGTERM), plugin.Wait())
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log.String())
		}
	}()
	sockets := []string{filepath.Join(root, "r", "fettle.dev-reg.sock"), filepath.Join(root, "p", "fettle.dev", "dra.sock")}
	if s.sockets, err = await(ctx, begin, "the sockets", func() (bool, error) { return listening(sockets), nil }); err != nil {
		return s, err
	}
	if s.published, err = await(ctx, begin, "the slices", func() (bool, error) { return b.published(ctx, node, machine) }); err != nil {
		return s, err
	}
	select {
	case <-ctx.Done():
		return s, ctx.Err()
	case <-time.After(idle):
	}
	s.rss, err = resident(plugin.Process.Pid)
	return s, err
}

// prepare makes a Node object and a host tree.
func (b *bench) prepare(ctx context.Context, node, machine string) (root string, err error) {
	_, err = b.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join("test", "machines", machine+".txtar"))
	if err != nil {
		return "", err
	}
	m, err := sim.Parse(text)
	if err != nil {
		return "", err
	}
	root = filepath.Join(b.dir, node)
	_, err = m.Expand(filepath.Join(root, "host"), sim.Options{})
	return root, errors.Join(err, os.Mkdir(filepath.Join(root, "r"), 0o750))
}

func freePorts() ([2]string, error) {
	var ports [2]string
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports, err
		}
		defer listener.Close() //nolint:errcheck // nothing was sent
		_, ports[i], err = net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return ports, err
		}
	}
	return ports, nil
}

// await polls until done, and returns the time since begin.
func await(ctx context.Context, begin time.Time, what string, done func() (bool, error)) (time.Duration, error) {
	const pause = 2 * time.Millisecond
	for time.Since(begin) < patience {
		ok, err := done()
		if err != nil || ok {
			return time.Since(begin), err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
	}
	return 0, fmt.Errorf("%s did not appear within %s", what, patience)
}

func listening(sockets []string) bool {
	for _, path := range sockets {
		connection, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		_ = connection.Close()
	}
	return true
}

// published says whether all pools of the node are in the API server, with all their slices.
func (b *bench) published(ctx context.Context, node, machine string) (bool, error) {
	want := map[string]int{"empty": 3, "200-devices": 6}[machine]
	own := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node}
	list, err := b.kube.ResourceV1().ResourceSlices().List(ctx, own)
	if err != nil {
		return false, err
	}
	return len(list.Items) == want, nil
}

func resident(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(kib), " kB"))
			return float64(n) / 1024, err
		}
	}
	return 0, errors.New("the kernel does not say VmRSS")
}

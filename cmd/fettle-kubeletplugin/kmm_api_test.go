// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// asPlugin makes the test's binary the plugin: its value is a directory that stands for /var/lib.
const asPlugin = "TEST_AS_PLUGIN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asPlugin); dir != "" {
		if err := unix.Mount(dir, "/var/lib", "", unix.MS_BIND, ""); err != nil {
			fmt.Fprintln(os.Stderr, "mount:", err)
			os.Exit(1)
		}
		if err := os.Unsetenv(asPlugin); err != nil {
			os.Exit(1)
		}
		main()
	}
	if os.Getenv(confine.Marker) != "" {
		main() // confined
	}
	os.Exit(m.Run())
}

// TestAPI starts the plugin as the Kernel Module Management operator does for the Module in docs/user/kmm.md: with the operator's variables
// and port, the Module's variables and arguments, and nothing else but the credentials that a pod finds by itself.
func TestAPI(t *testing.T) {
	const (
		port    = 51515
		metrics = "127.0.0.1:51517"
	)
	if os.Geteuid() != 0 {
		missing(t, "not root: the plugin's /var/lib cannot be made a directory of the test's own")
	}
	config := apitest.Start(t, nil)
	kube, err := kubernetes.NewForConfig(config)
	check.Must(t, err)
	_, err = kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kmm"}}, metav1.CreateOptions{})
	check.Must(t, err)
	container := checkModules(t, config, kube)
	dir, err := os.MkdirTemp("", "kmm") //nolint:usetesting // the test's own directory is too long for a socket
	check.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, name := range []string{"plugins", "plugins_registry", "varlib"} {
		check.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	args := append([]string{"--kubeconfig=" + apitest.Kubeconfig(t, dir, config)}, container.Args...)
	plugin := exec.CommandContext(t.Context(), os.Args[0], args...)
	plugin.Env = []string{
		"NODE_NAME=kmm", "POD_UID=0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11", "CDI_ROOT=" + dir + "/cdi",
		"KUBELET_REGISTRAR_DIRECTORY_PATH=" + dir + "/plugins_registry", "KUBELET_PLUGINS_DIRECTORY_PATH=" + dir + "/plugins",
		"HEALTHCHECK_PORT=" + strconv.Itoa(port), asPlugin + "=" + dir + "/varlib",
	}
	for _, v := range container.Env {
		plugin.Env = append(plugin.Env, v.Name+"="+metav1.NamespaceDefault) // checkModules wants the pod's namespace there
	}
	var log bytes.Buffer
	plugin.Stdout, plugin.Stderr = &log, &log
	plugin.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	ended, err := check.StartChild(plugin)
	check.Must(t, err)

	connection, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check.Must(t, err)
	defer connection.Close() //nolint:errcheck // nothing is lost
	look := func(service string) string {
		request := &healthpb.HealthCheckRequest{Service: service}
		response, err := healthpb.NewHealthClient(connection).Check(t.Context(), request)
		switch {
		case err != nil:
			return err.Error()
		case response.Status != healthpb.HealthCheckResponse_SERVING:
			return response.Status.String()
		}
		return ""
	}
	apitest.Eventually(t, func() string {
		select {
		case err := <-ended:
			t.Fatalf("the plugin ended: %v\n%s", err, log.String())
		default:
		}
		return look("liveness")
	})
	if fault := look("readiness"); fault == "" {
		t.Error("an unknown service is said to be served")
	}
	apitest.Eventually(t, func() string {
		slices, err := kube.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=kmm"})
		check.Must(t, err)
		if len(slices.Items) == 0 {
			return "no slice is published"
		}
		return ""
	})
	apitest.MetricsAskForTokens(t, config, metav1.NamespaceDefault, metrics)
	check.Must(t, plugin.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v\n%s", err, log.String())
		}
	case <-time.After(time.Minute):
		t.Error("did not end when asked to")
	}
	if _, err := os.Stat(filepath.Join(dir, "varlib", "fettle", "claims")); err != nil {
		t.Errorf("the records are not below /var/lib/fettle: %v", err)
	}
}

// missing says in one line what a machine lacks.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

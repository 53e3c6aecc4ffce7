// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// secret begins the names of all that is in a namespace that the reader may not read, and of the namespace.
const secret = "secret-"

// playReaders has users explain a pod that waits for the devices of another namespace. No name of that namespace may be told to one who may
// not read it. An administrator is told.
func (c *cluster) playReaders(t *testing.T) {
	s := scenario{name: "readers", objects: cat(
		on("a", gpu("g0"), gpu("g1"), shared(gpu("g2"), "16Gi", nil)), class("gpu"),
		asks("train", exactly("r", 1)), asks("part", needing("memory", "8Gi", exactly("r", 1, `device.allowMultipleAllocations == true`))),
	)}.placed()
	hidden := scenario{name: secret + "team"}
	defer c.clear(t, hidden)
	defer c.clear(t, s)
	c.arrange(t, s)
	c.write(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hidden.namespace()}})
	for _, o := range cat(
		template(claim(secret+"template", exactly(secret+"request", 1))), pod(secret+"pod", templated("gpu", secret+"template")),
		asks(secret+"claim", exactly(secret+"request", 1)), asks(secret+"share", needing("memory", "12Gi", exactly(secret+"request", 1))),
	) {
		c.write(t, withNamespace(o, hidden.namespace()))
		if p, ok := o.(*corev1.Pod); ok {
			c.settle(t, p, outcome{node: "a"})
		}
	}
	for _, p := range s.pods() {
		c.write(t, p)
		c.settle(t, p, outcome{reason: "no-devices"})
	}
	fettle := c.fettle(t)
	for _, user := range c.readers(t, s.namespace()) {
		t.Run(user.name, func(t *testing.T) { user.explain(t, fettle, s) })
	}
}

// reader is a user, and whether other namespaces may be named to them.
type reader struct {
	name, kubeconfig string
	named            bool
}

// explain runs every form of the verb.
func (r reader) explain(t *testing.T, fettle string, s scenario) {
	t.Helper()
	var all strings.Builder
	for _, args := range [][]string{
		{"pod", "train"},
		{"pod", "train", "-v"},
		{"pod", "train", "-o", "json"},
		{"pod", "part", "-v"},
		{"claim", "train"},
		{"claim", "train", "-v"},
		{"claim", "part", "-o", "yaml"},
		{"pod", secret + "pod"}, // which is not there
	} {
		var stdout, stderr bytes.Buffer
		verb := []string{"explain", "--kubeconfig", r.kubeconfig, "-n", s.namespace()}
		command := exec.CommandContext(t.Context(), fettle, append(verb, args...)...)
		command.Stdout, command.Stderr = &stdout, &stderr
		err := command.Run()
		text := stdout.String() + stderr.String()
		if strings.HasPrefix(args[1], secret) {
			text = strings.ReplaceAll(text, args[1], "") // the reader's own word
		} else if stdout.Len() == 0 {
			t.Errorf("fettle explain %q says nothing: %v\n%s", args, err, &stderr)
		}
		if !r.named && strings.Contains(text, secret) {
			t.Errorf("fettle explain %q names objects of another namespace:\n%s", args, text)
		}
		all.WriteString(text)
	}
	if r.named && !strings.Contains(all.String(), secret+"claim") {
		t.Errorf("an administrator is not told who holds the devices:\n%s", &all)
	}
}

// readers makes users: one may read a namespace and nothing else, one also what belongs to no namespace, and one everything.
func (c *cluster) readers(t *testing.T, namespace string) []reader {
	t.Helper()
	dir := t.TempDir()
	const group = "rbac.authorization.k8s.io"
	read := []string{"get", "list", "watch"}
	subject := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: group, Name: name}}
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: namespace}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "resource.k8s.io", "events.k8s.io"}, Resources: []string{"*"}, Verbs: read},
	}}
	devices := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices", "deviceclasses", "devicetaintrules"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: read},
	}}
	objects := []client.Object{role, devices, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Subjects: subject("tenant-with-devices"),
		RoleRef: rbacv1.RoleRef{APIGroup: group, Kind: "ClusterRole", Name: devices.Name},
	}}
	for _, name := range []string{"tenant", "tenant-with-devices"} {
		objects = append(objects, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Subjects: subject(name),
			RoleRef: rbacv1.RoleRef{APIGroup: group, Kind: "Role", Name: role.Name},
		})
	}
	for _, o := range objects {
		c.write(t, o)
	}
	return []reader{
		{name: "tenant", kubeconfig: kubeconfig(t, dir, c.config, "tenant")},
		{name: "tenant-with-devices", kubeconfig: kubeconfig(t, dir, c.config, "tenant-with-devices")},
		{name: "administrator", kubeconfig: kubeconfig(t, dir, c.config, ""), named: true},
	}
}

// fettle is the command line, which is built when it is asked for first.
func (c *cluster) fettle(t *testing.T) string {
	t.Helper()
	path := filepath.Join(c.dir, "fettle")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	command := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/fettle")
	command.Dir = repository
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build fettle: %v\n%s", err, output)
	}
	return path
}

// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Dump writes what explains a failure into a directory: objects, Events, logs of the driver's pods and of the cluster's components,
// and the driver's files on each node. It writes what it can get.
func (h *Harness) Dump(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory for what explains the failure: %w", err)
	}
	var errs []error
	write := func(name, content string, err error) {
		if err != nil {
			content += "\n" + err.Error()
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	for name, kinds := range map[string]string{
		"objects.yaml": "pods,resourceclaims,resourceclaimtemplates,daemonsets,deployments,jobs",
		"cluster.yaml": "deviceclasses,resourceslices,acceleratornodes,nodes",
	} {
		out, err := h.Kubectl(ctx, "get", "--all-namespaces", "--output", "yaml", kinds)
		write(name, out, err)
	}
	out, err := h.Kubectl(ctx, "get", "events", "--all-namespaces", "--sort-by", ".metadata.creationTimestamp")
	write("events.txt", out, err)
	errs = append(errs, h.dumpPods(ctx, write), h.dumpComponents(dir))
	for _, node := range h.NodeNames() {
		out, err := h.OnNode(ctx, node, "sh", "-c", `ls -lR /var/lib/fettle /var/run/cdi; head -n 100 /var/lib/fettle/claims/*`)
		write(node+"-files.txt", out, err)
	}
	return errors.Join(errs...)
}

func (h *Harness) dumpPods(ctx context.Context, write func(name, content string, err error)) error {
	pods, err := h.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the driver's pods: %w", err)
	}
	for i := range pods.Items {
		name := pods.Items[i].Name
		out, err := h.Kubectl(ctx, "logs", "--namespace", Namespace, name, "--all-containers", "--timestamps")
		write(name+".log", out, err)
	}
	return nil
}

// dumpComponents copies the logs of the cluster's own processes.
func (h *Harness) dumpComponents(dir string) error {
	logs, err := filepath.Glob(filepath.Join(h.State, "logs", "*.log"))
	if err != nil {
		return fmt.Errorf("list the cluster's logs: %w", err)
	}
	var errs []error
	for _, path := range logs {
		errs = append(errs, copyEnd(path, filepath.Join(dir, filepath.Base(path))))
	}
	return errors.Join(errs...)
}

// copyEnd copies the last part of a log.
func copyEnd(from, to string) error {
	const most = 2 << 20
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := in.Stat(); err == nil && info.Size() > most {
		if _, err := in.Seek(-most, io.SeekEnd); err != nil {
			return err
		}
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

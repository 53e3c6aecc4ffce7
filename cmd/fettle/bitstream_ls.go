// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const bitstreamListHelp = `
Lists the FPGABitstreams of a namespace, or of all, and the ClusterFPGABitstreams of a cluster: a line for each bitstream that the
controller found in one, and one line where it found none yet. The cluster is that of kubectl.`

func runBitstreamList(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newArguments("bitstream ls", bitstreamListHelp)
	cluster := flags.cluster()
	format := flags.format()
	if _, err := flags.parse(args, stdout); err != nil {
		return err
	}
	objects, err := cluster.bitstreams(ctx, stderr)
	if err != nil {
		return fmt.Errorf("bitstream ls: %w", err)
	}
	if *format == "table" {
		return showObjectTable(objects, stdout, stderr)
	}
	return showObjectList(objects, *format, stdout)
}

// cluster is how one is reached, from the flags.
type cluster struct {
	kubeconfig, context, namespace string
	all                            bool
}

func (a *arguments) cluster() *cluster {
	c := &cluster{}
	a.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` that says where the cluster is; unset: as for kubectl")
	a.StringVar(&c.context, "context", "", "`context` of the kubeconfig")
	a.StringVar(&c.namespace, "n", "", "`namespace`; unset: that of the context")
	a.BoolVar(&c.all, "A", false, "all namespaces")
	return c
}

// client is one for any kind of object, and the namespace to look into: empty for all.
func (c *cluster) client() (dynamic.Interface, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("find the cluster: %w", err)
	}
	namespace := c.namespace
	if namespace == "" && !c.all {
		if namespace, _, err = loaded.Namespace(); err != nil {
			return nil, "", fmt.Errorf("find the namespace: %w", err)
		}
	}
	if c.all {
		namespace = metav1.NamespaceAll
	}
	config.UserAgent = "fettle"
	client, err := dynamic.NewForConfig(config)
	return client, namespace, err
}

// bitstreams are the objects of both kinds, each in the order of the API server. Who may not see the cluster's gets the others.
func (c *cluster) bitstreams(ctx context.Context, stderr io.Writer) ([]unstructured.Unstructured, error) {
	client, namespace, err := c.client()
	if err != nil {
		return nil, err
	}
	objects, err := listAll(ctx, client.Resource(v1alpha1.GroupVersion.WithResource("fpgabitstreams")).Namespace(namespace))
	if err != nil {
		return nil, absent("FPGABitstreams", err)
	}
	shared, err := listAll(ctx, client.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams")))
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(stderr, "without ClusterFPGABitstreams: %v\n", err)
		return objects, nil
	}
	return append(objects, shared...), absent("ClusterFPGABitstreams", err)
}

// absent says what to do where the kind is not known.
func absent(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("list the %s: %w: install Fettle's chart, which brings the kind", what, err)
	}
	return fmt.Errorf("list the %s: %w", what, err)
}

// pageSize bounds an answer of the API server.
const pageSize = 500

func listAll(ctx context.Context, from dynamic.ResourceInterface) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for next := ""; ; {
		page, err := from.List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			page.Items[i].SetManagedFields(nil)
		}
		all = append(all, page.Items...)
		if next = page.GetContinue(); next == "" {
			return all, nil
		}
	}
}

// showObjectList shows the objects as kubectl does: as one List.
func showObjectList(objects []unstructured.Unstructured, format string, stdout io.Writer) error {
	all := unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: objects}
	data, err := all.MarshalJSON()
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("encode the objects: %w", err)
	}
	_, err = stdout.Write(data)
	return err
}

func showObjectTable(objects []unstructured.Unstructured, stdout, stderr io.Writer) error {
	if len(objects) == 0 {
		_, err := fmt.Fprintln(stderr, "no bitstreams")
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAMESPACE\tNAME\tRESOLVED\tVERIFIED\tINTERFACE\tAFU\tSIZE\tNODES\tDIGEST")
	for i := range objects {
		if err := objectRows(&objects[i], table); err != nil {
			return errors.Join(err, table.Flush())
		}
	}
	return table.Flush()
}

// objectRows are an object's lines: one for each bitstream in it.
func objectRows(object *unstructured.Unstructured, table io.Writer) error {
	var shown struct {
		Status v1alpha1.FPGABitstreamStatus `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &shown); err != nil {
		return fmt.Errorf("read %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	status := &shown.Status
	nodes := "-"
	if status.Nodes != nil {
		nodes = strconv.Itoa(int(*status.Nodes))
	}
	images := status.Images
	if len(images) == 0 {
		images = []v1alpha1.BitstreamImage{{}}
	}
	for _, image := range images {
		size := "-"
		if image.Size > 0 {
			size = strconv.FormatInt(image.Size, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", object.GetKind(), orDash(object.GetNamespace()), object.GetName(),
			conditionText(status, v1alpha1.ConditionResolved), conditionText(status, v1alpha1.ConditionVerified),
			orDash(image.InterfaceID), orDash(image.AFUID), size, nodes, orDash(status.Digest))
	}
	return nil
}

func conditionText(status *v1alpha1.FPGABitstreamStatus, name string) string {
	c := meta.FindStatusCondition(status.Conditions, name)
	if c == nil {
		return "-"
	}
	return cmp.Or(string(c.Status), "-")
}

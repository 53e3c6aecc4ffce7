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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const bitstreamListHelp = `
Lists the FPGABitstreams of a namespace, or of all, and the ClusterFPGABitstreams of a cluster: a line for each bitstream that the
controller found in one, and one line where it found none yet. The cluster is that of kubectl.`

const bitstreamListExamples = `
fettle bitstream ls -n team-a
fettle bitstream ls -A -o wide
fettle bitstream ls -A --watch`

func bitstreamList(flags *arguments) action {
	cluster := flags.cluster()
	format := flags.formatOf("table", "wide", "json", "yaml", "name")
	watching := flags.watch()
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		to := &outputs{stdout: stdout, stderr: stderr, format: *format}
		err := cluster.follow(ctx, *watching, to, func(stdout, stderr io.Writer) error {
			objects, err := cluster.bitstreams(ctx, stderr)
			if err != nil {
				return err
			}
			if *format == "table" || *format == "wide" {
				return showObjectTable(objects, *format == "wide", stdout, stderr)
			}
			return showObjectList(objects, *format, stdout)
		})
		if err != nil {
			return fmt.Errorf("bitstream ls: %w", err)
		}
		return nil
	}
}

// bitstreams are the objects of both kinds, each in the order of the API server. Who may not see the cluster's gets the others.
func (c *cluster) bitstreams(ctx context.Context, stderr io.Writer) ([]unstructured.Unstructured, error) {
	client, namespace, err := c.client()
	if err != nil {
		return nil, err
	}
	objects, err := client.list(ctx, v1alpha1.GroupVersion.WithResource("fpgabitstreams"), namespace)
	if err != nil {
		return nil, absent("FPGABitstreams", err)
	}
	shared, err := client.list(ctx, v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams"), "")
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

// showObjectList shows the objects as kubectl does: as one List.
func showObjectList(objects []unstructured.Unstructured, format string, stdout io.Writer) error {
	all := unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: objects}
	if format == "name" {
		return (&printers.NamePrinter{ShortOutput: true}).PrintObj(&all, stdout)
	}
	if printer, err := templateOf(format); err == nil {
		return printer.PrintObj(&all, stdout)
	}
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

func showObjectTable(objects []unstructured.Unstructured, wide bool, stdout, stderr io.Writer) error {
	if len(objects) == 0 {
		_, err := fmt.Fprintln(stderr, "no bitstreams")
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAMESPACE\tNAME\tRESOLVED\tVERIFIED\tINTERFACE\tAFU\tSIZE\tNODES\tDIGEST"+ifWide(wide, "IMAGE"))
	for i := range objects {
		if err := objectRows(&objects[i], wide, table); err != nil {
			return errors.Join(err, table.Flush())
		}
	}
	return table.Flush()
}

// objectRows are an object's lines: one for each bitstream in it.
func objectRows(object *unstructured.Unstructured, wide bool, table io.Writer) error {
	var shown struct {
		Spec struct {
			Image string `json:"image"`
		} `json:"spec"`
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", object.GetKind(), orDash(object.GetNamespace()), object.GetName(),
			conditionText(status, v1alpha1.ConditionResolved), conditionText(status, v1alpha1.ConditionVerified),
			orDash(image.InterfaceID), orDash(image.AFUID), size, nodes, orDash(status.Digest), ifWide(wide, orDash(shown.Spec.Image)))
	}
	return nil
}

// ifWide returns one more cell, or nothing.
func ifWide(wide bool, cell string) string {
	if !wide {
		return ""
	}
	return "\t" + cell
}

func conditionText(status *v1alpha1.FPGABitstreamStatus, name string) string {
	c := meta.FindStatusCondition(status.Conditions, name)
	if c == nil {
		return "-"
	}
	return cmp.Or(string(c.Status), "-")
}

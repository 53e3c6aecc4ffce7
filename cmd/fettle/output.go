// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/foreign"
)

// errNoTemplate is about a format that is no template.
var errNoTemplate = errors.New("is no template")

// templateOf returns what prints by a template: jsonpath=TEMPLATE, go-template=TEMPLATE, or the others that kubectl has.
func templateOf(format string) (printers.ResourcePrinter, error) {
	printer, err := genericclioptions.NewKubeTemplatePrintFlags().ToPrinter(format)
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, errNoTemplate
	}
	return printer, err
}

// document is a value in JSON that is no object of Kubernetes, for printers of such objects.
type document struct{ json.RawMessage }

// GetObjectKind says that it has no kind.
func (d document) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same: nothing changes it.
func (d document) DeepCopyObject() runtime.Object { return d }

// show writes a value to stdout: as JSON or YAML, by a template, or in the command's own format by the function.
func show(format string, value any, stdout io.Writer, table func(stdout io.Writer) error) error {
	printer, noTemplate := templateOf(format)
	if noTemplate != nil && format != "json" && format != "yaml" {
		return table(stdout)
	}
	data, err := json.MarshalIndent(value, "", "  ")
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if noTemplate == nil {
		return printer.PrintObj(document{data}, stdout)
	}
	_, err = fmt.Fprintf(stdout, "%s\n", bytes.TrimRight(data, "\n"))
	return err
}

func showDevices(found machineDevices, stdout, stderr io.Writer) error {
	for _, p := range found.Problems {
		if _, err := fmt.Fprintf(stderr, "%s: %s: %s\n", p.Subject, p.Reason, p.Message); err != nil {
			return err
		}
	}
	if len(found.whole)+len(found.Foreign) == 0 {
		_, err := fmt.Fprintln(stderr, "no devices")
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, cells := range deviceRows(&found) {
		fmt.Fprintln(table, strings.Join(cells, "\t")) // a tabwriter's errors come at Flush
	}
	return table.Flush()
}

// deviceRows are the lines of the table, with a column for owners if there are others than Fettle. Devices of others that Fettle would not
// publish anyway come last.
func deviceRows(found *machineDevices) [][]string {
	rows := [][]string{{"NAME", "PRODUCT", "SIZE", "NUMA", "PCIE ROOT", "DRIVER"}}
	shown := map[string]bool{}
	for i := range found.whole {
		d := &found.whole[i]
		cells := row(*d)
		if len(found.Foreign) > 0 {
			cells = append(cells, ownerText(found.owner(d)))
		}
		rows, shown[d.Name] = append(rows, cells), true
	}
	if len(found.Foreign) == 0 {
		return rows
	}
	rows[0] = append(rows[0], "OWNER")
	for i := range found.Foreign {
		if o := &found.Foreign[i]; !shown[o.Name] {
			rows = append(rows, []string{o.Subject, "-", "-", "-", "-", "-", ownerText(o)})
		}
	}
	return rows
}

// ownerText says who has a device, and what of that is not known.
func ownerText(o *foreign.Device) string {
	switch {
	case o == nil:
		return "Fettle"
	case o.Unsure != "":
		return o.Owner + "? " + o.Unsure
	case o.Nodes != "":
		return o.Owner + " (on nodes with " + o.Nodes + ")"
	}
	return o.Owner
}

// row is a device's line of the table.
func row(d device.Device) []string {
	size, ok := d.Capacity[device.CapacityMemory]
	if !ok {
		size, ok = d.Capacity[device.CapacityStorage]
	}
	sizeText := ""
	if ok {
		sizeText = size.Value.String()
	}
	return []string{
		d.Name,
		orDash(text(d.Attributes[device.AttributeProductName])),
		orDash(sizeText),
		orDash(text(d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode])),
		orDash(text(d.Attributes[deviceattribute.StandardDeviceAttributePCIeRoot])),
		orDash(strings.TrimSpace(text(d.Attributes[device.AttributeDriver]) + " " + text(d.Attributes[device.AttributeDriverVersion]))),
	}
}

func orDash(s string) string { return cmp.Or(s, "-") }

// text is an attribute's value, whichever it has.
func text(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package device

import "slices"

// Kind says which of the node's pools a device belongs to. There is one pool a kind, so that a change of one kind does not
// renumber the pools of the others.
type Kind string

// The kinds of device, each the last segment of its pool's name.
const (
	KindGPU  Kind = "gpu"
	KindFPGA Kind = "fpga"
	KindHost Kind = "host"
	// KindAccelerator is the kernel's class of accelerators, whatever driver registers there.
	KindAccelerator Kind = "accelerator"
)

// kindRow is what is known of a kind.
type kindRow struct {
	kind Kind
	// noun is what people call a device.
	noun string
	// parts are the types of devices that are a part of one of the kind, or the whole of it in another form.
	parts []string
}

// kindRows is the table of kinds, sorted, see docs/design/adding.md.
func kindRows() []kindRow {
	return []kindRow{
		{kind: KindAccelerator, noun: "accelerator"},
		{kind: KindFPGA, noun: "FPGA"},
		{kind: KindGPU, noun: "GPU", parts: []string{TypeMIG, TypePartition, TypeVF, TypeVFIO}},
		{kind: KindHost, noun: "host device"},
	}
}

// Kinds are all kinds, sorted. A node publishes a pool for each kind of device that it has.
func Kinds() []Kind {
	rows := kindRows()
	kinds := make([]Kind, 0, len(rows))
	for i := range rows {
		kinds = append(kinds, rows[i].kind)
	}
	return kinds
}

// KindOf returns the kind of devices with a value of the attribute type. The second result is false if no device has it.
func KindOf(deviceType string) (Kind, bool) {
	for _, row := range kindRows() {
		if deviceType == string(row.kind) || slices.Contains(row.parts, deviceType) {
			return row.kind, true
		}
	}
	return "", false
}

// Noun returns what people call a device of a kind. It is empty for an unknown kind.
func (k Kind) Noun() string {
	for _, row := range kindRows() {
		if row.kind == k {
			return row.noun
		}
	}
	return ""
}

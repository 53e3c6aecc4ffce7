// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// The reasons of problems about devices of other drivers.
const (
	// ReasonForeign: the device is left to another driver.
	ReasonForeign = "LeftToAnotherDriver"
	// ReasonUnsure: the device may be another driver's, which cannot be told now.
	ReasonUnsure = "OwnerUnknown"
	// ReasonNotFound: the configuration names a device that this machine does not have.
	ReasonNotFound = "ForeignDeviceNotFound"
)

// Device is a whole device that another driver has.
type Device struct {
	// Name is that of Fettle's device. It is empty for one that Fettle would not publish anyway, such as a GPU that is bound to vfio-pci.
	Name string      `json:"name,omitempty"`
	Kind device.Kind `json:"kind,omitempty"`
	// Subject is the PCI address, or the name of a device without one.
	Subject string `json:"subject"`
	Vendor  string `json:"vendor,omitempty"`
	Owner   string `json:"owner"`
	// Field is the entry that says so.
	Field string `json:"field"`
	// Nodes is the entry's node selector where the node's labels are not known. The device is the owner's on such nodes only.
	Nodes string `json:"nodes,omitempty"`
	// Unsure is why it is not known whether the device is the owner's. Empty: it is.
	Unsure string `json:"unsure,omitempty"`
}

// Problem is what a node says of a device.
func (d *Device) Problem() discover.Problem {
	if d.Unsure != "" {
		return discover.Problem{Subject: d.Subject, Reason: ReasonUnsure, Message: fmt.Sprintf(
			"may be left to %s (%s of the plugin's configuration), which cannot be told now: %s; Fettle publishes neither it nor its parts",
			d.Owner, d.Field, d.Unsure)}
	}
	return discover.Problem{Subject: d.Subject, Reason: ReasonForeign, Message: fmt.Sprintf(
		"is left to %s (%s of the plugin's configuration): Fettle publishes neither it nor its parts", d.Owner, d.Field)}
}

// Result is what the entries mean on a machine.
type Result struct {
	// Devices are in the order of their subjects.
	Devices []Device
	// Problems name what the entries select and the machine does not have.
	Problems []discover.Problem
}

// Finder finds the devices of other drivers. It remembers what NVIDIA's library said of a GPU: while the library does not answer, a GPU
// must not come back. It is not for use by several goroutines at once.
type Finder struct {
	Entries   []Entry
	selectors selector.Compiled
	seen      map[string]device.Device
}

// Find returns the devices that the entries leave to other drivers. Labels are the node's, nil while they are not known.
func (f *Finder) Find(ctx context.Context, found discover.Inventory, labels map[string]string) Result {
	if len(f.Entries) == 0 {
		return Result{}
	}
	m := f.machine(found)
	var out Result
	for i := range f.Entries {
		e := &f.Entries[i]
		if !e.onNode(labels) {
			continue
		}
		of := finding{entry: e, field: field(i), machine: m, selectors: &f.selectors}
		if labels == nil {
			of.nodes = e.nodesOf()
		}
		of.find(ctx)
		out.Devices, out.Problems = append(out.Devices, of.devices...), append(out.Problems, of.problems...)
	}
	out.Devices = onePerDevice(out.Devices)
	return out
}

// onePerDevice sorts devices and keeps one of each: that of the first entry that is sure, or else that of the first that is not.
func onePerDevice(devices []Device) []Device {
	same := func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Subject, b.Subject), strings.Compare(a.Name, b.Name))
	}
	unsure := func(d Device) int { return min(len(d.Unsure), 1) }
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Or(same(a, b), cmp.Compare(unsure(a), unsure(b))) })
	return slices.CompactFunc(devices, func(a, b Device) bool { return same(a, b) == 0 })
}

// machine is what the entries are compared with.
type machine struct {
	devices []device.Device
	// blind are the devices of which the library has not told yet and does not tell now.
	blind    map[string]bool
	problems []discover.Problem
}

// machine returns the whole devices with what is known of them.
func (f *Finder) machine(found discover.Inventory) *machine {
	m := &machine{problems: found.Problems, blind: map[string]bool{}}
	silent := slices.ContainsFunc(found.Problems, func(p discover.Problem) bool { return p.Reason == discover.ReasonNVMLUnavailable })
	seen := map[string]device.Device{}
	for _, d := range wholes(found) {
		was, known := f.seen[d.Name]
		switch {
		case !silent || vendorOf(&d) != vendorNVIDIA:
		case known && sameCard(&was, &d):
			d.Attributes, d.Capacity = filled(d.Attributes, was.Attributes), filled(d.Capacity, was.Capacity)
		default:
			m.blind[d.Name] = true
		}
		if !m.blind[d.Name] {
			seen[d.Name] = d
		}
		m.devices = append(m.devices, d)
	}
	f.seen = seen
	return m
}

const vendorNVIDIA = "nvidia"

func vendorOf(d *device.Device) string { return device.StringOf(d.Attributes[device.AttributeVendor]) }

func uuidOf(d *device.Device) string { return device.StringOf(d.Attributes[device.AttributeUUID]) }

// wholes returns the GPUs and FPGAs of a machine, divided ones included. Directories of the host are left out: whoever wants one for
// another driver takes it out of hostDevices.
func wholes(found discover.Inventory) []device.Device {
	var out []device.Device
	for i := range found.Devices {
		if found.Devices[i].Kind != device.KindHost {
			out = append(out, found.Devices[i])
		}
	}
	for i := range found.Physical {
		d := &found.Physical[i].Device
		if !slices.ContainsFunc(out, func(o device.Device) bool { return o.Name == d.Name }) {
			out = append(out, *d)
		}
	}
	return out
}

// sameCard says whether a GPU may be the one that was in its slot, as far as both are known.
func sameCard(was, now *device.Device) bool {
	model := func(d *device.Device) string { return device.StringOf(d.Attributes[device.AttributePCIDeviceID]) }
	before, after := uuidOf(was), uuidOf(now)
	return model(was) == model(now) && (before == "" || after == "" || before == after)
}

// filled returns what is known now, and of before what is missing now.
func filled[M ~map[K]V, K comparable, V any](now, before M) M {
	out := maps.Clone(before)
	if out == nil {
		return now
	}
	maps.Copy(out, now)
	return out
}

// finding is what one entry selects.
type finding struct {
	entry        *Entry
	field, nodes string
	machine      *machine
	selectors    *selector.Compiled
	devices      []Device
	problems     []discover.Problem
}

func (f *finding) find(ctx context.Context) {
	for i, address := range f.entry.PCIAddresses {
		f.findAddress(fmt.Sprintf("%s.pciAddresses[%d]", f.field, i), address)
	}
	for i, uuid := range f.entry.UUIDs {
		f.findUUID(fmt.Sprintf("%s.uuids[%d]", f.field, i), uuid)
	}
	if f.entry.Selector != "" {
		f.findSelector(ctx)
	}
}

// findAddress also finds a device that discovery saw and Fettle would not publish.
func (f *finding) findAddress(path, address string) {
	before := len(f.devices)
	for i := range f.machine.devices {
		if d := &f.machine.devices[i]; subjectOf(d) == address || d.Region != nil && d.Region.Card == address {
			f.add(d, "")
		}
	}
	if len(f.devices) > before {
		return
	}
	if slices.ContainsFunc(f.machine.problems, func(p discover.Problem) bool { return p.Subject == address }) {
		f.devices = append(f.devices, Device{Subject: address, Owner: f.entry.Owner, Field: f.field, Nodes: f.nodes})
		return
	}
	f.missing(address, fmt.Sprintf("%s: no GPU or FPGA of this node has the address %s: compare with fettle devices, or limit the entry with "+
		"nodeSelector", path, address))
}

// findUUID holds back NVIDIA GPUs without a known UUID while one with it is not found.
func (f *finding) findUUID(path, uuid string) {
	for i := range f.machine.devices {
		if d := &f.machine.devices[i]; uuidOf(d) == uuid {
			f.add(d, "")
			return
		}
	}
	unknown := 0
	for i := range f.machine.devices {
		d := &f.machine.devices[i]
		if strings.HasPrefix(uuid, "GPU-") && d.Kind == device.KindGPU && vendorOf(d) == vendorNVIDIA && uuidOf(d) == "" {
			f.add(d, path+" names a UUID that no GPU of this node shows, and that of this one is not known")
			unknown++
		}
	}
	if unknown == 0 {
		f.missing(uuid, fmt.Sprintf("%s: no GPU of this node has this UUID: compare with fettle devices -o yaml, or limit the entry with "+
			"nodeSelector; parts of a GPU cannot be left alone", path))
	}
}

func (f *finding) findSelector(ctx context.Context) {
	before := len(f.devices)
	for i := range f.machine.devices {
		d := &f.machine.devices[i]
		matches, err := f.matches(ctx, d)
		switch {
		case err != nil:
			f.add(d, fmt.Sprintf("%s.selector: %v", f.field, err))
		case matches:
			f.add(d, "")
		case f.machine.blind[d.Name]:
			f.add(d, f.field+".selector does not match what the kernel says of it, and NVIDIA's library does not answer")
		}
	}
	if len(f.devices) == before {
		f.missing(f.field+".selector", "matches no GPU or FPGA of this node: compare with the attributes in fettle devices -o yaml, or limit "+
			"the entry with nodeSelector")
	}
}

func (f *finding) matches(ctx context.Context, d *device.Device) (bool, error) {
	compiled := f.selectors.Get(f.entry.Selector)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, dracel.Device{
		Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil {
		return false, fmt.Errorf("%w: test an attribute before you read it, as in \"uuid\" in device.attributes[%q]", err, v1alpha1.DriverName)
	}
	return ok, nil
}

// add adds a device, and of an FPGA's region those of its card: one driver alone programs a card.
func (f *finding) add(d *device.Device, unsure string) {
	for i := range f.machine.devices {
		other := &f.machine.devices[i]
		card := d.Region != nil && other.Region != nil && d.Region.Card != "" && d.Region.Card == other.Region.Card
		if other.Name != d.Name && !card {
			continue
		}
		f.devices = append(f.devices, Device{
			Name: other.Name, Kind: other.Kind, Subject: subjectOf(other), Vendor: vendorOf(other), Owner: f.entry.Owner, Field: f.field,
			Nodes: f.nodes, Unsure: unsure,
		})
	}
}

func subjectOf(d *device.Device) string {
	if address := device.StringOf(d.Attributes[device.AttributePCIAddress]); address != "" {
		return address
	}
	return d.Name
}

func (f *finding) missing(subject, message string) {
	if f.nodes != "" {
		return // the entry may not be for this node
	}
	f.problems = append(f.problems, discover.Problem{Subject: subject, Reason: ReasonNotFound, Message: message})
}

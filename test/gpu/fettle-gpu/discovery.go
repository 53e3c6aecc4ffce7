// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// machine records the machine as text, redacted, and wants the text to be discovered as the machine is.
func (s *site) machine(ctx context.Context, f *findings) error {
	root, err := os.OpenRoot(s.root)
	if err != nil {
		return err
	}
	defer root.Close()
	recorded, err := sim.Record(root, sim.RecordOptions{})
	if err != nil {
		return err
	}
	text := recorded.Format()
	if err := os.WriteFile(filepath.Join(s.out, "machine.txtar"), text, 0o644); err != nil {
		return err
	}
	f.fact("bytes", len(text))
	parsed, err := sim.Parse(text)
	f.check("the recorded text can be read", err)
	if err != nil {
		return nil
	}
	dir := filepath.Join(s.work, "machine")
	if _, err := parsed.Expand(dir, sim.Options{}); err != nil {
		return fmt.Errorf("expand the recorded text: %w", err)
	}
	real, err := lookAt(ctx, s.root, nil)
	if err != nil {
		return err
	}
	again, err := lookAt(ctx, dir, nil)
	if err != nil {
		return err
	}
	f.check("the recorded text has the devices of the machine", sameDevices(real, again))
	return nil
}

// lookAt discovers what a host tree has.
func lookAt(ctx context.Context, root string, ask func(context.Context) (nvml.Report, error)) (discover.Inventory, error) {
	tree, err := sysfs.Open(root)
	if err != nil {
		return discover.Inventory{}, err
	}
	defer tree.Close()
	return discover.Discover(ctx, tree, discover.Options{NVML: ask}), nil
}

// sameDevices compares two inventories without what is replaced in a record.
func sameDevices(a, b discover.Inventory) error {
	left, right := devicesOf(a), devicesOf(b)
	if bytes.Equal(left, right) {
		return nil
	}
	return fmt.Errorf("the machine has\n%s\nthe text\n%s", left, right)
}

func devicesOf(i discover.Inventory) []byte {
	devices := slices.Clone(i.Devices)
	for n := range devices {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for name, value := range devices[n].Attributes {
			if name != "uuid" && name != "serial" {
				attributes[name] = value
			}
		}
		devices[n].Attributes = attributes
	}
	data, err := yaml.Marshal(discover.Inventory{Devices: devices, Problems: i.Problems})
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

func (s *site) command() nvml.Command { return nvml.Command{Path: s.child, DriverRoot: s.driver} }

// discovery compares what would be published with what nvidia-smi says.
func (s *site) discovery(ctx context.Context, f *findings) error {
	report, err := nvml.Query(ctx, s.command())
	if err != nil {
		return impossible("NVIDIA's library was not asked: %w", err)
	}
	f.fact("report", report)
	f.check("every question of the child is answered", none(report.Faults))
	found, err := lookAt(ctx, s.root, func(context.Context) (nvml.Report, error) { return report, nil })
	if err != nil {
		return err
	}
	f.fact("inventory", found)
	f.check("nothing is wrong with the machine", none(found.Problems))
	gpus := slices.DeleteFunc(slices.Clone(found.Devices), func(d device.Device) bool {
		return device.StringOf(d.Attributes["driver"]) != "nvidia"
	})
	f.check("each GPU of the library is a device", counted(len(gpus), len(report.Devices)))
	if s.simulated() {
		return nil
	}
	said, err := smi(ctx)
	if err != nil {
		f.check("nvidia-smi", err)
		return nil
	}
	f.same("version of the driver", report.DriverVersion, said.DriverVersion)
	f.same("version of CUDA", report.CUDADriverVersion, said.CUDAVersion)
	for i := range gpus {
		s.compare(f, &gpus[i], said)
	}
	for i := range report.Devices {
		compareProfiles(ctx, f, &report.Devices[i])
	}
	return nil
}

// none wants nothing of a kind.
func none[T any](found []T) error {
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("there are %d: %+v", len(found), found)
}

func counted(have, want int) error {
	if have == want && have > 0 {
		return nil
	}
	return fmt.Errorf("there are %d, expected %d", have, want)
}

// smiLog is what is compared of "nvidia-smi -q -x".
type smiLog struct {
	DriverVersion string   `xml:"driver_version"`
	CUDAVersion   string   `xml:"cuda_version"`
	GPUs          []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	Name         string `xml:"product_name"`
	Brand        string `xml:"product_brand"`
	Architecture string `xml:"product_architecture"`
	Serial       string `xml:"serial"`
	UUID         string `xml:"uuid"`
	Minor        string `xml:"minor_number"`
	VBIOS        string `xml:"vbios_version"`
	MIG          string `xml:"mig_mode>current_mig"`
	BusID        string `xml:"pci>pci_bus_id"`
	DeviceID     string `xml:"pci>pci_device_id"`
	Memory       string `xml:"fb_memory_usage>total"`
	Recovery     string `xml:"gpu_recovery_action"`
}

// smi asks nvidia-smi. It only reads.
func smi(ctx context.Context) (smiLog, error) {
	var out smiLog
	data, err := tool(ctx, "nvidia-smi", "-q", "-x")
	if err != nil {
		return out, err
	}
	decoder := xml.NewDecoder(bytes.NewReader(data))
	decoder.Strict = false
	return out, decoder.Decode(&out)
}

// tool runs a program of the machine, which may not have it.
func tool(ctx context.Context, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, impossible("%w", err)
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(out))
	}
	return out, nil
}

// tail is the last 2 KB of what a program printed.
func tail(text []byte) string {
	const most = 2 << 10
	return strings.ToValidUTF8(strings.TrimSpace(string(text[max(0, len(text)-most):])), "")
}

// compare holds a device against what nvidia-smi says of the GPU at its address.
func (s *site) compare(f *findings, d *device.Device, said smiLog) {
	address := device.StringOf(d.Attributes["pciAddress"])
	at := slices.IndexFunc(said.GPUs, func(g smiGPU) bool {
		parsed, err := pci.ParseBusID(g.BusID)
		return err == nil && parsed.String() == address
	})
	if at < 0 {
		f.check(d.Name, fmt.Errorf("nvidia-smi has no GPU at %s", address))
		return
	}
	g := said.GPUs[at]
	for name, theirs := range map[resourceapi.QualifiedName]string{
		"productName": g.Name, "architecture": g.Architecture, "serial": g.Serial, "uuid": g.UUID, "firmwareVersion": g.VBIOS,
		"pciDeviceID": strings.ToLower(g.DeviceID[:min(4, len(g.DeviceID))]),
	} {
		f.same(d.Name+" "+string(name), device.StringOf(d.Attributes[name]), theirs)
	}
	f.same(d.Name+" brand, in any case", strings.ToLower(device.StringOf(d.Attributes["brand"])), strings.ToLower(g.Brand))
	memory := d.Capacity["memory"].Value
	f.same(d.Name+" memory", strconv.FormatInt(memory.Value()>>20, 10)+" MiB", g.Memory)
	node := "/dev/nvidia" + g.Minor
	f.check(d.Name+" has "+node, nodeOf(d, node))
}

func nodeOf(d *device.Device, path string) error {
	for _, n := range d.Edits.Nodes {
		if n.Path == path {
			return nil
		}
	}
	return fmt.Errorf("it has %+v", d.Edits.Nodes)
}

var (
	profileLine = regexp.MustCompile(`(?m)^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+\d+/(\d+)\s+([\d.]+)\s+\S+\s+(\d+)\s+(\d+)\s+(\d+)\s+\|\n` +
		`\|\s+(\d+)\s+(\d+)\s+(\d+)\s+\|`)
	placeLine = regexp.MustCompile(`(?m)^GPU\s+(\d+) Profile ID\s+(\d+) Placements?\s*: \{([\d,]*)\}:(\d+)`)
)

// compareProfiles holds the profiles of a GPU against NVIDIA's own two lists, for GPU 0 of a machine with one.
func compareProfiles(ctx context.Context, f *findings, d *nvml.Device) {
	if d.MIG == nil {
		f.check("profiles of "+d.PCIBusID, impossible("the GPU cannot be divided"))
		return
	}
	list, err := tool(ctx, "nvidia-smi", "mig", "-lgip", "-i", d.UUID)
	if err != nil {
		f.check("nvidia-smi mig -lgip", err)
		return
	}
	theirs := map[string]string{}
	for _, m := range profileLine.FindAllStringSubmatch(string(list), -1) {
		theirs[m[2]] = fmt.Sprintf("id %s, at most %s, %s GiB, SM %s, DEC %s, ENC %s, CE %s, JPEG %s, OFA %s",
			m[3], m[4], m[5], m[6], m[7], m[8], m[9], m[10], m[11])
	}
	places, err := tool(ctx, "nvidia-smi", "mig", "-lgipp", "-i", d.UUID)
	if err != nil {
		f.check("nvidia-smi mig -lgipp", err)
		return
	}
	where := map[string]string{}
	for _, m := range placeLine.FindAllStringSubmatch(string(places), -1) {
		where[m[2]] = "{" + m[3] + "}:" + m[4]
	}
	f.check("number of profiles of "+d.PCIBusID, counted(len(d.MIG.Profiles), len(theirs)))
	for _, p := range d.MIG.Profiles {
		ours := fmt.Sprintf("id %d, at most %d, %.2f GiB, SM %d, DEC %d, ENC %d, CE %d, JPEG %d, OFA %d", p.ID, p.MaxInstances,
			float64(p.MemoryMB)/1024, p.Multiprocessors, p.Decoders, p.Encoders, p.CopyEngines, p.JPEGEngines, p.OFAEngines)
		f.same("profile "+p.Name, ours, theirs[p.Name])
		var starts []string
		size := uint32(0)
		for _, place := range p.Placements {
			starts, size = append(starts, strconv.Itoa(int(place.Start))), place.Size
		}
		f.same("places of profile "+p.Name, fmt.Sprintf("{%s}:%d", strings.Join(starts, ","), size), where[strconv.Itoa(int(p.ID))])
	}
}

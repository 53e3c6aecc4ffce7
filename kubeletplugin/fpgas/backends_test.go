// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

const (
	zynqDevice  = "amd-firmware-zynqmp-firmware-pcap"
	zynqShell   = "5f2c81d0a4b94e0fb7c36d1e8f02a957"
	alveoDevice = "amd-0000-3b-00-1"
	alveoShell  = "97088961feaeda91a35bd3a1b3f8d2c5"
)

// board is a simulated machine whose FPGAs are not DFL's.
type board struct {
	*site
	*Feature
	t    *testing.T
	host string
	file nodeconfig.File
	// class is what the class of the claims says, "" for openClass.
	class string
}

func newBoard(t *testing.T, machine string, file nodeconfig.File) *board {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making device nodes and changing the root directory need root")
	}
	dir := t.TempDir()
	b := &board{site: newSite(t), t: t, host: filepath.Join(dir, "host"), file: file.WithDefaults()}
	nodefixture.ExpandInto(t, machine, b.host)
	// A program whose root directory is the machine finds the state directory by the path that the plugin gives it.
	inside := filepath.Join(b.host, dir)
	check.Must(t, os.MkdirAll(inside, 0o755))
	up, err := filepath.Rel(inside, b.host)
	check.Must(t, err)
	check.Must(t, os.Symlink(up, filepath.Join(inside, "host")))
	if b.file.FPGA.XRT.DriverRoot != "" {
		b.file.FPGA.XRT.DriverRoot = b.host
	}
	b.Feature = newFeature(t, b.site, Config{HostRoot: b.host, StateDir: filepath.Join(b.host, "state"), File: &b.file.FPGA})
	b.look()
	return b
}

// look has a scanner look at the machine once.
func (b *board) look() *inventory.Snapshot {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	registry, errs := prometheus.NewRegistry(), prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"in"})
	inventory.NewScanner(inventory.Config{
		Node: nodefixture.Node, HostRoot: b.host, File: &b.file, Reviewers: []inventory.Reviewer{b.Feature, last(cancel)},
		Recovering: func() map[[2]string]string { return nil }, HeldByDeleted: func() map[[2]string]*record.Record { return nil },
		Holder: b.Holder, Rescan: notify.New(), Review: notify.New(),
		Metrics: inventory.NewMetrics(registry, errs, prometheus.DefBuckets),
	}).Run(ctx, nil)
	v, _ := b.Holder.Get()
	if v == nil {
		b.t.Fatal("the machine could not be looked at")
	}
	return v
}

// last ends a scanner after a look.
type last context.CancelFunc

func (l last) Review(context.Context, *inventory.Snapshot) { l() }

// keep pushes an image and makes its object, team-a/NAME.
func (b *board) keep(name string, config string, format fpga.Format, file []byte, id, interfaceID string) {
	b.t.Helper()
	manifest := b.Push(b.t, "team/"+name, "", fpgaregistry.Bitstream{Config: config, Format: format, File: file})
	b.put(b.object("team-a", name, v1alpha1.BitstreamImage{
		Manifest: manifest.Digest, Layer: digestOf(file), Size: int64(len(file)), Format: string(format), ID: id, AFUID: id,
		InterfaceID: interfaceID,
	}))
}

// published is the device as the scheduler would see it, nil where it is withheld.
func (b *board) published(name string) *device.Device {
	b.t.Helper()
	v := b.look()
	for i := range v.Devices {
		if d := &v.Devices[i]; d.Name == name && v.Withheld[name] == "" {
			return d
		}
	}
	return nil
}

// prepare plans a claim for a device and applies its steps up to one that fails.
func (b *board) prepare(name, members string) ([]step.Step, error) {
	b.t.Helper()
	class := openClass
	if b.class != "" {
		class = b.class
	}
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", name)), class), members)
	a, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	check.Must(b.t, err)
	planned, err := b.Plan(b.t.Context(), prepare.Request{Claim: c, Allocation: a, Find: func(r *claim.Result) (device.Device, bool) {
		v, _ := b.Holder.Get()
		return v.Find(r.Kind, r.Device)
	}})
	steps := planned.Steps
	for i := 0; i < len(steps) && err == nil; i++ {
		err = b.Kinds().Apply(b.t.Context(), steps[i])
	}
	return steps, err
}

func (b *board) giveBack(steps []step.Step) error {
	b.t.Helper()
	for i := len(steps) - 1; i >= 0; i-- {
		if err := b.Kinds().Undo(b.t.Context(), steps[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *board) set(name, text string) {
	b.t.Helper()
	check.Must(b.t, os.WriteFile(filepath.Join(b.host, name), []byte(text), 0o600))
}

func (b *board) read(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.host, name))
	check.Must(b.t, err)
	return strings.TrimSpace(string(text))
}

func textOf(d *device.Device, name resourceapi.QualifiedName) string {
	if d == nil || d.Attributes[name].StringValue == nil {
		return ""
	}
	return *d.Attributes[name].StringValue
}

// TestZynqMP: a claim programs a chip, which is known by what it was given; one that fails is withheld until it was put right.
func TestZynqMP(t *testing.T) {
	file := nodeconfig.File{
		FPGA:        nodeconfig.FPGA{Programming: true, Backends: []string{fpga.BackendFPGAManager}},
		FPGARegions: []discover.FPGARegion{{Device: zynqDevice, InterfaceID: zynqShell, Nodes: []string{"/dev/dpu"}}},
	}
	b := newBoard(t, "zynqmp", file)
	const manager = "sys/class/fpga_manager/fpga0/"
	logic := []byte("what makes a DPU")
	b.keep("dpu", fmt.Sprintf(`{"format":"bin","interfaceID":%q,"id":%q}`, zynqShell, nlb3), fpga.BIN, logic, nlb3, zynqShell)
	const wish = `"bitstream":{"name":"dpu"}`
	_, err := b.prepare(zynqDevice, wish)
	wants(t, err, nil, "part of the machine", "policy.allowWithoutIOMMU")
	b.class = `"policy":{"allowedBitstreams":["team-a/*"],"allowWithoutIOMMU":true}`
	steps, err := b.prepare(zynqDevice, wish)
	check.Must(t, err)
	digits := strings.TrimPrefix(digestOf(logic), "sha256:")
	if got, want := b.read(manager+"firmware"), "fettle-fpga0-"+digits+".bin"; got != want || b.read(manager+"flags") != "0" {
		t.Errorf("the kernel was given %q with flags %s, want %q", got, b.read(manager+"flags"), want)
	}
	if got := textOf(b.published(zynqDevice), device.AttributeBitstreamDigest); got != digits {
		t.Errorf("published with digest %q, want %s", got, digits)
	}
	check.Must(t, b.giveBack(steps))
	b.set(manager+"state", "write error\n")
	steps, err = b.prepare(zynqDevice, wish)
	if wants(t, err, nil, "write error"); backend.KindOf(err) != backend.Unknown || reasonOf(err) != ReasonProgramFailed {
		t.Errorf("%v is %s, reason %s", err, backend.KindOf(err), reasonOf(err))
	}
	if d := b.published(zynqDevice); d != nil {
		t.Errorf("published as %+v", d)
	}
	if b.giveBack(steps) == nil || len(b.Orphans(t.Context())) != 1 {
		t.Errorf("given back, with %d orphans", len(b.Orphans(t.Context())))
	}
	b.set(manager+"state", "operating\n")
	check.Must(t, b.giveBack(steps))
	if d := b.published(zynqDevice); d == nil || textOf(d, device.AttributeBitstreamDigest) != "" {
		t.Errorf("published as %+v", d)
	}
}

// TestKindSwitchedOff: a region of a kind that is not programmed is given out as it is, and nothing is written to it.
func TestKindSwitchedOff(t *testing.T) {
	b := newBoard(t, "zynqmp", nodeconfig.File{
		FPGA:        nodeconfig.FPGA{Programming: true},
		FPGARegions: []discover.FPGARegion{{Device: zynqDevice, InterfaceID: zynqShell, Nodes: []string{"/dev/dpu"}}},
	})
	if steps, err := b.prepare(zynqDevice, `"program":"IfDifferent"`); len(steps) > 0 || err != nil {
		t.Errorf("as it is: %v, %v", steps, err)
	}
	_, err := b.prepare(zynqDevice, `"bitstream":{"name":"dpu"}`)
	wants(t, err, nil, "fpga_manager", "fpga.backends")
}

// TestWithoutNodes: what no container could use is withheld, and the reason says what to configure.
func TestWithoutNodes(t *testing.T) {
	b := newBoard(t, "zynqmp", nodeconfig.File{FPGARegions: []discover.FPGARegion{{Device: zynqDevice, InterfaceID: zynqShell}}})
	v, _ := b.Holder.Get()
	if len(v.Devices) > 0 || len(v.Problems) != 1 || v.Problems[0].Reason != discover.ReasonNodesMissing ||
		!strings.Contains(v.Problems[0].Message, "nodes under fpgaRegions") {
		t.Errorf("devices %v, problems %+v", v.Devices, v.Problems)
	}
}

// TestAlveo: XRT's program runs with the machine as its root directory, of which it reaches little, and the card shows what a claim asked
// for.
func TestAlveo(t *testing.T) {
	b := newBoard(t, "2xalveo", nodeconfig.File{FPGA: nodeconfig.FPGA{
		Programming: true, Backends: []string{fpga.BackendXRT}, XRT: nodeconfig.XRT{DriverRoot: "/"},
	}})
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(b.host, "opt/xilinx/xrt/bin/unwrapped/xbmgmt2"),
		"./testdata/xbmgmt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	xclbin, err := os.ReadFile("../../pkg/fpga/testdata/hello.xclbin")
	check.Must(t, err)
	raw, err := hex.DecodeString(alveoShell)
	check.Must(t, err)
	copy(xclbin[336:], raw)
	id := hex.EncodeToString(xclbin[416:432])
	b.keep("hello", `{}`, fpga.Xclbin, xclbin, id, alveoShell)
	check.Must(t, os.Mkdir(filepath.Join(b.host, "etc"), 0o755))
	b.set("etc/secret", "key") // which the program tries to read
	const shown = "sys/bus/pci/devices/0000:3b:00.1/xclbinuuid"
	steps, err := b.prepare(alveoDevice, `"bitstream":{"name":"hello"}`)
	check.Must(t, err)
	d := b.published(alveoDevice)
	digits := strings.TrimPrefix(digestOf(xclbin), "sha256:")
	if textOf(d, device.AttributeAFUID) != id || textOf(d, device.AttributeBitstreamDigest) != digits {
		t.Errorf("published as %+v", d)
	}
	check.Must(t, b.giveBack(steps))
	if got := b.read(shown); strings.Trim(got, "0") != "" {
		t.Errorf("after the claim the card shows %s, want none", got)
	}
	b.set("broken", "")
	_, err = b.prepare(alveoDevice, `"bitstream":{"name":"hello"}`)
	if wants(t, err, nil, "ICAP of 0000:3b:00.0"); backend.KindOf(err) != backend.Unknown || b.published(alveoDevice) != nil {
		t.Errorf("%v is %s, published %v", err, backend.KindOf(err), b.published(alveoDevice))
	}
	if b.published("amd-0000-c3-00-1") == nil {
		t.Error("the other card is withheld too")
	}
}

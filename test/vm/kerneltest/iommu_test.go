// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// TestGroups: the kernel puts each function into a group, and lists it there by the same address.
func TestGroups(t *testing.T) {
	m := onMachine(t)
	addresses, err := m.tree.ReadDir(sysfs.PCIDevices)
	check.Must(t, err)
	if len(addresses) == 0 {
		t.Fatal("the machine has no PCI device")
	}
	for _, address := range addresses {
		group := m.group(address)
		members, err := m.tree.ReadDir(path.Join(sysfs.IOMMUGroups, strconv.FormatUint(group.Number, 10), "devices"))
		check.Must(t, err)
		if !slices.Contains(members, address) {
			t.Errorf("%s is in group %d, which lists %q", address, group.Number, members)
		}
	}
}

// TestDMAIsolation: what Fettle says of a card's access to memory follows the group's type, which the admin may change.
func TestDMAIsolation(t *testing.T) {
	m := onMachine(t)
	address := m.device(edu)
	region := &fpga.Region{Requester: sysfs.PCIDevice(address)}
	group := m.group(address)
	if group.Type != "DMA-FQ" {
		t.Errorf("the group's type is %q, want the kernel's default DMA-FQ", group.Type)
	}
	if err := region.CheckDMA(m.tree); err != nil {
		t.Errorf("behind an IOMMU: %v", err)
	}
	attribute := path.Join(sysfs.IOMMUGroups, strconv.FormatUint(group.Number, 10), "type")
	t.Cleanup(func() { check.Must(t, m.write.WriteAttr(attribute, group.Type)) })
	for _, tt := range []struct {
		kind     string
		isolated bool
	}{{"identity", false}, {"DMA", true}, {"DMA-FQ", true}} {
		check.Must(t, m.write.WriteAttr(attribute, tt.kind))
		if got := m.group(address); got.Type != tt.kind {
			t.Errorf("the group's type is %q, want %q", got.Type, tt.kind)
		}
		err := region.CheckDMA(m.tree)
		if tt.isolated != (err == nil) || err != nil && (!errors.Is(err, fpga.ErrNotIsolated) ||
			!strings.Contains(err.Error(), fmt.Sprintf("IOMMU group %d of device %s has type %q", group.Number, address, tt.kind))) {
			t.Errorf("type %s: %v, want isolated: %t", tt.kind, err, tt.isolated)
		}
	}
}

// TestNoGroup: a device that no IOMMU is in front of has no group, and Fettle refuses to trust it.
func TestNoGroup(t *testing.T) {
	m := onMachine(t)
	const device = "sys/devices/platform/serial8250"
	if !m.tree.Exists(device) {
		t.Fatalf("the machine has no /%s", device)
	}
	region := &fpga.Region{Requester: device}
	if err := region.CheckDMA(m.tree); !errors.Is(err, fpga.ErrNotIsolated) || !strings.Contains(err.Error(), "has no IOMMU group") {
		t.Errorf("got %v, want that it has no IOMMU group", err)
	}
}

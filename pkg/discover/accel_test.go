// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/check"
)

// accelMachine discovers the machine 2xaccel with changes: pairs of what is replaced and by what.
func accelMachine(t *testing.T, changes ...string) Inventory {
	t.Helper()
	text, err := os.ReadFile("../../test/machines/2xaccel.txtar")
	check.Must(t, err)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			t.Fatalf("the machine has no %q to change", changes[i])
		}
	}
	machine, err := sim.Parse([]byte(strings.NewReplacer(changes...).Replace(string(text))))
	check.Must(t, err)
	return discoverIn(t, expand(t, machine), Options{})
}

func TestAccelerators(t *testing.T) {
	const (
		gaudi    = "habana-0000-c1-00-0"
		classEnd = "-- sys/devices/pci0000:${card.root}/0000:${card.root}:01.0/* --\n"
		ofGaudi  = "../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0"
	)
	tests := []struct {
		name   string
		change []string
		// names are the devices that are found, want are attributes of the last of them. Reasons are the problems'.
		names   string
		want    map[resourceapi.QualifiedName]string
		reasons string
	}{
		{
			name: "as it is", names: gaudi + " qualcomm-0000-81-00-0",
			want: map[resourceapi.QualifiedName]string{
				"type": "accelerator", "vendor": "qualcomm", "driver": "qaic", "driverVersion": "6.12.41", "pciAddress": "0000:81:00.0",
				"pciVendorID": "17cb", "pciDeviceID": "a100", "serial": "2415919104",
			},
		},
		{
			name: "the driver's own version", change: []string{"${card.driver}/initstate live", "${card.driver}/version 1.18.0-524"},
			names: gaudi + " qualcomm-0000-81-00-0", want: map[resourceapi.QualifiedName]string{"driverVersion": "1.18.0-524"},
		},
		{
			name:   "a vendor and a driver that nobody knows",
			change: []string{"row 0 80 81 0 17cb a100 17cb qaic", "row 0 80 81 0 1de5 0001 1de5 other"},
			names:  gaudi + " pci1de5-0000-81-00-0",
			want:   map[resourceapi.QualifiedName]string{"vendor": "pci1de5", "driver": "other", "serial": ""},
		},
		{
			name: "firmware that has not started", change: []string{"Serial Number: 2415919104", "Serial Number: 0"},
			names: gaudi + " qualcomm-0000-81-00-0", want: map[resourceapi.QualifiedName]string{"serial": ""},
		},
		{
			name: "a device for tools of the administrator", names: gaudi + " qualcomm-0000-81-00-0",
			change: []string{classEnd, "-- sys/class/accel/accel_controlD1/dev --\n261:65\n" + classEnd},
		},
		{
			name: "two nodes of one function", names: gaudi + " qualcomm-0000-81-00-0",
			change: []string{
				"-- sys/class/accel/* --\n", "-- sys/class/accel/* --\naccel2 -> " + ofGaudi + "/accel/accel2\n",
				"device_type GAUDI2\n", "device_type GAUDI2\naccel/accel2/dev 261:2\n",
			},
		},
		{
			name: "a virtual function", names: "qualcomm-0000-81-00-0", reasons: ReasonPartitioned,
			change: []string{"device_type GAUDI2", "device_type GAUDI2\nphysfn -> ../../../pci0000:c0/0000:c0:01.0"},
		},
		{
			name: "a device that its driver gave up", names: "qualcomm-0000-81-00-0", reasons: ReasonNotResponding,
			change: []string{"status Operational", "status Needs reset"},
		},
		{
			name: "a device in reset", names: gaudi + " qualcomm-0000-81-00-0", change: []string{"status Operational", "status In reset"},
		},
		{
			name: "a part of the machine", names: gaudi + " platform-fdab0000-npu qualcomm-0000-81-00-0",
			change: []string{
				"-- sys/class/accel/* --\n", "-- sys/class/accel/* --\naccel7 -> ../../devices/platform/fdab0000.npu/accel/accel7\n",
				classEnd, "-- sys/devices/platform/fdab0000.npu/* --\naccel/accel7/dev 261:7\naccel/accel7/device -> ../../../fdab0000.npu\n" +
					"driver -> ../../../bus/platform/drivers/rocket\n-- sys/bus/platform/drivers/rocket/uevent --\n\n" + classEnd,
			},
		},
		{
			name: "vendors that lost digits", change: []string{"vendor 0x${card.vendor}", "vendor 0x1"},
			reasons: "IdentityUnreadable IdentityUnreadable",
		},
		{
			name: "boards that cannot be read", change: []string{"subsystem_vendor 0x${card.subsystem}", "subsystem_vendor none"},
			names: gaudi + " qualcomm-0000-81-00-0", reasons: "AttributeUnreadable AttributeUnreadable",
		},
		{
			name: "one that vanished", names: "qualcomm-0000-81-00-0",
			change: []string{
				"row 1 c0 c1 1 1da3 1020 1da3 habanalabs\n", "",
				"-- sys/class/accel/* --\n", "-- sys/class/accel/* --\naccel1 -> " + ofGaudi + "/accel/accel1\n",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := accelMachine(t, tt.change...)
			var names, reasons []string
			for _, d := range found.Devices {
				names = append(names, d.Name)
			}
			for _, p := range found.Problems {
				reasons = append(reasons, p.Reason)
			}
			if got := strings.Join(names, " "); got != tt.names {
				t.Errorf("devices %s, want %s", got, tt.names)
			}
			if got := strings.Join(reasons, " "); got != tt.reasons {
				t.Errorf("problems %+v, want %q", found.Problems, tt.reasons)
			}
			for name, want := range tt.want {
				if got := device.StringOf(found.Devices[len(found.Devices)-1].Attributes[name]); got != want {
					t.Errorf("attribute %s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

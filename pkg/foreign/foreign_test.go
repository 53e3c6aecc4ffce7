// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// TestValidate: each fault names its field and what is expected there.
func TestValidate(t *testing.T) {
	good := foreign.Entry{Owner: "NVIDIA device plugin", PCIAddresses: []string{"0000:1b:00.0"}}
	tests := []struct {
		name   string
		change func(*foreign.Entry)
		want   []string
	}{
		{"addresses", func(*foreign.Entry) {}, nil},
		{"everything", func(e *foreign.Entry) {
			e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "mixed"}}
			e.UUIDs, e.Selector = []string{"GPU-1"}, `device.attributes["fettle.dev"].vendor == "nvidia"`
		}, nil},
		{"no owner", func(e *foreign.Entry) { e.Owner = "" }, []string{"foreignDevices[0].owner: is", `"NVIDIA device plugin"`}},
		{"a line break", func(e *foreign.Entry) { e.Owner = "a\nb" }, []string{"foreignDevices[0].owner"}},
		{"no device", func(e *foreign.Entry) { e.PCIAddresses = nil }, []string{"names no device", "pciAddresses, uuids or selector"}},
		{"nvidia-smi's address", func(e *foreign.Entry) {
			e.PCIAddresses = append(e.PCIAddresses, "00000000:1B:00.0")
		}, []string{"foreignDevices[0].pciAddresses[1]", "want DDDD:BB:DD.F in lower-case"}},
		{"a UUID with blanks", func(e *foreign.Entry) {
			e.UUIDs = []string{"GPU 1"}
		}, []string{"foreignDevices[0].uuids[0]", "fettle devices -o yaml"}},
		{"CEL that does not compile", func(e *foreign.Entry) { e.Selector = "device.attributes[" }, []string{"foreignDevices[0].selector"}},
		{"CEL that is no condition", func(e *foreign.Entry) { e.Selector = "device.driver" }, []string{"foreignDevices[0].selector"}},
		{"an attribute that does not exist", func(e *foreign.Entry) {
			e.Selector = `device.attributes["fettle.dev"].vender == "nvidia"`
		}, []string{"foreignDevices[0].selector", "vender", "vendor"}},
		{"a selector of nodes", func(e *foreign.Entry) {
			e.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Maybe"}}}
		}, []string{"foreignDevices[0].nodeSelector", "Maybe"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := good
			tt.change(&e)
			err := errors.Join(foreign.Validate([]foreign.Entry{e})...)
			if len(tt.want) == 0 {
				check.Must(t, err)
				return
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
	if err := errors.Join(foreign.Validate(slices.Repeat([]foreign.Entry{good}, 65))...); err == nil ||
		!strings.Contains(err.Error(), "has 65 entries, at most 64") {
		t.Errorf("65 entries: %v", err)
	}
}

// find discovers a machine of test/machines and returns what the entries leave to others: OWNER: SUBJECTS, and the problems.
func find(t *testing.T, machine string, labels map[string]string, entries ...foreign.Entry) foreign.Result {
	t.Helper()
	return (&foreign.Finder{Entries: entries}).Find(t.Context(), discovered(t, machine), labels)
}

func discovered(t *testing.T, machine string) discover.Inventory {
	t.Helper()
	text, err := os.ReadFile("../../test/machines/" + machine + ".txtar")
	check.Must(t, err)
	parsed, err := sim.Parse(text)
	check.Must(t, err)
	dir := t.TempDir()
	_, err = parsed.Expand(dir, sim.Options{})
	check.Must(t, err)
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	return discover.Discover(t.Context(), tree, discover.Options{})
}

// told is what a result says, a line for each device and problem.
func told(r foreign.Result) (lines []string) {
	for _, d := range r.Devices {
		line := d.Subject + " " + d.Owner
		if d.Unsure != "" {
			line += " unsure"
		}
		lines = append(lines, line)
	}
	for _, p := range r.Problems {
		lines = append(lines, p.Reason+" "+p.Subject)
	}
	return lines
}

func TestFind(t *testing.T) {
	const nvidia = `device.attributes["fettle.dev"].vendor == "nvidia"`
	to := func(change func(*foreign.Entry)) foreign.Entry {
		e := foreign.Entry{Owner: "other"}
		change(&e)
		return e
	}
	pool := &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "mixed"}}
	uuid := ""
	for _, d := range discovered(t, "8xh100-sxm").Devices {
		if device.StringOf(d.Attributes[device.AttributePCIAddress]) == "0000:19:00.0" {
			uuid = device.StringOf(d.Attributes[device.AttributeUUID])
		}
	}
	tests := []struct {
		name, machine string
		labels        map[string]string
		entry         foreign.Entry
		want          []string
	}{
		{"an address", "8xh100-sxm", nil, to(func(e *foreign.Entry) {
			e.PCIAddresses = []string{"0000:18:00.0"}
		}), []string{"0000:18:00.0 other"}},
		{"a UUID", "8xh100-sxm", nil, to(func(e *foreign.Entry) { e.UUIDs = []string{uuid} }), []string{"0000:19:00.0 other"}},
		{"CEL", "2xa100-2xn6000", nil, to(func(e *foreign.Entry) { e.Selector = nvidia }), []string{"0000:39:00.0 other", "0000:b5:00.0 other"}},
		{"nothing there", "8xh100-sxm", nil, to(func(e *foreign.Entry) {
			e.PCIAddresses, e.UUIDs, e.Selector = []string{"0000:ff:00.0"}, []string{"GPU-none"}, `device.attributes["fettle.dev"].vendor == "amd"`
		}), []string{
			"ForeignDeviceNotFound 0000:ff:00.0", "ForeignDeviceNotFound GPU-none", "ForeignDeviceNotFound foreignDevices[0].selector",
		}},
		{"another node", "8xh100-sxm", map[string]string{"pool": "gpus"}, to(func(e *foreign.Entry) {
			e.NodeSelector, e.PCIAddresses = pool, []string{"0000:18:00.0"}
		}), nil},
		{"this node", "8xh100-sxm", map[string]string{"pool": "mixed"}, to(func(e *foreign.Entry) {
			e.NodeSelector, e.PCIAddresses = pool, []string{"0000:18:00.0"}
		}), []string{"0000:18:00.0 other"}},
		{"labels that are not known yet", "8xh100-sxm", nil, to(func(e *foreign.Entry) {
			e.NodeSelector, e.PCIAddresses = pool, []string{"0000:18:00.0", "0000:ff:00.0"}
		}), []string{"0000:18:00.0 other"}},
		{"a GPU without a driver", "broken-no-driver", nil, to(func(e *foreign.Entry) {
			e.PCIAddresses = []string{"0000:17:00.0"}
		}), []string{"0000:17:00.0 other"}},
		{"CEL that fails on a device", "2xa100-2xn6000", nil, to(func(e *foreign.Entry) {
			e.Selector = `device.attributes["fettle.dev"].afuID == "1"`
		}), []string{"0000:39:00.0 other unsure", "0000:b5:00.0 other unsure"}},
		{"directories of the host", "4xlocalssd", nil, to(func(e *foreign.Entry) {
			e.Selector = "true"
		}), []string{"ForeignDeviceNotFound foreignDevices[0].selector"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := told(find(t, tt.machine, tt.labels, tt.entry))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWholeCards: one driver has all regions of a card.
func TestWholeCards(t *testing.T) {
	var card string
	regions := map[string]int{}
	for _, d := range discovered(t, "200-devices").Devices {
		if d.Region != nil && d.Region.Card != "" {
			if regions[d.Region.Card]++; regions[d.Region.Card] > 1 {
				card = d.Region.Card
			}
		}
	}
	if card == "" {
		t.Skip("no machine has a card with two regions")
	}
	got := find(t, "200-devices", nil, foreign.Entry{Owner: "other", PCIAddresses: []string{card}})
	if len(got.Devices) != regions[card] {
		t.Errorf("left %v, want the %d regions of card %s", told(got), regions[card], card)
	}
}

// TestFirstEntryCounts: a device has one owner, the first that is sure.
func TestFirstEntryCounts(t *testing.T) {
	got := find(t, "8xh100-sxm", nil,
		foreign.Entry{Owner: "unsure", Selector: `device.attributes["fettle.dev"].afuID == "1"`},
		foreign.Entry{Owner: "first", PCIAddresses: []string{"0000:18:00.0"}},
		foreign.Entry{Owner: "second", PCIAddresses: []string{"0000:18:00.0"}})
	if lines := told(got); len(lines) != 8 || lines[0] != "0000:18:00.0 first" || lines[1] != "0000:19:00.0 unsure unsure" {
		t.Errorf("%v", lines)
	}
}

// TestSilentLibrary: a GPU that was left by what NVIDIA's library says of it stays left while the library does not answer, and one of which
// the library has not told yet is held back.
func TestSilentLibrary(t *testing.T) {
	answered := discovered(t, "8xh100-sxm")
	silent := answered
	silent.Problems = []discover.Problem{{Subject: "/dev/nvidiactl", Reason: discover.ReasonNVMLUnavailable}}
	answered.Devices = slices.Clone(answered.Devices)
	brand, err := device.String("NVIDIA")
	check.Must(t, err)
	answered.Devices[0].Attributes = maps.Clone(answered.Devices[0].Attributes)
	answered.Devices[0].Attributes[device.AttributeBrand] = brand
	entries := []foreign.Entry{{Owner: "other", Selector: `"brand" in device.attributes["fettle.dev"]`}}

	finder := foreign.Finder{Entries: entries}
	for _, found := range []discover.Inventory{answered, silent, silent, answered} {
		if got := told(finder.Find(t.Context(), found, nil)); !slices.Equal(got, []string{"0000:18:00.0 other"}) {
			t.Errorf("left %v, want the GPU with a brand, whether the library answers or not", got)
		}
	}
	fresh := foreign.Finder{Entries: entries}
	if got := fresh.Find(t.Context(), silent, nil).Devices; len(got) != 8 || got[0].Unsure == "" {
		t.Errorf("before the library answered: %+v, want all held back", got)
	}
}

// TestUnknownUUID: a GPU whose UUID is not known is held back while the UUID that is named is not found.
func TestUnknownUUID(t *testing.T) {
	found := discovered(t, "8xh100-sxm")
	found.Devices = slices.Clone(found.Devices)
	uuid := device.StringOf(found.Devices[3].Attributes[device.AttributeUUID])
	found.Devices[3].Attributes = maps.Clone(found.Devices[3].Attributes)
	delete(found.Devices[3].Attributes, device.AttributeUUID)
	got := (&foreign.Finder{Entries: []foreign.Entry{{Owner: "other", UUIDs: []string{uuid}}}}).Find(t.Context(), found, nil)
	if len(got.Devices) != 1 || got.Devices[0].Name != found.Devices[3].Name || got.Devices[0].Unsure == "" || len(got.Problems) > 0 {
		t.Errorf("%+v", got)
	}
	if p := got.Devices[0].Problem(); p.Reason != foreign.ReasonUnsure || !strings.Contains(p.Message, "foreignDevices[0].uuids[0]") {
		t.Errorf("problem %+v", p)
	}
}

// SPDX-License-Identifier: Apache-2.0

package quiesce

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// The reasons of the condition Quiesced.
const (
	// ReasonQuiesced: nothing of Fettle uses the drivers.
	ReasonQuiesced = "Quiesced"
	// ReasonOthers: nothing of Fettle uses the drivers, and other programs do, which keeps the drivers from being unloaded.
	ReasonOthers = "UsedByOthers"
	// ReasonVendorUnknown: the annotation names something else than vendors.
	ReasonVendorUnknown = "VendorUnknown"
	// ReasonPending: the API server still has the devices.
	ReasonPending = "StillPublished"
	// ReasonClaims: claims hold devices.
	ReasonClaims = "ClaimsPrepared"
	// ReasonInUse: the plugin or a child of it still has device files open.
	ReasonInUse = "InUseByPlugin"
)

// Report is what the condition Quiesced says.
type Report struct {
	Done            bool
	Reason, Message string
}

// Soon says that the report changes by itself within a moment.
func (r *Report) Soon() bool {
	return r != nil && (r.Reason == ReasonPending || r.Reason == ReasonInUse)
}

// Input is what a report is made of.
type Input struct {
	Snapshot *inventory.Snapshot
	// Published says that the API server has what the snapshot publishes.
	Published bool
	// Records are those of the node's claims. Damaged is how many more cannot be read; they may hold anything.
	Records []*record.Record
	Damaged int
}

// Report says how far the plugin is. Nil: it was not asked to let go of anything.
func (s *State) Report(in Input) *Report {
	vendors, unknown := s.vendors()
	if len(vendors)+len(unknown) == 0 {
		return nil
	}
	if len(unknown) > 0 {
		return &Report{Reason: ReasonVendorUnknown, Message: fmt.Sprintf(
			"%q is no vendor: name nvidia, amd or intel, several with commas, or * for all", strings.Join(unknown, ","))}
	}
	names := strings.Join(vendors, ", ")
	if !in.Published || publishes(in.Snapshot, vendors) {
		return &Report{Reason: ReasonPending, Message: "the API server still has devices of " + names}
	}
	if n := in.Damaged + claims(in, vendors); n > 0 {
		return &Report{Reason: ReasonClaims, Message: fmt.Sprintf("%d claims hold devices of %s: waits for their pods to end", n, names)}
	}
	users, err := s.users(vendors)
	if err != nil {
		return &Report{Reason: ReasonInUse, Message: "cannot see what of the plugin uses devices: " + err.Error()}
	}
	if len(users) > 0 {
		return &Report{Reason: ReasonInUse, Message: "still in use: " + strings.Join(users, ", ")}
	}
	done := &Report{Done: true, Reason: ReasonQuiesced, Message: "nothing of Fettle uses the drivers of " + names}
	used, others := s.others(in.Snapshot, vendors)
	if used {
		done.Reason = ReasonOthers
	}
	done.Message += "; " + others
	return done
}

func publishes(v *inventory.Snapshot, vendors []string) bool {
	return slices.ContainsFunc(v.Devices, func(d device.Device) bool {
		_, withheld := v.Withheld[d.Name]
		return !withheld && slices.Contains(vendors, device.StringOf(d.Attributes[device.AttributeVendor]))
	})
}

// claims counts the claims with a device of the vendors. Admin access counts: its pod has the device open, too.
func claims(in Input, vendors []string) (n int) {
	for _, r := range in.Records {
		if slices.ContainsFunc(r.Devices, func(d record.Device) bool {
			return slices.Contains(vendors, vendorOf(in.Snapshot, d.Kind(), d.Name))
		}) {
			n++
		}
	}
	return n
}

// users returns what of the plugin uses devices of the vendors: files that it has open, and children that watch or ask NVIDIA's library.
func (s *State) users(of []string) ([]string, error) {
	open := filepath.Join(s.config.Proc, "self", "fd")
	files, err := os.ReadDir(open)
	if err != nil {
		return nil, err
	}
	var users []string
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(open, f.Name()))
		if err == nil && isDevice(target, of) { // one that is closed meanwhile is not in use
			users = append(users, "file "+target)
		}
	}
	if !slices.Contains(of, "nvidia") || s.config.NVMLCommand == "" {
		return users, nil
	}
	children, err := s.children()
	return append(users, children...), err
}

// isDevice reports whether an open file holds the drivers of one of these vendors. Its path begins with the root that the driver is
// installed in.
func isDevice(path string, of []string) bool {
	return slices.ContainsFunc(of, func(name string) bool {
		v, _ := vendors.Find(name)
		return slices.ContainsFunc(v.Nodes, func(begin string) bool { return strings.Contains(path, begin) })
	})
}

// children returns the children of this process that run fettle-nvml.
func (s *State) children() ([]string, error) {
	self, err := os.Readlink(filepath.Join(s.config.Proc, "self"))
	if err != nil {
		return nil, err
	}
	processes, err := os.ReadDir(s.config.Proc)
	if err != nil {
		return nil, err
	}
	const longest = 15 // as the kernel cuts the name of a process
	name := filepath.Base(s.config.NVMLCommand)
	name = name[:min(len(name), longest)]
	var out []string
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(s.config.Proc, p.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		if command, parent, ok := parse(string(stat)); ok && command == name && parent == filepath.Base(self) {
			out = append(out, fmt.Sprintf("%s, process %s", name, p.Name()))
		}
	}
	return out, nil
}

// parse reads the name and the parent of a process of /proc/PID/stat, "12 (name) S 7 …". A name may have brackets. One that has ended and
// is not waited for yet holds nothing.
func parse(stat string) (command, parent string, ok bool) {
	begin, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	if begin < 0 || end < begin {
		return "", "", false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return "", "", false
	}
	return stat[begin+1 : end], fields[1], true
}

// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// HostDevice is the admin's word for host paths that are devices: local disks by directory, or character devices of drivers that
// Fettle does not know. Each match of a glob is one device.
type HostDevice struct {
	// Name begins the names of its devices and is their productName attribute. A DNS label.
	Name string `json:"name"`
	// Directories are absolute globs of directories of the host. Each match is mounted.
	Directories []string `json:"directories,omitempty"`
	// CharDevices are absolute globs of character device nodes. Each match keeps its path in the container.
	CharDevices []string `json:"charDevices,omitempty"`
	// ContainerPath is the directory of the container that a matched directory appears in, by its base name. Default
	// /mnt/<Name>.
	ContainerPath string `json:"containerPath,omitempty"`
}

// maxHostName leaves room in a device's name for the part that tells the matches apart.
const maxHostName = 32

// Validate checks what can be known without the machine. The error joins everything that is wrong.
func (h HostDevice) Validate() error {
	var faults []error
	if msgs := validation.IsDNS1123Label(h.Name); len(msgs) > 0 || len(h.Name) > maxHostName {
		faults = append(faults, fmt.Errorf("name %q: want at most %d lower-case letters, digits and dashes", h.Name, maxHostName))
	}
	for i, pattern := range h.Directories {
		faults = append(faults, checkGlob(fmt.Sprintf("directories[%d]", i), pattern))
	}
	for i, pattern := range h.CharDevices {
		faults = append(faults, checkGlob(fmt.Sprintf("charDevices[%d]", i), pattern))
	}
	if len(h.Directories)+len(h.CharDevices) == 0 {
		faults = append(faults, errors.New("want at least one of directories and charDevices"))
	}
	if p := h.ContainerPath; p != "" && (!path.IsAbs(p) || path.Clean(p) != p || p == "/") {
		faults = append(faults, fmt.Errorf("containerPath %q: want a clean absolute path, such as /mnt/scratch", p))
	}
	return errors.Join(faults...)
}

func checkGlob(field, pattern string) error {
	_, err := path.Match(pattern, "")
	if err != nil || !path.IsAbs(pattern) || path.Clean(pattern) != pattern || pattern == "/" {
		return fmt.Errorf("%s %q: want a clean absolute path with wildcards, such as /mnt/disks/*", field, pattern)
	}
	return nil
}

// hostDevices finds what the admin's configuration names. What no glob matches is no problem: the disk may come later.
func hostDevices(ctx context.Context, tree *sysfs.Tree, opts Options) Inventory {
	var found Inventory
	places, err := tree.Places()
	if err != nil {
		found.Problems = append(found.Problems, Problem{Subject: "/proc/self/mountinfo", Reason: ReasonListingFailed, Message: err.Error()})
	}
	for _, h := range opts.HostDevices {
		if err := h.Validate(); err != nil {
			found.Problems = append(found.Problems, Problem{
				Subject: h.Name, Reason: ReasonInvalid,
				Message: fmt.Sprintf("configured host device %q: %v", h.Name, err),
			})
			continue
		}
		found.add(h.matches(ctx, tree, h.Directories, opts.Locked, func(d *draft, name string) { h.directory(d, name, places, opts.Capacity) }))
		found.add(h.matches(ctx, tree, h.CharDevices, opts.Locked, h.charDevice))
	}
	return found
}

// matches describes each match of the globs once. A disk or a server that does not answer costs its own devices, and holds up the look at
// all others for one time limit.
func (h HostDevice) matches(
	ctx context.Context, tree *sysfs.Tree, globs []string, reads *sysfs.Reads, describe func(*draft, string),
) Inventory {
	var found Inventory
	seen := map[string]bool{}
	var names []string
	for _, pattern := range globs {
		matching, err := answered(ctx, reads, pattern, func() ([]string, error) { return tree.Glob(strings.TrimPrefix(pattern, "/")) })
		if err != nil {
			found.Problems = append(found.Problems, Problem{Subject: pattern, Reason: ReasonListingFailed, Message: err.Error()})
		}
		for _, name := range matching {
			if !seen[name] && ctx.Err() == nil {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	described := make([]Inventory, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { described[i] = h.match(ctx, tree, name, reads, describe) })
	}
	all.Wait()
	for i := range described {
		found.add(described[i])
	}
	return found
}

// match describes one match of a glob.
func (h HostDevice) match(
	ctx context.Context, tree *sysfs.Tree, name string, reads *sysfs.Reads, describe func(*draft, string),
) Inventory {
	draft := func() *draft {
		d := newDraft(tree, sysfs.HostPath(name), device.KindHost, h.deviceName(name))
		d.text(device.AttributeType, string(device.KindHost))
		d.text(device.AttributeVendor, vendors.Host)
		d.text(device.AttributeProductName, h.Name)
		return d
	}
	found, err := answered(ctx, reads, name, func() (Inventory, error) {
		d := draft()
		describe(d, name)
		return d.finish(), nil
	})
	if err != nil {
		d := draft()
		d.withhold(ReasonHostPathUnusable, err)
		return d.finish()
	}
	return found
}

// answered looks at something that a disk or a server may never answer. Without reads it waits for ever.
func answered[T any](ctx context.Context, reads *sysfs.Reads, name string, look func() (T, error)) (T, error) {
	if reads == nil {
		return look()
	}
	return sysfs.Call(ctx, reads, sysfs.HostPath(name), look, nil)
}

// directory mounts one directory. It must be one by itself: through a link the owner of the link would choose what pods get.
func (h HostDevice) directory(d *draft, name string, places sysfs.Places, capacity func(string) (int64, error)) {
	if err := checkDirectory(d.tree, name); err != nil {
		d.withhold(ReasonHostPathUnusable, err)
		return
	}
	var err error
	if d.device.Place, err = places.Of(name); err != nil {
		d.withhold(ReasonHostPathUnusable, err)
		return
	}
	base := cmp.Or(h.ContainerPath, path.Join("/mnt", h.Name))
	d.device.Edits.Mounts = []container.Mount{{
		HostPath: sysfs.HostPath(name), ContainerPath: path.Join(base, path.Base(name)),
	}}
	if capacity == nil {
		capacity = func(string) (int64, error) { return d.tree.Capacity(name) }
	}
	size, err := capacity(sysfs.HostPath(name))
	if err != nil {
		d.note(ReasonAttributeUnreadable, err)
		return
	}
	d.bytes(device.CapacityStorage, uint64(max(size, 0)))
}

// PlaceOf returns where a device of the configuration is now, as a scan would find it. It is the zero value for any other device.
func PlaceOf(tree *sysfs.Tree, d *device.Device) (container.Place, error) {
	switch {
	case d.Place == container.Place{}:
		return container.Place{}, nil
	case len(d.Edits.Mounts) > 0:
		places, err := tree.Places()
		if err != nil {
			return container.Place{}, err
		}
		return places.Of(strings.TrimPrefix(d.Edits.Mounts[0].HostPath, "/"))
	}
	n := d.Edits.Nodes[0]
	major, minor, err := tree.Rdev(strings.TrimPrefix(n.Path, "/"))
	if err != nil {
		return container.Place{}, err
	}
	at, err := tree.ReadLink(path.Join(sysfs.DevChar, fmt.Sprintf("%d:%d", major, minor)))
	return container.Place{Device: at}, err
}

// checkDirectory wants directories all the way down to name.
func checkDirectory(tree *sysfs.Tree, name string) error {
	for at := name; at != "."; at = path.Dir(at) {
		info, err := tree.Lstat(at)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is a %s, want a directory that no link leads to", sysfs.HostPath(at), kindOf(info))
		}
	}
	return nil
}

func kindOf(info fs.FileInfo) string {
	switch info.Mode().Type() {
	case fs.ModeSymlink:
		return "symbolic link"
	case 0:
		return "plain file"
	}
	return "special file (" + info.Mode().Type().String() + ")"
}

// charDevice adds one node with the host's numbers: a driver that Fettle does not know has no other place that tells them.
func (h HostDevice) charDevice(d *draft, name string) {
	major, minor, err := d.tree.Rdev(name)
	if err == nil {
		// Discovery knows the nodes that program by their numbers.
		err = container.CheckNumbers(sysfs.HostPath(name), major, minor)
	}
	if err != nil {
		d.withhold(ReasonHostPathUnusable, err)
		return
	}
	d.device.Edits.Nodes = []container.Node{{Path: sysfs.HostPath(name), Major: major, Minor: minor, Permissions: workload}}
	d.device.Place.Device, err = d.tree.ReadLink(path.Join(sysfs.DevChar, fmt.Sprintf("%d:%d", major, minor)))
	d.noteUnreadable(err)
}

// deviceName is the configured name and the base name of the path, as a DNS label. When something of the base name had to be
// changed, a hash of the path keeps names apart that would otherwise be equal.
func (h HostDevice) deviceName(name string) string {
	const maxBase, hashDigits = validation.DNS1123LabelMaxLength - maxHostName - 1, 8
	base := path.Base(name)
	clean := strings.Trim(strings.Map(labelRune, strings.ToLower(base)), "-")
	if clean == base && len(clean) <= maxBase {
		return h.Name + "-" + clean
	}
	sum := sha256.Sum256([]byte(sysfs.HostPath(name)))
	keep := clean[:min(len(clean), maxBase-hashDigits-1)]
	return strings.Trim(h.Name+"-"+keep, "-") + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}

// labelRune keeps what a DNS label may contain.
func labelRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}

// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
)

// OverlapError refuses a device because another claim holds the same thing by another name: the whole of which the device is a part,
// another form of it, or a directory or node that had another name in the configuration.
type OverlapError struct {
	// Device is the allocated device, Held the one that the other claim holds.
	Device, Held string
	// Unknown says that nobody knows what Held is: the claim's record is damaged, and the machine or its configuration has no Held any more.
	Unknown bool
	// Owner is the record of that claim, of which only the UID is known where it is damaged. Namespace is that of the claim that asked.
	Owner     *record.Record
	Namespace string
	// Deleted says that the holder was deleted while its pod runs, so that the scheduler took the device for free.
	Deleted bool
}

// Error says what is in the way and what ends it. It names the other claim only to that claim's own namespace.
func (e *OverlapError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("device %s may be, in whole or in part, what %s with a damaged record holds as %s, which is not on this node or not "+
			"in its configuration any more: retried until it is back", e.Device, e.Owner.NamedTo(e.Namespace), e.Held)
	}
	return fmt.Sprintf("device %s is, in whole or in part, the device %s, which is held by %s: retried until then; delete the pod to let "+
		"the scheduler choose another device", e.Device, e.Held, e.Owner.HolderTo(e.Namespace, e.Deleted))
}

// Overlaps refuses a record if another claim holds something that overlaps one of its devices. The scheduler should have prevented
// that by the counters of the card; counters change, and so does the admin's configuration. It comes before the record: an Undo of what was
// only intended would empty the other claim's directory. No other caller decides on such a record until write, which writes the record,
// has returned. A step takes too long for that.
func (c Check) Overlaps(ctx context.Context, r *record.Record, write func() error) error {
	check := overlapCheck{Check: c, record: r, names: map[string][]string{}}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, _ := c.Machine.Find(d.Kind(), d.Name)
		if d.AdminAccess {
			continue
		}
		if d.Kind() != device.KindHost {
			if err := check.unlisted(exposed{d, dev}); err != nil {
				return err
			}
		}
		if d.Kind() == device.KindHost || dev.Card != "" {
			check.exposed = append(check.exposed, exposed{d, dev})
		}
	}
	if len(check.exposed) == 0 {
		return write()
	}
	hold, err := c.Store.LockOverlaps(ctx)
	if err != nil {
		return err
	}
	defer hold.Release()
	if err := check.run(); err != nil {
		return err
	}
	return write()
}

// overlapCheck looks for claims that hold what a record asks for by another name.
type overlapCheck struct {
	Check
	record *record.Record
	// exposed are the devices of the record that may have another name.
	exposed []exposed
	// names are the devices that claims hold, by pool, see heldIn.
	names map[string][]string
}

// exposed is a device of a record, and what the machine has by its name.
type exposed struct {
	asked *record.Device
	found device.Device
}

func (c *overlapCheck) run() error {
	for _, d := range c.exposed {
		if err := c.card(d); err != nil {
			return err
		}
		if d.asked.Kind() != device.KindHost {
			continue
		}
		if err := c.things(d.asked); err != nil {
			return err
		}
	}
	return nil
}

// card looks at the other devices of the card: the function that makes the counters says which exclude each other.
func (c *overlapCheck) card(d exposed) error {
	card, known := c.Machine.Card(d.found.Card)
	if !known {
		return nil
	}
	for _, other := range c.Machine.All() {
		if other.Card != d.found.Card || other.Name == d.found.Name || !partition.Excludes(card, d.found, other) {
			continue
		}
		if err := c.holders(d.asked, c.pool(other), other.Name, nil); err != nil {
			return err
		}
	}
	return nil
}

// heldIn lists what claims hold in a pool. It reads that once for all devices of the record: the pool of host devices only under the lock.
func (c *overlapCheck) heldIn(pool string) ([]string, error) {
	if names, known := c.names[pool]; known {
		return names, nil
	}
	names, err := c.Store.HeldIn(pool)
	if err == nil {
		c.names[pool] = names
	}
	return names, err
}

// unlisted looks at what claims hold of the same physical device and the machine does not list any more: parts of a division that was
// changed, or of which the driver does not tell.
func (c *overlapCheck) unlisted(d exposed) error {
	names, err := c.heldIn(d.asked.Pool)
	if err != nil {
		return err
	}
	physical := cmp.Or(d.found.Parent, d.found.Card, d.found.Name)
	card, divided := c.Machine.Card(d.found.Card)
	for _, name := range names {
		if _, listed := c.Machine.Find(d.asked.Kind(), name); listed || name != physical && !strings.HasPrefix(name, physical+"-") {
			continue
		}
		err := c.holders(d.asked, d.asked.Pool, name, func(other *record.Device) bool {
			return !divided || len(other.Consumes) == 0 || partition.Excludes(card, d.found, consuming(other))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// consuming is the device of a record, as far as the counters of its card are concerned. What cannot be read takes more than there is.
func consuming(d *record.Device) device.Device {
	out := device.Device{Name: d.Name, Consumes: map[string]resourceapi.Counter{}}
	for name, text := range d.Consumes {
		value, err := resource.ParseQuantity(text)
		if err != nil {
			value = *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
		}
		out.Consumes[name] = resourceapi.Counter{Value: value}
	}
	return out
}

// things looks at everything that claims hold in the pool by other names. What a record says counts, since the configuration may have
// changed.
func (c *overlapCheck) things(d *record.Device) error {
	names, err := c.heldIn(d.Pool)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == d.Name {
			continue
		}
		if err := c.holders(d, d.Pool, name, func(other *record.Device) bool { return SameThing(d, other) }); err != nil {
			return err
		}
	}
	return nil
}

// holders refuses if a claim other than the record's holds a device and overlaps says so of its entry, or is nil.
func (c *overlapCheck) holders(d *record.Device, pool, name string, overlaps func(*record.Device) bool) error {
	uids, err := c.Store.Holders(pool, name)
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if uid == c.record.UID {
			continue
		}
		owner, held := c.entry(uid, pool, name)
		if overlaps != nil && held != nil && !overlaps(held) {
			continue
		}
		return &OverlapError{Device: d.Name, Held: name, Unknown: held == nil, Owner: owner, Namespace: c.record.Namespace}
	}
	return nil
}

// entry returns the record of a claim that holds a device, and its entry for that device. If the record is damaged, or does not say what
// the device was, the entry is what the device is now, or nil if the machine does not have it any more: then the claim may hold anything.
func (c *overlapCheck) entry(uid, pool, name string) (*record.Record, *record.Device) {
	owner, err := c.Store.Load(uid)
	if err != nil {
		owner = &record.Record{UID: uid}
	}
	if entry := owner.Held(pool, name); entry != nil && !madeAgainBare(owner, entry) {
		held := *entry
		if owner.BootID != c.BootID {
			held.Place = container.Place{} // file systems have other numbers now
		}
		return owner, &held
	}
	held := record.Device{Pool: pool, Name: name}
	now, known := c.Machine.Find(held.Kind(), name)
	if !known {
		return owner, nil
	}
	held.Edits, held.Place = now.Edits, now.Place
	return owner, &held
}

// madeAgainBare reports whether an entry is of a record that an older version made again when the claim's was damaged: it says nothing but
// the device's name.
func madeAgainBare(owner *record.Record, entry *record.Device) bool {
	return owner.Phase == record.Releasing && entry.Request == "" && entry.Edits.Empty()
}

// MovedError refuses a device of the admin's configuration that is another directory or node than the one that the claim holds by this
// name. What the claim did is undone where it was done, so the pod cannot go on with another one.
type MovedError struct {
	Device   string
	Was, Now []string
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("device %s was %s when the claim got it, and is %s on the node now: "+
		"put it back, or its configuration, or delete the pod", e.Device, strings.Join(e.Was, ", "), strings.Join(e.Now, ", "))
}

// Moved refuses a device that is another one than the claim holds by its name since this boot. Before is nil if it holds none.
func Moved(before, d *record.Device) error {
	if before == nil || d.Kind() != device.KindHost || d.AdminAccess {
		return nil
	}
	was, now := sources(before.Edits), sources(d.Edits)
	switch {
	case before.Place.Moved(d.Place):
		was, now = append(was, before.Place.String()), append(now, d.Place.String())
	case slices.Equal(was, now):
		return nil
	}
	return &MovedError{Device: d.Name, Was: was, Now: now}
}

// sources are what edits give a container of the host: directories and nodes.
func sources(edits container.Edits) []string {
	var out []string
	for _, m := range edits.Mounts {
		out = append(out, m.HostPath)
	}
	for _, n := range edits.Nodes {
		out = append(out, fmt.Sprintf("%s (%d:%d)", n.Path, n.Major, n.Minor))
	}
	slices.Sort(out)
	return out
}

// SameThing says whether two devices of the admin's configuration give a container the same directory, or one inside the other's, or the
// same node.
func SameThing(a, b *record.Device) bool {
	return device.SharesDirectory(a.Edits, b.Edits, a.Place, b.Place) || slices.ContainsFunc(a.Edits.Nodes, func(one container.Node) bool {
		return slices.ContainsFunc(b.Edits.Nodes, func(other container.Node) bool { return one.Major == other.Major && one.Minor == other.Minor })
	})
}

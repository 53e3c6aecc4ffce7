// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TenantError refuses a region of a chip because of a claim on another region of that chip.
type TenantError struct {
	// Device is the allocated region, Sibling a region that another claim holds, Claim that claim's namespace/name, Namespace that of the
	// claim that asked.
	Device, Sibling, Claim, Namespace string
	// Rule is the stricter co-tenancy of the two claims.
	Rule v1alpha1.CoTenancy
}

// Error says what is in the way and the remedy. It names the other claim only to that claim's own namespace.
func (e *TenantError) Error() string {
	other := "another claim"
	if strings.HasPrefix(e.Claim, e.Namespace+"/") {
		other = "claim " + e.Claim
	}
	return fmt.Sprintf("device %s: %s holds %s of the same chip, and policy.coTenancy %s keeps them apart: "+
		"retried until that claim is gone; delete the pod to let the scheduler choose another chip", e.Device, other, e.Sibling, e.Rule)
}

// cardLocks returns the lock names of the chips of an allocation's regions, so that one claim at a time checks co-tenancy on a chip. The
// regions of a chip are programmed one at a time anyway.
func (e *Engine) cardLocks(a claim.Allocation) []string {
	machine := e.Machine()
	if machine == nil {
		return nil
	}
	var names []string
	for i := range a.Results {
		r := &a.Results[i]
		dev, ok := machine.Find(r.Kind, r.Device)
		if name := "card/" + cardOf(dev); ok && cardOf(dev) != "" && !r.AdminAccess && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func cardOf(d device.Device) string {
	if d.Region == nil {
		return ""
	}
	return d.Region.Card
}

// checkCoTenancy refuses a region while an incompatible claim holds another region of its chip. The caller has locked the chip. A claim
// counts as the strictest if its record is unreadable or has no co-tenancy, as from another version of the plugin.
func (e *Engine) checkCoTenancy(c *record.Record, result *claim.Result, dev device.Device, machine Machine) error {
	if cardOf(dev) == "" || result.AdminAccess || result.Config.FPGA == nil {
		return nil
	}
	for _, sibling := range machine.All() {
		if sibling.Name == dev.Name || cardOf(sibling) != cardOf(dev) {
			continue
		}
		holders, err := e.Store.Holders(e.poolOf(sibling), sibling.Name)
		if err != nil {
			return err
		}
		for _, uid := range holders {
			if uid == c.UID {
				continue
			}
			if rule, holder, conflict := e.coTenancyConflict(uid, sibling, c.NamespaceUID, result.Config.FPGA.CoTenancy); conflict {
				return &TenantError{Device: dev.Name, Sibling: sibling.Name, Claim: holder, Namespace: c.Namespace, Rule: rule}
			}
		}
	}
	return nil
}

// coTenancyConflict reports whether the holder of a sibling conflicts with a claim of a namespace, which its UID names. It also returns the
// stricter rule and the name of the holder. A holder of which no namespace is recorded, as by an older version, is of another one.
func (e *Engine) coTenancyConflict(
	uid string, sibling device.Device, tenant string, own v1alpha1.CoTenancy,
) (rule v1alpha1.CoTenancy, holder string, conflict bool) {
	other, holder, theirTenant := v1alpha1.CoTenancyExclusive, "with UID "+uid, ""
	if r, err := e.Store.Load(uid); err == nil {
		holder, theirTenant = r.Namespace+"/"+r.Name, r.NamespaceUID
		i := slices.IndexFunc(r.Devices, func(d record.Device) bool { return d.Name == sibling.Name && d.Pool == e.poolOf(sibling) })
		if i >= 0 && r.Devices[i].CoTenancy != "" {
			other = v1alpha1.CoTenancy(r.Devices[i].CoTenancy)
		}
	}
	rule = other
	if own.Rank() < other.Rank() {
		rule = own
	}
	switch rule {
	case v1alpha1.CoTenancyShared:
		return rule, holder, false
	case v1alpha1.CoTenancySameNamespace:
		return rule, holder, theirTenant == "" || theirTenant != tenant
	default:
		return v1alpha1.CoTenancyExclusive, holder, true
	}
}

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

// checkOverlaps refuses a record if another claim holds something that overlaps one of its devices. The scheduler should have prevented
// that by the counters of the card; counters change, and so does the admin's configuration. It comes before the record: an Undo of what was
// only intended would empty the other claim's directory. No other caller decides on such a record until write, which writes the record,
// has returned. A step takes too long for that.
func (e *Engine) checkOverlaps(ctx context.Context, r *record.Record, write func() error) error {
	machine := e.Machine()
	if machine == nil {
		return errNotScanned
	}
	check := overlapCheck{Engine: e, machine: machine, record: r, names: map[string][]string{}}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, _ := machine.Find(d.Kind(), d.Name)
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
	hold, err := e.Store.LockOverlaps(ctx)
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
	*Engine
	machine Machine
	record  *record.Record
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
	card, known := c.machine.Card(d.found.Card)
	if !known {
		return nil
	}
	for _, other := range c.machine.All() {
		if other.Card != d.found.Card || other.Name == d.found.Name || !partition.Excludes(card, d.found, other) {
			continue
		}
		if err := c.holders(d.asked, c.poolOf(other), other.Name, nil); err != nil {
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
	card, divided := c.machine.Card(d.found.Card)
	for _, name := range names {
		if _, listed := c.machine.Find(d.asked.Kind(), name); listed || name != physical && !strings.HasPrefix(name, physical+"-") {
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
		if err := c.holders(d, d.Pool, name, func(other *record.Device) bool { return sameThing(d, other) }); err != nil {
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

// entry returns the record of a claim that holds a device, and its entry for that device. If the record is damaged, the entry is what the
// device is now, or nil if the machine does not have it any more: then the claim may hold anything.
func (c *overlapCheck) entry(uid, pool, name string) (*record.Record, *record.Device) {
	owner, err := c.Store.Load(uid)
	if err != nil {
		owner = &record.Record{UID: uid}
	}
	i := slices.IndexFunc(owner.Devices, func(other record.Device) bool { return other.Pool == pool && other.Name == name })
	if i >= 0 {
		held := owner.Devices[i]
		if owner.BootID != c.BootID {
			held.Place = container.Place{} // file systems have other numbers now
		}
		return owner, &held
	}
	held := record.Device{Pool: pool, Name: name}
	now, known := c.machine.Find(held.Kind(), name)
	if !known {
		return owner, nil
	}
	held.Edits, held.Place = now.Edits, now.Place
	return owner, &held
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

// checkMoved compares a device with what the claim holds by its name since this boot.
func (e *Engine) checkMoved(old *record.Record, i int, d *record.Device) error {
	if old == nil || old.BootID != e.BootID || d.Kind() != device.KindHost || d.AdminAccess {
		return nil
	}
	before := &old.Devices[i]
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

// sameThing says whether two devices of the admin's configuration give a container the same directory, or one inside the other's, or the
// same node.
func sameThing(a, b *record.Device) bool {
	return device.SharesDirectory(a.Edits, b.Edits, a.Place, b.Place) || slices.ContainsFunc(a.Edits.Nodes, func(one container.Node) bool {
		return slices.ContainsFunc(b.Edits.Nodes, func(other container.Node) bool { return one.Major == other.Major && one.Minor == other.Minor })
	})
}

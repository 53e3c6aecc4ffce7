// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// decision is what a Review decided. It never changes.
type decision struct {
	// cards has the GPUs that are divided, or are to be, by name.
	cards map[string]*card
	// parts has what can be allocated of them beside the whole, by name.
	parts map[string]partition.Part
	// settling has the devices that are shared, or not, because claims have them so.
	settling map[string]bool
}

// add adds a card that is divided.
func (d *decision) add(c *card) {
	d.cards[c.Device.Name] = c
	maps.Copy(d.parts, c.division.Parts)
	for _, name := range c.division.Settling {
		d.settling[name] = true
	}
}

// Settling says whether a GPU, or an instance of one, is to be shared, or not, once the claims end that have it.
func (f *Feature) Settling(name string) bool {
	d := f.decided.Load()
	return d != nil && d.settling[name]
}

// Allowed returns the strategies that a policy lets claims choose on a device, which is a GPU or an instance of one, and the interval of
// its shares.
func (f *Feature) Allowed(name string) (strategies []string, interval string) {
	d := f.decided.Load()
	if d == nil {
		return nil, ""
	}
	on := d.cards[name]
	if part, ok := d.parts[name]; ok && part.Instance != nil {
		on = d.cards[part.Parent]
	}
	if on == nil {
		return nil, ""
	}
	return on.settings.Strategies, on.settings.Interval
}

// card is a GPU and what it is divided into.
type card struct {
	discover.Physical
	settings partition.Settings
	division partition.Division
	// held are the names of the devices of the card that claims hold.
	held map[string]bool
	// shares are those of held of which claims have shares.
	shares map[string]bool
	// functions is how many virtual functions the GPU has.
	functions int
	// left is what policies had made of a GPU for which none holds any more.
	left left
	// absent says that the machine does not show the GPU now.
	absent bool
	// known is the GPU as policies judge it: with the last answers where the machine or the library does not answer now.
	known device.Device
	// policy is the PartitionPolicy that holds for the GPU.
	policy string
	// frozen says that the policy cannot be carried out, so that the node changes nothing of the GPU.
	frozen bool
	// foreign is the driver that the node's configuration leaves the GPU to. Empty: it is Fettle's.
	foreign string
}

// busy says whether a claim holds anything of the card.
func (c *card) busy() bool { return len(c.held) > 0 }

// ofOneClaim says whether one claim has the GPU whole and for itself.
func (c *card) ofOneClaim() bool {
	return len(c.held) == 1 && c.held[c.Device.Name] && len(c.shares) == 0 && !c.absent && c.Divided == ""
}

// cards returns the machine's GPUs by name. What a claim holds of a GPU stays, with the answers of then, while the machine does not show
// the GPU.
func (f *Feature) cards(s *inventory.Snapshot) []*card {
	var cards []*card
	for i := range s.Physical {
		cards = append(cards, &card{Physical: f.lastAnswer(s.Physical[i])})
	}
	for _, p := range HoldingsOf(f).Absent(s) {
		cards = append(cards, &card{Physical: p, absent: true})
	}
	for _, c := range cards {
		c.known = f.knownOf(&c.Physical)
		c.held = f.heldOf(&c.Physical)
		c.shares = f.sharesOf(c)
		c.foreign = s.Foreign[c.Device.Name].Owner
	}
	slices.SortFunc(cards, func(a, b *card) int { return cmp.Compare(a.Device.Name, b.Device.Name) })
	return cards
}

// lastAnswer returns a GPU with the answers of before where the machine or the library does not tell now how it is divided: what a claim
// holds of it stays, and while the library was disturbed all of it does. Steps that switch the mode look for themselves. MIGUnknown still
// says what is so now. What was said of another card in the slot is said of no GPU.
func (f *Feature) lastAnswer(p discover.Physical) discover.Physical {
	was := f.memory.Cards[p.Device.Name].Physical
	modes := (p.MIG != nil || was.MIG == nil) && (p.AMD != nil || was.AMD == nil)
	functions := p.VirtualFunctions > 0 || was.VirtualFunctions == 0
	if modes && functions || !sameCard(&was, &p) || !p.MIGUnknown && len(f.heldOf(&was)) == 0 {
		return p
	}
	if modes {
		p.VirtualFunctions = was.VirtualFunctions
		return p
	}
	was.Device.Edits, was.MIGUnknown = p.Device.Edits, p.MIGUnknown
	return was
}

// knownOf returns a GPU with the attributes and capacities of before where they are missing now: a selector that looks for one would not
// match, and the GPU would count as one without a policy.
func (f *Feature) knownOf(p *discover.Physical) device.Device {
	was, now := f.memory.Cards[p.Device.Name].Physical, p.Device
	if !sameCard(&was, p) || was.Subsystem != p.Subsystem {
		return now // there is another card in the slot, or nothing is known
	}
	now.Attributes, now.Capacity = filled(now.Attributes, was.Device.Attributes), filled(now.Capacity, was.Device.Capacity)
	return now
}

// sameCard says whether a GPU may be the one that was in its slot, as far as both are known.
func sameCard(was, now *discover.Physical) bool {
	former := device.StringOf(was.Device.Attributes[device.AttributeUUID])
	uuid := device.StringOf(now.Device.Attributes[device.AttributeUUID])
	return was.Model == now.Model && (uuid == "" || former == "" || uuid == former)
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

// namesOf lists what claims could have of a GPU, published or not. Instances of Fettle are among them whatever the library says of the GPU.
func (f *Feature) namesOf(p *discover.Physical) []string {
	names := partition.Names(partition.Physical{
		Device: p.Device, MIG: p.MIG, AMD: p.AMD, Functions: &partition.Functions{Total: p.VirtualFunctions},
	})
	made, _ := f.mig.Held() // Review reports what it cannot read
	for _, h := range made {
		if h.PCIAddress == p.Address && !slices.Contains(names, h.Device) {
			names = append(names, h.Device)
		}
	}
	return names
}

// heldOf returns the devices of a GPU that claims hold. If that cannot be read, all of them count as held.
func (f *Feature) heldOf(p *discover.Physical) map[string]bool {
	names := f.namesOf(p)
	held, err := f.Records.HeldOf(device.PoolName(f.Node, p.Device.Kind), names)
	if err != nil {
		f.Errors.WithLabelValues("partitions").Inc()
		held = map[string]bool{}
		for _, name := range names {
			held[name] = true
		}
	}
	// A binding of which the claim's record is lost is the claim's all the same.
	if point, ok, err := f.points.Find(vfio.StepKind, p.Address.String()); err != nil || ok && point.Claim != "" {
		held[partition.VFIOName(p.Device.Name)] = true
	}
	return held
}

// sharesOf returns the devices of a GPU of which claims have shares. If that cannot be read, these are the devices that are shared now.
func (f *Feature) sharesOf(c *card) map[string]bool {
	shares, err := f.Records.SharedOf(device.PoolName(f.Node, c.Device.Kind), slices.Collect(maps.Keys(c.held)))
	if err == nil {
		return shares
	}
	f.Errors.WithLabelValues("partitions").Inc()
	shares = map[string]bool{}
	if was := f.decided.Load(); was != nil && was.cards[c.Device.Name] != nil {
		for _, d := range was.cards[c.Device.Name].division.Devices {
			if d.Shared && c.held[d.Name] {
				shares[d.Name] = true
			}
		}
	}
	return shares
}

// switchesMIG says whether claims switch the GPU's MIG mode: off for the whole GPU, on for an instance.
func (c *card) switchesMIG() bool {
	want := c.settings.MIG
	return c.MIG != nil && want != nil && want.Mode == partition.MIGDynamic && !partition.MIGNeedsReset(c.Device)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/foreign"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// errNoClaims says that no file has a claim: whether there are any is not known.
var errNoClaims = errors.New("no file has a ResourceClaim, so that it is not known who has the devices: see --claims")

// usageOfFiles reads the files. Any of them may have slices and claims. The second error says why there are no claims.
func (f *devicesFlags) usageOfFiles(context.Context) (out usage.Objects, unread, err error) {
	r := newObjectReader(metav1.NamespaceDefault)
	for _, name := range slices.Concat(f.slices, f.claims) {
		err = errors.Join(err, r.files(name))
	}
	if err == nil && len(r.Slices) == 0 {
		err = fmt.Errorf("%s: want ResourceSlices", f.slices.String())
	}
	if len(r.Claims) == 0 && len(f.claims) == 0 {
		unread = errNoClaims
	}
	return usage.Objects{Driver: v1alpha1.DriverName, Slices: r.Slices, Claims: r.Claims}, unread, err
}

// usageOfCluster reads the cluster. The second error says why it gives no claims.
func (f *devicesFlags) usageOfCluster(ctx context.Context) (out usage.Objects, unread, err error) {
	client, _, err := f.client()
	if err != nil {
		return out, nil, err
	}
	out.Driver = v1alpha1.DriverName
	out.Slices, err = listOf(ctx, client, resourceSlices(), choice[resourceapi.ResourceSlice]{fields: ownSlices(f.node)})
	if err != nil {
		return out, nil, fmt.Errorf("list the ResourceSlices: %w", err)
	}
	out.Claims, err = listOf(ctx, client, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), choice[resourceapi.ResourceClaim]{
		keep: f.hasOwnDevice(out.Slices),
	})
	switch {
	case apierrors.IsForbidden(err):
		return out, err, nil
	case err != nil:
		return out, nil, fmt.Errorf("list the ResourceClaims: %w", err)
	}
	return out, nil, nil
}

// foreignDevices returns what the nodes of a cluster say of devices that they leave to other drivers. Who may not read AcceleratorNodes, or
// has none, learns nothing of them.
func (f *devicesFlags) foreignDevices(ctx context.Context) (problems []usage.Problem) {
	client, _, err := f.client()
	if err != nil {
		return nil
	}
	at := location{resource: v1alpha1.GroupVersion.WithResource("acceleratornodes")}
	if f.node != "" {
		at.fields = "metadata.name=" + f.node
	}
	err = client.untyped(ctx, at, func() { problems = nil }, func(o *unstructured.Unstructured) error {
		n := &v1alpha1.AcceleratorNode{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, n); err != nil {
			return err
		}
		for _, p := range n.Status.Problems {
			if p.Reason == foreign.ReasonForeign || p.Reason == foreign.ReasonUnsure {
				problems = append(problems, usage.Problem{Subject: n.Name + "/" + p.Subject, Reason: p.Reason, Message: p.Message})
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return problems
}

// hasOwnDevice returns what drops claims that have none of our devices, or none of the node that is asked about.
func (f *devicesFlags) hasOwnDevice(published []*resourceapi.ResourceSlice) func(*resourceapi.ResourceClaim) bool {
	pools := map[string]bool{}
	for _, s := range published {
		pools[s.Spec.Pool.Name] = true
	}
	return func(c *resourceapi.ResourceClaim) bool {
		return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool {
				return r.Driver == v1alpha1.DriverName && (f.node == "" || pools[r.Pool])
			})
	}
}

// showUsage writes a table for each node, with the parts of a card below it.
func showUsage(report usage.Report, stdout, stderr io.Writer) error {
	for _, p := range report.Problems {
		if _, err := fmt.Fprintf(stderr, "%s: %s: %s\n", p.Subject, p.Reason, p.Message); err != nil {
			return err
		}
	}
	if len(report.Devices) == 0 {
		_, err := fmt.Fprintln(stderr, "no devices")
		return err
	}
	cards := map[[2]string]*usage.Card{}
	for i := range report.Cards {
		cards[[2]string{report.Cards[i].Pool, report.Cards[i].Name}] = &report.Cards[i]
	}
	several := report.Devices[0].Node != report.Devices[len(report.Devices)-1].Node
	for rest := report.Devices; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(d usage.Device) bool { return d.Node != rest[0].Node })
		if n < 0 {
			n = len(rest)
		}
		if several {
			fmt.Fprintf(stdout, "node %s\n", orDash(rest[0].Node))
		}
		if err := showNode(rest[:n], cards, stdout); err != nil {
			return err
		}
		if rest = rest[n:]; len(rest) > 0 {
			fmt.Fprintln(stdout)
		}
	}
	return nil
}

// showNode writes the table of one node.
func showNode(devices []usage.Device, cards map[[2]string]*usage.Card, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPRODUCT\tSIZE\tNUMA\tPCIE ROOT\tDRIVER\tCONSUMES\tLEFT\tSTATE") // a tabwriter's errors come at Flush
	for i := range devices {
		d := &devices[i]
		card := cards[[2]string{d.Pool, d.Card}]
		first := i == 0 || devices[i-1].Pool != d.Pool || devices[i-1].Group != d.Group
		if first && d.Part && d.Group != d.Name {
			fmt.Fprintln(table, strings.Join(headRow(d, card), "\t"))
		}
		fmt.Fprintln(table, strings.Join(usageRow(d, card), "\t"))
	}
	return table.Flush()
}

// headRow is the line of a physical device that is not published whole, above its parts.
func headRow(part *usage.Device, card *usage.Card) []string {
	cells := row(device.Device{Name: part.Group, Attributes: part.Attributes})
	cells[2] = "-" // the size of the part
	return append(cells, "-", leftText(card), "not published whole")
}

// usageRow is the line of a published device. What parts have as their card has it is left out.
func usageRow(d *usage.Device, card *usage.Card) []string {
	cells := row(device.Device{Name: d.Name, Attributes: d.Attributes, Capacity: d.Capacity})
	left := leftText(card)
	if d.Part && d.Group != d.Name {
		profile := device.StringOf(d.Attributes[device.AttributeProfile])
		if profile == "" {
			profile = device.StringOf(d.Attributes[device.AttributeType])
		}
		cells, left = []string{"  " + d.Name, profile, cells[2], "", "", ""}, ""
	}
	consumes := "-"
	if card != nil {
		consumes = partition.Short(d.Consumes, card.Counters)
	}
	if d.Shares != nil {
		left = sharesText(d.Shares)
	}
	return append(cells, consumes, left, stateText(d, card))
}

func leftText(card *usage.Card) string {
	if card == nil || card.Left == nil {
		return "-"
	}
	return partition.Short(card.Left, card.Counters)
}

// holderText is a claim and what it was granted of a device's memory: "ml/notebook (10Gi)".
func holderText(c *usage.Claim) string {
	text := c.Namespace + "/" + c.Name
	if granted := c.Granted[device.CapacityMemory]; granted.Sign() > 0 {
		text += " (" + granted.String() + ")"
	}
	return text
}

// sharesText is what is left of a device's shares and their memory: "2 of 4 shares, 61Gi".
func sharesText(s *usage.Shares) string {
	if s.LeftOf == nil {
		return "-"
	}
	text := fmt.Sprintf("%d of %d shares", s.Left, s.Total)
	if memory, ok := s.LeftOf[device.CapacityMemory]; ok {
		text += ", " + memory.String()
	}
	return text
}

// stateText says who has a device, or what of it others have.
func stateText(d *usage.Device, card *usage.Card) string {
	var text string
	var holders, admins []string
	for _, c := range d.Claims {
		if c.AdminAccess {
			admins = append(admins, c.Namespace+"/"+c.Name)
		} else {
			holders = append(holders, holderText(&c))
		}
	}
	switch {
	case d.State == usage.StateUnknown:
		text = "-"
	case d.Shares != nil && len(holders) > 0:
		text = "shared by " + strings.Join(holders, ", ")
		if d.State == usage.StateHeld {
			text = "all " + text
		}
	case d.State == usage.StateHeld:
		text = "held by " + strings.Join(holders, ", ")
	case d.State == usage.StateTaken && card != nil:
		text = "taken: " + partition.Short(d.Lacks, card.Counters)
	default:
		text = "free"
	}
	if len(admins) > 0 {
		text += ", admin access: " + strings.Join(admins, ", ")
	}
	for _, t := range d.Taints {
		text += fmt.Sprintf(", taint %s=%s:%s", t.Key, t.Value, t.Effect)
	}
	return text
}

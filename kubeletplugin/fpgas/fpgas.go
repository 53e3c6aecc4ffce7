// SPDX-License-Identifier: Apache-2.0

// Package fpgas is the feature that programs the node's FPGA regions for claims.
//
//	Fetch      brings the files of a claim to the node, before anything is locked
//	Plan       resolves the bitstream of each region, checks that the claim may load it, and makes the steps that program it
//	Review     adds the content of regions to a snapshot, and the tenants that may join on a chip
//	Orphans    finds regions that a claim left in an unknown state
//	Source     lists the bitstreams to fetch before a claim asks for them
package fpgas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Config has the settings and dependencies of the feature.
type Config struct {
	// Node is the name of the Node object, HostRoot the directory of the host's tree, StateDir that of the plugin's state.
	Node, HostRoot, StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// Namespace is the driver's. It has the pull secrets of cluster-wide bitstreams.
	Namespace string
	File      *nodeconfig.FPGA
	Dynamic   dynamic.Interface
	// Names has the node's secret, for pseudonyms of tenants.
	Names *cdi.Names
	// Policies reads the TrustPolicies. Its owner has it watch them.
	Policies  *trustpolicies.Reader
	Clock     clock.PassiveClock
	Records   *record.Store
	Artifacts *artifacts.Node
	Holder    *inventory.Holder
	// Event makes an Event on an object, related to another. It must not block.
	Event func(regarding, related *corev1.ObjectReference, eventType, reason, note string)
	// Rescan is sent after a region was programmed, since its attributes changed.
	Rescan   notify.Signal
	Registry prometheus.Registerer
}

// Feature programs the node's FPGA regions for claims.
type Feature struct {
	Config
	// except lists the kinds of region that are not programmed, even if programming is enabled.
	except     []string
	bitstreams *bitstreams
	judge      *judge
	programmer *region.Programmer
	contents   *region.Contents
	known      *cards
	failures   *region.Failures
	metrics    *metrics
}

var (
	_ prepare.Feature    = (*Feature)(nil)
	_ prepare.Owner      = (*Feature)(nil)
	_ prepare.Fetcher    = (*Feature)(nil)
	_ prepare.Adopter    = (*Feature)(nil)
	_ prepare.Restorer   = (*Feature)(nil)
	_ inventory.Reviewer = (*Feature)(nil)
)

// regionsDir and verdictsDir are the directories, below the state directory, of the regions' content files and of what TrustPolicies said
// of bitstreams.
const (
	regionsDir  = "regions"
	verdictsDir = "bitstream-verdicts"
)

// New makes the feature. It reads and changes nothing yet.
func New(c Config) *Feature {
	regions := filepath.Join(c.StateDir, regionsDir)
	f := &Feature{
		Config: c, except: c.File.Except(), contents: region.OpenContents(disk.OS{}, regions), metrics: newMetrics(c.Registry),
		known: openCards(filepath.Join(regions, cardsFile)),
		bitstreams: &bitstreams{
			dynamic: c.Dynamic, client: c.Artifacts.Client, namespace: c.Namespace, hostRoot: c.HostRoot, clock: c.Clock,
			read: map[string]readArtifact{},
		},
	}
	f.judge = newJudge(&f.Config, filepath.Join(c.StateDir, verdictsDir))
	f.failures = region.OpenFailures(f.contents, c.File.MaxFailedProgrammings, nil)
	f.programmer = region.New(region.Config{
		Find: f.find, Backends: f.backends(regions), Contents: f.contents, Open: c.Artifacts.Open,
		Siblings: f.known.siblings, Failures: f.failures, HostRoot: c.HostRoot, BootID: c.BootID, Report: f.reportAttempt,
	})
	return f
}

// Name returns the feature's name in records. The feature records no decision: a later boot programs what the objects name then.
func (f *Feature) Name() string { return "fpga" }

// Kinds returns the steps that program regions, and the step that pins their files.
func (f *Feature) Kinds() step.Kinds {
	kinds := f.programmer.Kinds()
	kinds[pin.StepKind] = pin.Kind(f.Artifacts.Store)
	return kinds
}

// programs reports whether claims may program a region.
func (f *Feature) programs(r *fpga.Region) bool {
	return f.File.Programming && !slices.Contains(f.except, r.Backend)
}

// Destroy removes the state of regions, but for what it says of tenants' traces in them. It is called when no claim holds any.
func (f *Feature) Destroy() error {
	f.known.empty()
	return errors.Join(f.contents.Destroy(), f.judge.verdicts.Destroy(), os.RemoveAll(f.xclbins()))
}

// find looks a region up in the newest snapshot of the machine.
func (f *Feature) find(name string) (*fpga.Region, error) {
	v, _ := f.Holder.Get()
	if v == nil {
		return nil, errNotScanned
	}
	dev, ok := v.Find(device.KindFPGA, name)
	if !ok {
		return nil, region.ErrGone
	}
	return dev.Region, nil
}

var errNotScanned = errors.New("the machine was not scanned yet")

// Plan makes the steps for the claim's regions. The first steps pin all files; the others act on one region after the other.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	var c prepare.Contribution
	if err := f.contents.Make(); err != nil {
		return c, err
	}
	f.known.keep(ctx)
	all, err := f.planAll(ctx, r.Claim, r.NamespaceUID, r.Allocation, r.Find)
	if err == nil {
		err = f.distrust(&r)
	}
	if err != nil {
		return c, err
	}
	if err := f.fetch(ctx, all); err != nil {
		return c, err
	}
	var rest []step.Step
	for _, w := range all {
		pins, steps, err := w.steps(ctx, f.programmer, &r)
		if err != nil {
			return c, err
		}
		c.Steps, rest = append(c.Steps, pins...), append(rest, steps...)
	}
	c.Steps = append(c.Steps, rest...)
	return c, nil
}

// fetch fetches the files that regions are programmed with.
func (f *Feature) fetch(ctx context.Context, all []*regionPlan) error {
	for _, w := range all {
		for _, p := range w.files() {
			ensure := f.Artifacts.Ensure
			if p.SecretsIn == "" { // the claim's own reference: no object and so no controller has read the file there
				ensure = f.Artifacts.EnsureReadable
			}
			if err := ensure(ctx, &p); err != nil {
				return fmt.Errorf("device %s: %w", w.device.Name, err)
			}
		}
	}
	return nil
}

// Restore fetches the files that a claim needs and the store lost.
func (f *Feature) Restore(ctx context.Context, r *record.Record) error {
	for i := range r.Steps {
		if r.Steps[i].Kind != pin.StepKind {
			continue
		}
		p, err := pin.Decode(r.Steps[i].Params)
		if err != nil {
			return err
		}
		if err := f.Artifacts.Ensure(ctx, &p); err != nil {
			return err
		}
	}
	return nil
}

// Fetch returns what resolves a claim's bitstreams and fetches their files, or nil for a claim without regions. Plan resolves them again
// and asks no registry for what is here by then.
func (f *Feature) Fetch(r *prepare.Request) func(context.Context) error {
	hasRegion := func(r claim.Result) bool { return r.Config.FPGA != nil && !r.AdminAccess }
	if !slices.ContainsFunc(r.Allocation.Results, hasRegion) {
		return nil
	}
	return func(ctx context.Context) error {
		all, err := f.planAll(ctx, r.Claim, r.NamespaceUID, r.Allocation, r.Find)
		if err != nil {
			return err
		}
		return f.fetch(ctx, all)
	}
}

// planAll plans a claim's regions, in the order of the allocation. It leaves out regions that this node does not program.
func (f *Feature) planAll(
	ctx context.Context, c *resourceapi.ResourceClaim, namespaceUID string, a claim.Allocation, find prepare.Find,
) ([]*regionPlan, error) {
	var all []*regionPlan
	for i := range a.Results {
		r := &a.Results[i]
		dev, ok := find(r)
		if !ok || dev.Region == nil || r.AdminAccess || r.Config.FPGA == nil {
			continue
		}
		if err := checkInterface(c, r, dev.Region.InterfaceID); err != nil {
			return nil, err
		}
		if !f.programs(dev.Region) {
			if err := f.checkUnprogrammed(c, r, dev.Region.Backend); err != nil {
				return nil, err
			}
			continue
		}
		w, err := f.planRegion(ctx, c, namespaceUID, r, &dev)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// distrust notes what a claim may leave in regions that this node does not program. They may have been programmed, and may be again.
func (f *Feature) distrust(r *prepare.Request) error {
	for i := range r.Allocation.Results {
		result := &r.Allocation.Results[i]
		dev, ok := r.Find(result)
		if !ok || dev.Region == nil || result.AdminAccess || f.programs(dev.Region) {
			continue
		}
		if err := f.contents.Distrust(append(f.known.siblings(dev.Name), dev.Name)...); err != nil {
			return err
		}
	}
	return nil
}

// checkUnprogrammed refuses a claim that needs to write to a region which this node does not program.
func (f *Feature) checkUnprogrammed(c *resourceapi.ResourceClaim, r *claim.Result, kind string) error {
	what, remedy := "FPGAs", "set fpga.programming"
	if f.File.Programming {
		what, remedy = "FPGAs of kind "+kind, "add it to fpga.backends"
	}
	config := r.Config.FPGA
	var faults field.ErrorList
	for _, f := range []struct {
		name  string
		asked bool
	}{
		{claim.FieldBitstream, config.Bitstream != nil},
		{claim.FieldDriverParams, len(config.DriverParams) > 0},
		{claim.FieldFPGARelease, config.OnRelease == v1alpha1.FPGAReleaseBlank},
	} {
		if f.asked {
			faults = append(faults, field.Forbidden(r.At(f.name), fmt.Sprintf(
				"this node programs no %s: ask an administrator to %s in the chart's values, or leave the field out", what, remedy)))
		}
	}
	for i := range config.Policies {
		if config.Policies[i].Policy.RequireBlank {
			faults = append(faults, field.Forbidden(config.Policies[i].Path("requireBlank"), fmt.Sprintf(
				"this node wipes no %s: ask an administrator to %s in the chart's values, or use another class", what, remedy)))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return refusal(c, claim.ReasonForbiddenByPolicy, faults...)
}

// checkInterface refuses a device with another interface than the claim names.
func checkInterface(c *resourceapi.ResourceClaim, r *claim.Result, id string) error {
	if want := r.Config.FPGA.InterfaceID; want != "" && want != id {
		return refusal(c, claim.ReasonConfigInvalid, field.Invalid(r.At(claim.FieldInterfaceID), want, fmt.Sprintf(
			"device %s of request %s has %s: select by device.attributes[\"fettle.dev\"].interfaceID", r.Device, r.Request, id)))
	}
	return nil
}

// Orphans returns the regions with unknown content.
func (f *Feature) Orphans(context.Context) []prepare.Orphan {
	v, _ := f.Holder.Get()
	if v == nil {
		return nil
	}
	var out []prepare.Orphan
	for i := range v.Devices {
		d := &v.Devices[i]
		if d.Region == nil || !f.programs(d.Region) {
			continue
		}
		if content, err := f.contents.Read(d.Name); err == nil && content.Unknown {
			uid := content.Claim
			if uid == "" {
				uid = "region-" + d.Name
			}
			out = append(out, prepare.Orphan{UID: uid, Device: *d})
		}
	}
	return out
}

// Leftovers returns the steps to undo for a claim whose record is lost: they reset its region, or wipe it if its content is unknown.
func (f *Feature) Leftovers(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	pins, err := f.pins(uid)
	if err != nil || dev.Region == nil || !f.programs(dev.Region) {
		return pins, err
	}
	content, err := f.contents.Read(dev.Name)
	if err != nil {
		return nil, err
	}
	var blank *bitstream
	if content.Unknown { // else none is used, and the claim's end must not depend on what others say of one
		if blank, err = f.bitstreams.blank(ctx, dev.Region.InterfaceID, f.judge.check); err != nil {
			return nil, err
		}
	}
	// The claim in the content file counts. A file that cannot be read names no claim.
	program := region.Program{Device: dev.Name, Claim: region.Claim{UID: content.Claim}, OnRelease: region.ReleaseReset}
	var steps []step.Step
	if blank != nil {
		program.Blank = &blank.image
		if blank.fetch != nil {
			s, err := blank.fetch.Step(uid)
			if err != nil {
				return nil, err
			}
			pins = slices.DeleteFunc(pins, s.Same)
			steps = append(steps, s)
		}
	}
	s, err := program.Step()
	return append(append(steps, pins...), s), err
}

// Claims returns the claims that keep files in the store.
func (f *Feature) Claims() ([]string, error) { return f.Artifacts.Owners() }

// pins returns the steps that keep files for a claim, by the store: the objects that named them may say other things by now.
func (f *Feature) pins(uid string) ([]step.Step, error) {
	digests, err := f.Artifacts.PinnedBy(uid)
	if err != nil {
		return nil, err
	}
	var steps []step.Step
	for _, digest := range digests {
		s, err := (&pin.Params{Digest: digest}).Step(uid)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

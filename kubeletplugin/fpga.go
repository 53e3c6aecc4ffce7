// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/step"
)

// The directories below the state directory: files by digest, and what regions hold.
const (
	artifactsDir = "artifacts"
	regionsDir   = "regions"
)

// fpgas plans what claims need of the node's FPGA regions.
type fpgas struct {
	// programming is false where nothing is ever to be written to a region, except the kinds of region that are not written to either.
	programming bool
	except      []string
	bitstreams  *bitstreams
	artifacts   *artifacts
	programmer  *region.Programmer
	contents    *region.Contents
	// xclbins is the directory of the copies that XRT's program reads.
	xclbins string
}

// programs says whether claims may program a region.
func (f *fpgas) programs(r *fpga.Region) bool {
	return f.programming && !slices.Contains(f.except, r.Backend)
}

func (p *Plugin) newFPGAs(bootID string) (*fpgas, error) {
	client, err := registry.NewClient(p.config.Registries)
	if err != nil {
		return nil, err
	}
	regions := filepath.Join(p.config.StateDir, regionsDir)
	contents := region.OpenContents(disk.OS{}, regions)
	limits := p.config.File.Artifacts.StoreConfig()
	limits.InUse = func(tree artifact.Digest) bool { return p.caches.InUse(tree) }
	files := &artifacts{dir: filepath.Join(p.config.StateDir, artifactsDir), limits: limits, client: client, kube: p.clients.Kube}
	return &fpgas{
		programming: p.config.File.FPGA.Programming,
		except:      p.config.File.FPGA.Except(),
		bitstreams:  &bitstreams{dynamic: p.clients.Dynamic, client: client, namespace: p.config.Namespace, hostRoot: p.config.HostRoot},
		artifacts:   files,
		contents:    contents,
		xclbins:     p.config.xclbins(),
		programmer: region.New(region.Config{
			Find: p.findRegion, Backends: p.config.backends(regions), Contents: contents, Open: files.open,
			HostRoot: p.config.HostRoot, BootID: bootID, Report: p.programmed,
		}),
	}, nil
}

// programmed tells of an attempt to program a region: to people by an Event on the claim, which is also the audit's, and to metrics.
func (p *Plugin) programmed(ctx context.Context, a region.Attempt) {
	result, kind, reason := "ok", corev1.EventTypeNormal, reasonProgrammed
	message := fmt.Sprintf("region %s of node %s (%s): programmed %s of %s, AFU id %s, in %s", a.Device, p.config.Node, a.Why,
		a.Image.Digest, a.Image.Origin, a.Image.AFUID, a.Took.Round(time.Millisecond))
	if a.Err != nil {
		result, kind, reason = backend.KindOf(a.Err).String(), corev1.EventTypeWarning, reasonProgramFailed
		message = fmt.Sprintf("region %s of node %s (%s): programming %s of %s failed after %s: %v", a.Device, p.config.Node, a.Why,
			a.Image.Digest, a.Image.Origin, a.Took.Round(time.Millisecond), a.Err)
	}
	klog.FromContext(ctx).Info("Programmed a region", "device", a.Device, "why", a.Why, "claim", klog.KRef(a.Claim.Namespace, a.Claim.Name),
		"claimUID", a.Claim.UID, "digest", a.Image.Digest, "origin", a.Image.Origin, "afu", a.Image.AFUID,
		"seconds", a.Took.Seconds(), "err", a.Err)
	signal(p.looker.again)
	p.metrics.programmings.WithLabelValues(a.Why, result).Inc()
	p.metrics.programSeconds.Observe(a.Took.Seconds())
	if p.teller == nil {
		return // before Run
	}
	about := &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: a.Claim.Namespace, Name: a.Claim.Name,
		UID: types.UID(a.Claim.UID),
	}
	if a.Claim.Name == "" {
		about = p.nodeReference()
	}
	// Events that are alike but for their text are counted and not kept. So that each region and each image leaves one of its own, the
	// event says where on the node it was.
	related := p.nodeReference()
	related.FieldPath = fmt.Sprintf("regions{%s}.%s{%s}", a.Device, a.Why, a.Image.Digest)
	p.teller.events.Eventf(about, related, kind, reason, "Program", "%s", truncate(message, maxEventMessage))
}

// destroy removes all that is kept about regions and files. No claim holds any.
func (f *fpgas) destroy() error {
	return errors.Join(f.artifacts.destroy(), f.contents.Destroy(), os.RemoveAll(f.xclbins))
}

// kinds are the steps that this adds to the engine's.
func (f *fpgas) kinds() step.Kinds {
	kinds := f.programmer.Kinds()
	kinds[fetchKind] = f.artifacts.kind()
	return kinds
}

// findRegion looks a region up in the newest view of the machine.
func (p *Plugin) findRegion(name string) (*fpga.Region, error) {
	v, _ := p.latest.get()
	if v == nil {
		return nil, errNotLooked
	}
	dev, ok := v.Find(device.KindFPGA, name)
	if !ok {
		return nil, region.ErrGone
	}
	return dev.Region, nil
}

var errNotLooked = errors.New("the machine was not looked at yet")

// effects are the steps of a claim's regions, in the order they are applied: every file first, since to fetch one may take long and
// touches no hardware; then region by region.
func (f *fpgas) effects(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find engine.Find) ([]step.Step, error) {
	if err := f.contents.Make(); err != nil {
		return nil, err
	}
	all, err := f.wantedOf(ctx, c, a, find)
	if err != nil {
		return nil, err
	}
	var fetches, rest []step.Step
	for _, w := range all {
		fetched, steps, err := w.steps(ctx, f.programmer)
		if err != nil {
			return nil, err
		}
		rest = append(rest, steps...)
		for _, s := range fetched {
			if !hasStep(fetches, s) {
				fetches = append(fetches, s)
			}
		}
	}
	return append(fetches, rest...), nil
}

// wantedOf is what a claim wants of its regions, in the order of the allocation. Regions that this node does not program are none of them.
func (f *fpgas) wantedOf(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find engine.Find) ([]*wanted, error) {
	var all []*wanted
	for i := range a.Results {
		r := &a.Results[i]
		dev, ok := find(r)
		if !ok || dev.Region == nil || r.AdminAccess || r.Config.FPGA == nil {
			continue
		}
		if err := fits(c, r, dev.Region.InterfaceID); err != nil {
			return nil, err
		}
		if !f.programs(dev.Region) {
			if err := f.untouched(c, r, dev.Region.Backend); err != nil {
				return nil, err
			}
			continue
		}
		w, err := f.want(ctx, c, r, &dev)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// untouched refuses what would need a region to be written to.
func (f *fpgas) untouched(c *resourceapi.ResourceClaim, r *claim.Result, kind string) error {
	what, remedy := "FPGAs", "set fpga.programming"
	if f.programming {
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

// fits refuses a device with another interface than the claim is for.
func fits(c *resourceapi.ResourceClaim, r *claim.Result, id string) error {
	if want := r.Config.FPGA.InterfaceID; want != "" && want != id {
		return refusal(c, claim.ReasonConfigInvalid, field.Invalid(r.At(claim.FieldInterfaceID), want, fmt.Sprintf(
			"device %s of request %s has %s: select by device.attributes[\"fettle.dev\"].interfaceID", r.Device, r.Request, id)))
	}
	return nil
}

func hasStep(steps []step.Step, s step.Step) bool {
	for _, other := range steps {
		if other.Same(s) {
			return true
		}
	}
	return false
}

// wanted is what a claim wants of one region.
type wanted struct {
	claim  region.Claim
	device *device.Device
	config *claim.FPGAEffective
	// image and blank are nil where there is none.
	image, blank *bitstream
	// needsBlank: the blank image must be on the node before the claim is given anything.
	needsBlank bool
	// requireBlank: a class refuses a region with traces of another tenant.
	requireBlank bool
}

// want resolves and authorises. It is the last word: what admission let through, or never saw, is judged here.
func (f *fpgas) want(ctx context.Context, c *resourceapi.ResourceClaim, r *claim.Result, dev *device.Device) (*wanted, error) {
	config := r.Config.FPGA
	w := &wanted{claim: region.Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)}, device: dev, config: config}
	id := dev.Region.InterfaceID
	if config.Bitstream != nil {
		if faults := earlyFaults(c.Namespace, r); len(faults) > 0 {
			return nil, refusal(c, claim.ReasonForbiddenByPolicy, faults...)
		}
		found, err := f.bitstreams.find(ctx, c.Namespace, config.Bitstream, id)
		if err != nil {
			return nil, fmt.Errorf("request %s, device %s: %w", r.Request, r.Device, err)
		}
		w.image = found
	}
	// Also where it is not to be programmed: to know whether a region holds it tells what is in it.
	if w.image != nil {
		if faults := r.Allows(c.Namespace, &w.image.about); len(faults) > 0 {
			return nil, refusal(c, claim.ReasonForbiddenByPolicy, faults...)
		}
	}
	for i := range config.Policies {
		w.requireBlank = w.requireBlank || config.Policies[i].Policy.RequireBlank
	}
	blank, err := f.bitstreams.blank(ctx, id)
	if err != nil {
		return nil, err
	}
	if blank == nil && config.OnRelease == v1alpha1.FPGAReleaseBlank {
		return nil, refusal(c, claim.ReasonConfigInvalid, field.Invalid(r.At(claim.FieldFPGARelease), config.OnRelease, fmt.Sprintf(
			"there is no blank image for interface %s: ask an administrator for a ClusterFPGABitstream with spec.blank, or use Reset", id)))
	}
	w.blank = blank
	w.needsBlank, err = f.needsBlank(c.Namespace, dev, config)
	return w, err
}

// needsBlank says whether the claim cannot do without the blank image, if there is one. Otherwise it is wanted in case a programming
// fails, and a registry that is away must keep nobody waiting for it.
func (f *fpgas) needsBlank(namespace string, dev *device.Device, config *claim.FPGAEffective) (bool, error) {
	if config.OnRelease == v1alpha1.FPGAReleaseBlank {
		return true, nil
	}
	content, err := f.contents.Read(dev.Name)
	return content.Unknown || content.Namespace != "" && content.Namespace != namespace, err
}

// earlyFaults judges a reference by what it says itself, before any registry is asked. A policy that names digests may mean one that only
// the registry tells.
func earlyFaults(namespace string, r *claim.Result) field.ErrorList {
	config := r.Config.FPGA
	ref, err := artifact.ParseReference(config.Bitstream.Ref)
	if config.Bitstream.Ref == "" || err != nil || config.NamesDigests() {
		return nil
	}
	return r.Allows(namespace, &claim.Bitstream{
		Repository: ref.Repository(), Digests: []string{ref.Digest().String()}, VouchedDetail: notVouched,
	})
}

func refusal(c *resourceapi.ResourceClaim, reason claim.Reason, faults ...*field.Error) error {
	return &claim.RefusedError{Claim: c.Namespace + "/" + c.Name, Reason: reason, Faults: faults}
}

// steps are the fetches, and what is done to the region.
func (w *wanted) steps(ctx context.Context, p *region.Programmer) (fetches, rest []step.Step, err error) {
	var image, blank *region.Image
	if w.image != nil {
		image = &w.image.image
	}
	if w.blank != nil {
		blank = &w.blank.image
	}
	for _, p := range w.fetches() {
		s, err := p.step(w.claim.UID)
		if err != nil {
			return nil, nil, err
		}
		fetches = append(fetches, s)
	}
	scrub := region.Scrub{
		Device: w.device.Name, Claim: w.claim, Blank: blank, Required: w.requireBlank || image == nil, Keep: w.never(),
		Timeout: w.config.Timeout,
	}
	program := region.Program{
		Device: w.device.Name, Claim: w.claim, Image: image, Mode: region.Mode(w.config.Program), ResetBeforeUse: w.config.ResetBeforeUse,
		OnRelease: region.Release(w.config.OnRelease), Blank: blank, Timeout: w.config.Timeout,
	}
	params, err := w.params(ctx, p, image)
	if err != nil {
		return nil, nil, err
	}
	makers := []func() (step.Step, error){scrub.Step}
	if params != nil {
		makers = append(makers, params.Step)
	}
	for _, make := range append(makers, program.Step) {
		s, err := make()
		if err != nil {
			return nil, nil, err
		}
		rest = append(rest, s)
	}
	return fetches, rest, nil
}

// never: the region must hold the image already.
func (w *wanted) never() bool { return w.image != nil && w.config.Program == v1alpha1.ProgramNever }

// fetches are the files that must be brought to the node.
func (w *wanted) fetches() []fetchParams {
	var out []fetchParams
	if w.image != nil && w.image.fetch != nil && !w.never() {
		out = append(out, *w.image.fetch)
	}
	if w.blank != nil && w.blank.fetch != nil {
		p := *w.blank.fetch
		p.Optional = !w.needsBlank
		out = append(out, p)
	}
	return out
}

// params plans the driver parameters. An image that is not programmed sets no clock.
func (w *wanted) params(ctx context.Context, p *region.Programmer, image *region.Image) (*region.Params, error) {
	var set []region.Param
	for _, param := range w.config.DriverParams {
		own, err := dfl.ParamOf(param.Name, param.Value)
		if err != nil {
			return nil, err
		}
		set = append(set, region.Param{Name: own.Name, Value: own.Value})
	}
	if w.config.Program == v1alpha1.ProgramNever {
		image = nil
	}
	return p.PlanParams(ctx, w.device.Region, w.device.Name, w.claim, set, image)
}

// orphans are the regions that nobody holds and of which nobody knows what they hold.
func (p *Plugin) orphans() []engine.Orphan {
	v, _ := p.latest.get()
	if v == nil {
		return nil
	}
	var out []engine.Orphan
	for i := range v.devices {
		d := &v.devices[i]
		if d.Region == nil || !p.fpgas.programs(d.Region) {
			continue
		}
		if content, err := p.fpgas.contents.Read(d.Name); err == nil && content.Unknown {
			uid := content.Claim
			if uid == "" {
				uid = "region-" + d.Name
			}
			out = append(out, engine.Orphan{UID: uid, Device: *d})
		}
	}
	return out
}

// remains are the steps to undo for a claim whose record is lost: its region is reset, or wiped where nobody knows what is in it.
func (f *fpgas) remains(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	if dev.Region == nil || !f.programs(dev.Region) {
		return nil, nil
	}
	blank, err := f.bitstreams.blank(ctx, dev.Region.InterfaceID)
	if err != nil {
		return nil, err
	}
	content, err := f.contents.Read(dev.Name)
	if err != nil {
		return nil, err
	}
	// The region's own word for who left it counts: a file that cannot be read names nobody.
	program := region.Program{Device: dev.Name, Claim: region.Claim{UID: content.Claim}, OnRelease: region.ReleaseReset}
	var steps []step.Step
	if blank != nil {
		program.Blank = &blank.image
		if blank.fetch != nil {
			s, err := blank.fetch.step(uid)
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
		}
	}
	s, err := program.Step()
	return append(steps, s), err
}

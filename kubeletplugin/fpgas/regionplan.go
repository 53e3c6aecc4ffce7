// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// regionPlan is what a claim needs of one region.
type regionPlan struct {
	claim  region.Claim
	device *device.Device
	config *claim.FPGAEffective
	// image and blank are nil if there is none.
	image, blank *bitstream
	// needsBlank: the blank image must be on the node before the claim is prepared. Other claims use it only if programming fails, so an
	// unavailable registry must not delay them.
	needsBlank bool
	// requireBlank: a class refuses a region with traces of another tenant.
	requireBlank bool
}

// planRegion resolves the images of a region and authorises them. It checks claims that admission accepted, and those that it never saw.
func (f *Feature) planRegion(
	ctx context.Context, c *resourceapi.ResourceClaim, namespaceUID string, r *claim.Result, dev *device.Device,
) (*regionPlan, error) {
	config := r.Config.FPGA
	if err := f.programmer.CheckDMA(dev.Region); err != nil && !config.AllowsWithoutIOMMU() {
		return nil, refusal(c, claim.ReasonForbiddenByPolicy, field.Forbidden(r.At(claim.FieldBitstream), fmt.Sprintf("device %s: %v: "+
			"ask an administrator to have the node's IOMMU translate, or for a class with policy.allowWithoutIOMMU", r.Device, err)))
	}
	w := &regionPlan{
		claim:  region.Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), NamespaceUID: namespaceUID},
		device: dev, config: config,
	}
	id := dev.Region.InterfaceID
	if config.Bitstream != nil {
		if err := f.refuseUnasked(ctx, c, r); err != nil {
			return nil, err
		}
		found, err := f.bitstreams.find(ctx, c.Namespace, config.Bitstream, id)
		if err != nil {
			return nil, fmt.Errorf("request %s, device %s: %w", r.Request, r.Device, err)
		}
		// Checked even if the image is not to be programmed: whether a region holds it discloses the content of the region.
		if err := f.authorize(ctx, c, r, found); err != nil {
			return nil, err
		}
		w.image = found
	}
	for i := range config.Policies {
		w.requireBlank = w.requireBlank || config.Policies[i].Policy.RequireBlank
	}
	content, err := f.contents.Read(dev.Name)
	if err != nil {
		return nil, err
	}
	if err := f.checkFailures(w, &content); err != nil {
		return nil, err
	}
	w.needsBlank = config.OnRelease == v1alpha1.FPGAReleaseBlank || content.ForeignTo(w.claim.Tenant())
	return w, f.planBlank(ctx, c, r, w)
}

// planBlank resolves the blank image of a region, and checks that it may be used.
func (f *Feature) planBlank(ctx context.Context, c *resourceapi.ResourceClaim, r *claim.Result, w *regionPlan) error {
	id := w.device.Region.InterfaceID
	blank, err := f.bitstreams.blank(ctx, id, f.judge.check)
	if err == nil && blank == nil && w.config.OnRelease == v1alpha1.FPGAReleaseBlank {
		return refusal(c, claim.ReasonConfigInvalid, field.Invalid(r.At(claim.FieldFPGARelease), w.config.OnRelease, fmt.Sprintf(
			"there is no blank image for interface %s: ask an administrator for a ClusterFPGABitstream with spec.blank, or use Reset", id)))
	}
	if err != nil && w.needsBlank {
		return fmt.Errorf("request %s, device %s: the blank image: %w", r.Request, r.Device, err)
	}
	if err != nil {
		klog.FromContext(ctx).Info("No blank image may be used", "device", r.Device, "interface", id, "reason", err)
		return nil
	}
	w.blank = blank
	return nil
}

// authorize checks that a claim may load a bitstream: first by the lists of the classes, then by the TrustPolicies, and last by the classes
// that require a signature.
func (f *Feature) authorize(ctx context.Context, c *resourceapi.ResourceClaim, r *claim.Result, b *bitstream) error {
	listed := b.identity
	listed.Vouched = true // not known yet
	if faults := r.Allows(c.Namespace, &listed); len(faults) > 0 {
		return refusal(c, claim.ReasonForbiddenByPolicy, faults...)
	}
	err := f.judge.check(ctx, b)
	if errors.Is(err, errRefused) {
		return refusal(c, claim.ReasonForbiddenByPolicy, field.Forbidden(r.At(claim.FieldBitstream), err.Error()))
	}
	if err != nil {
		return fmt.Errorf("request %s, device %s: %w", r.Request, r.Device, err)
	}
	if faults := r.Allows(c.Namespace, &b.identity); len(faults) > 0 {
		return refusal(c, claim.ReasonForbiddenByPolicy, faults...)
	}
	return nil
}

// checkFailures fails if the claim's namespace must not program now, and the region does not hold the image yet. The step checks again.
func (f *Feature) checkFailures(w *regionPlan, content *region.Content) error {
	if w.image == nil || w.neverPrograms() {
		return nil
	}
	holds := content.Digest == w.image.image.Digest && content.Namespace == w.claim.Tenant() && !content.Unknown
	if holds && w.config.Program != v1alpha1.ProgramAlways {
		return nil
	}
	if err := f.failures.Check(&w.claim); err != nil {
		return fmt.Errorf("device %s is not programmed: %w", w.device.Name, err)
	}
	return nil
}

// refuseUnasked refuses a reference that the classes or the TrustPolicies refuse whatever its registry says. It is called first, because a
// tenant who makes a reference chooses the host. If a class names digests its lists are checked later, since only the registry knows all
// digests of the artifact.
func (f *Feature) refuseUnasked(ctx context.Context, c *resourceapi.ResourceClaim, r *claim.Result) error {
	config := r.Config.FPGA
	ref, err := artifact.ParseReference(config.Bitstream.Ref)
	if config.Bitstream.Ref == "" || err != nil {
		return nil //nolint:nilerr // whoever resolves the reference says what is wrong with it
	}
	known := &claim.Bitstream{Repository: ref.Repository(), Digests: []string{ref.Digest().String()}, Vouched: true, VouchedDetail: noPolicy}
	if faults := r.Allows(c.Namespace, known); len(faults) > 0 && !config.NamesDigests() {
		return refusal(c, claim.ReasonForbiddenByPolicy, faults...)
	}
	policies, _, err := f.judge.policies.For(ctx, ref, c.Namespace)
	if err != nil {
		return fmt.Errorf("request %s, device %s: %s %w: %w", r.Request, r.Device, ref, errNotVerified, err)
	}
	if len(policies) == 0 {
		known.Vouched = false
		if faults := r.Allows(c.Namespace, known); len(faults) > 0 && !config.NamesDigests() {
			return refusal(c, claim.ReasonForbiddenByPolicy, faults...)
		}
		return nil
	}
	if err := trust.RefuseUnasked(ref, c.Namespace, policies); err != nil {
		return refusal(c, claim.ReasonForbiddenByPolicy, field.Forbidden(r.At(claim.FieldBitstream), err.Error()))
	}
	return nil
}

func refusal(c *resourceapi.ResourceClaim, reason claim.Reason, faults ...*field.Error) error {
	return &claim.RefusedError{Claim: c.Namespace + "/" + c.Name, Reason: reason, Faults: faults}
}

// steps returns the steps that pin the files, and those that act on the region.
func (w *regionPlan) steps(ctx context.Context, p *region.Programmer, r *prepare.Request) (pins, rest []step.Step, err error) {
	var image, blank *region.Image
	if w.image != nil {
		image = &w.image.image
	}
	if w.blank != nil {
		blank = &w.blank.image
	}
	for _, p := range w.files() {
		s, err := p.Step(w.claim.UID)
		if err != nil {
			return nil, nil, err
		}
		pins = append(pins, s)
	}
	scrub := region.Scrub{
		Device: w.device.Name, Claim: w.claim, Blank: blank, Required: w.requireBlank || image == nil, Keep: w.neverPrograms(),
		KeepMemory: w.config.AllowsUnclearedMemory(), Timeout: w.config.Timeout,
	}
	program := region.Program{
		Device: w.device.Name, Claim: w.claim, Image: image, Mode: region.Mode(w.config.Program), ResetBeforeUse: w.config.ResetBeforeUse,
		OnRelease: region.Release(w.config.OnRelease), Blank: blank, Timeout: w.config.Timeout,
		RequireIOMMU: !w.config.AllowsWithoutIOMMU(),
		// Where everybody may meet on a chip, its memory is nobody's alone while they do.
		MarkCard: w.config.CoTenancy != v1alpha1.CoTenancyShared,
	}
	params, err := w.params(ctx, p, image)
	if err != nil {
		return nil, nil, err
	}
	if params != nil {
		if earlier, ok := r.EarlierStep(step.Step{Kind: region.ParamsKind, Target: w.device.Name}); ok {
			if err := params.KeepBefore(earlier); err != nil {
				return nil, nil, err
			}
		}
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
	return pins, rest, nil
}

// neverPrograms reports whether the region must hold the image already.
func (w *regionPlan) neverPrograms() bool {
	return w.image != nil && w.config.Program == v1alpha1.ProgramNever
}

// files returns the files that must be on the node.
func (w *regionPlan) files() []pin.Params {
	var out []pin.Params
	if w.image != nil && w.image.fetch != nil && !w.neverPrograms() {
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
func (w *regionPlan) params(ctx context.Context, p *region.Programmer, image *region.Image) (*region.Params, error) {
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
	return p.PlanParams(ctx, w.device.Region, region.Params{Device: w.device.Name, Claim: w.claim, Set: set, Image: image})
}

// BindAfter returns the strictest bindAfter that the classes of a claim ask for.
func BindAfter(a claim.Allocation) (most v1alpha1.BindAfter) {
	for i := range a.Results {
		r := &a.Results[i]
		if r.Config.FPGA == nil || r.AdminAccess {
			continue
		}
		for j := range r.Config.FPGA.Policies {
			if after := r.Config.FPGA.Policies[j].Policy.BindAfter; after.Rank() > most.Rank() {
				most = after
			}
		}
	}
	return most
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a partition policy may have at most, as the CRD has it.
const (
	maxPartitionCEL  = 4096
	maxMIGProfiles   = 32
	maxMIGProfile    = 32
	maxMIGLayout     = 16
	maxMIGInstances  = 16
	maxMIGStart      = 63
	maxMigPartedName = 253
	maxMigPartedText = 65536
	maxVFs           = 256
	maxXeQuantumMS   = 100_000
	maxXeTimeoutUS   = 100_000_000
	maxXeQuota       = 32
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	migProfile = regexp.MustCompile(`^[1-9][0-9]?g[.][1-9][0-9]{0,3}gb([+-][a-z][a-z.,]*)*$`)
	xeQuota    = regexp.MustCompile(`^[1-9][0-9]{0,12}(Ki|Mi|Gi|Ti)?$`)
)

// Validate reports every fault of the policy's spec below path, those that the CRD's own rules find included. Whether CEL compiles and what
// a document of mig-parted says is not judged here.
func (s *PartitionPolicySpec) Validate(path *field.Path) field.ErrorList {
	faults := validateSelector(s.NodeSelector, path.Child("nodeSelector"))
	if s.Priority < -maxPriority || s.Priority > maxPriority {
		faults = append(faults, field.Invalid(path.Child("priority"), s.Priority, fmt.Sprintf("must be from -%d to %[1]d", maxPriority)))
	}
	if s.DividesDevices() || s.Nodes == nil {
		faults = append(faults, s.Devices.validate(path.Child("devices"))...)
	}
	if s.Nodes != nil {
		faults = append(faults, s.Nodes.validate(path.Child("nodes"))...)
	}
	return faults
}

// validateWays wants a policy that says something, and not two ways to divide a device.
func (d *PartitionDevices) validateWays(path *field.Path) field.ErrorList {
	ways := 0
	for _, set := range []bool{d.NVIDIA != nil, d.AMD != nil, d.SRIOV != nil} {
		if set {
			ways++
		}
	}
	switch {
	case ways == 0 && d.Passthrough == nil && d.Sharing == nil:
		return field.ErrorList{field.Required(path,
			"say what becomes of the devices: set nvidia, amd, sriov, passthrough or sharing; or set nodes")}
	case ways > 1:
		return field.ErrorList{field.Forbidden(path,
			"a device is divided in one way: set at most one of nvidia, amd and sriov, and write a policy for each")}
	}
	return nil
}

func (d *PartitionDevices) validate(path *field.Path) field.ErrorList {
	faults := d.validateWays(path)
	if d.DeviceSelector != nil {
		at := path.Child("deviceSelector", "cel")
		if d.DeviceSelector.CEL == "" {
			faults = append(faults, field.Required(at, "write a condition, or leave deviceSelector out"))
		}
		faults = append(faults, noLonger(d.DeviceSelector.CEL, maxPartitionCEL, at)...)
	}
	if d.NVIDIA != nil {
		faults = append(faults, d.NVIDIA.MIG.validate(path.Child("nvidia", "mig"))...)
		static := slices.Contains([]MIGMode{MIGStatic, MIGParted}, d.NVIDIA.MIG.Mode)
		if d.Passthrough != nil && *d.Passthrough && static {
			faults = append(faults, field.Forbidden(path.Child("passthrough"),
				"needs the GPU whole, which a static layout does not leave: use mode Dynamic or Disabled"))
		}
	}
	if d.AMD != nil {
		faults = append(faults, d.AMD.validate(path.Child("amd"))...)
	}
	if d.SRIOV != nil {
		faults = append(faults, d.SRIOV.validate(path.Child("sriov"))...)
	}
	if d.Sharing != nil {
		faults = append(faults, d.Sharing.validate(path.Child("sharing"))...)
	}
	return faults
}

func (m *MIGPartition) validate(path *field.Path) field.ErrorList {
	known := []MIGMode{MIGDynamic, MIGStatic, MIGParted, MIGDisabled}
	var faults field.ErrorList
	if !slices.Contains(known, m.Mode) {
		faults = append(faults, field.NotSupported(path.Child("mode"), m.Mode, known))
	}
	faults = append(faults, m.validateProfiles(path.Child("profiles"))...)
	at := path.Child("layout")
	if (m.Layout != nil) != (m.Mode == MIGStatic) {
		faults = append(faults, field.Required(at, "set it for mode Static, and only for it"))
	}
	if m.Layout != nil && len(m.Layout) == 0 {
		faults = append(faults, emptyList(at))
	}
	faults = append(faults, atMost(len(m.Layout), maxMIGLayout, at)...)
	for i := range m.Layout {
		faults = append(faults, m.Layout[i].validate(at.Index(i))...)
	}
	at = path.Child("migParted")
	if (m.MigParted != nil) != (m.Mode == MIGParted) {
		faults = append(faults, field.Required(at, "set it for mode MigParted, and only for it"))
	}
	if m.MigParted != nil {
		faults = append(faults, requiredText(m.MigParted.Config, maxMigPartedName, at.Child("config"))...)
		faults = append(faults, requiredText(m.MigParted.Document, maxMigPartedText, at.Child("document"))...)
	}
	return faults
}

func (m *MIGPartition) validateProfiles(at *field.Path) field.ErrorList {
	var faults field.ErrorList
	if m.Profiles != nil && m.Mode != MIGDynamic {
		faults = append(faults, field.Forbidden(at, "profiles are for mode Dynamic"))
	}
	if m.Profiles != nil && len(m.Profiles) == 0 {
		faults = append(faults, emptyList(at))
	}
	faults = append(faults, slices.Concat(atMost(len(m.Profiles), maxMIGProfiles, at), validateSet(m.Profiles, at))...)
	for i, profile := range m.Profiles {
		faults = append(faults, profileFaults(profile, at.Index(i))...)
	}
	return faults
}

func profileFaults(profile string, path *field.Path) field.ErrorList {
	if len(profile) > maxMIGProfile || !migProfile.MatchString(profile) {
		return field.ErrorList{field.Invalid(path, profile, "must be a profile of GPU instances, such as 1g.10gb or 1g.10gb+me")}
	}
	return nil
}

func requiredText(text string, limit int, path *field.Path) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(path, "must not be empty")}
	}
	return noLonger(text, limit, path)
}

func (i *MIGInstances) validate(path *field.Path) field.ErrorList {
	faults := profileFaults(i.Profile, path.Child("profile"))
	if i.Count < 1 || i.Count > maxMIGInstances {
		faults = append(faults, field.Invalid(path.Child("count"), i.Count, fmt.Sprintf("must be 1 to %d", maxMIGInstances)))
	}
	if i.Starts == nil {
		return faults
	}
	at := path.Child("starts")
	if len(i.Starts) == 0 {
		return append(faults, emptyList(at))
	}
	if len(i.Starts) != int(i.Count) {
		faults = append(faults, field.Invalid(at, len(i.Starts), "give a start for each instance, or none"))
	}
	faults = append(faults, atMost(len(i.Starts), maxMIGInstances, at)...)
	for n, start := range i.Starts {
		if start < 0 || start > maxMIGStart {
			faults = append(faults, field.Invalid(at.Index(n), start, fmt.Sprintf("must be 0 to %d", maxMIGStart)))
		}
		if slices.Contains(i.Starts[:n], start) {
			faults = append(faults, field.Duplicate(at.Index(n), start))
		}
	}
	return faults
}

func (a *AMDPartition) validate(path *field.Path) field.ErrorList {
	if a.Compute == "" && a.Memory == "" {
		return field.ErrorList{field.Required(path, "set compute, memory or both")}
	}
	faults := oneOf(a.Compute, path.Child("compute"), "SPX", "DPX", "TPX", "QPX", "CPX")
	faults = append(faults, oneOf(a.Memory, path.Child("memory"), "NPS1", "NPS2", "NPS4")...)
	if len(faults) > 0 || a.Compute == "" || a.Memory == "" || a.Memory == "NPS1" {
		return faults
	}
	together := a.Compute == "DPX" && a.Memory == "NPS2" ||
		slices.Contains([]AMDComputeMode{"TPX", "QPX", "CPX"}, a.Compute) && a.Memory == "NPS4"
	if !together {
		faults = append(faults, field.Invalid(path.Child("memory"), a.Memory,
			"these modes do not go together: SPX has NPS1, DPX has NPS1 or NPS2, TPX, QPX and CPX have NPS1 or NPS4"))
	}
	return faults
}

func (s *SRIOVPartition) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if s.VirtualFunctions < 0 || s.VirtualFunctions > maxVFs {
		faults = append(faults, field.Invalid(path.Child("virtualFunctions"), s.VirtualFunctions, fmt.Sprintf("must be 0 to %d", maxVFs)))
	}
	if s.Xe != nil {
		faults = append(faults, s.Xe.validate(path.Child("xe"))...)
	}
	return faults
}

func (x *XeProvisioning) validate(path *field.Path) field.ErrorList {
	if *x == (XeProvisioning{}) {
		return field.ErrorList{field.Required(path, "set at least one field")}
	}
	faults := oneOf(x.SchedPriority, path.Child("schedPriority"), "low", "normal", "high")
	if n := x.ExecQuantumMS; n != nil && (*n < 0 || *n > maxXeQuantumMS) {
		faults = append(faults, field.Invalid(path.Child("execQuantumMS"), *n, fmt.Sprintf("must be 0 to %d", maxXeQuantumMS)))
	}
	if n := x.PreemptTimeoutUS; n != nil && (*n < 0 || *n > maxXeTimeoutUS) {
		faults = append(faults, field.Invalid(path.Child("preemptTimeoutUS"), *n, fmt.Sprintf("must be 0 to %d", maxXeTimeoutUS)))
	}
	if x.VRAMQuota != "" && (len(x.VRAMQuota) > maxXeQuota || !xeQuota.MatchString(x.VRAMQuota)) {
		faults = append(faults, field.Invalid(path.Child("vramQuota"), x.VRAMQuota, "must be a number of bytes such as 4Gi"))
	}
	return faults
}

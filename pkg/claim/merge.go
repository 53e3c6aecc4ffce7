// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// The fields that have a source, by their path in the configuration's JSON.
const (
	FieldStrategy          = "sharing.strategy"
	FieldTimeSlicing       = "sharing.timeSlicing"
	FieldMPS               = "sharing.mps"
	FieldKernelCaches      = "kernelCaches"
	FieldMountPath         = "mountPath"
	FieldOnRelease         = "policy.onRelease"
	FieldAllowedNamespaces = "policy.allowedNamespaces"
)

// builtIn is the effective configuration when neither class nor claim says anything.
func builtIn(kind device.Kind) Effective {
	source := Source{Origin: OriginBuiltIn, Index: -1}
	effective := Effective{Sources: map[string]Source{FieldAllowedNamespaces: source}}
	if row, ok := rowOf(kind); ok {
		row.builtIn(&effective, source)
	}
	return effective
}

// merge lays the layers that apply to the result, classes first, over the built-in values.
func merge(layers []layer, index int, kind device.Kind) (Effective, field.ErrorList) {
	effective := builtIn(kind)
	var faults field.ErrorList
	for _, l := range layers {
		if !l.applies[index] {
			continue
		}
		if row, ok := rowOf(kind); ok {
			faults = append(faults, row.parameters(&effective, l.config, l.source)...)
			row.policy(&effective, l.config, l.source)
		}
	}
	if effective.GPU != nil {
		faults = append(faults, effective.settleSharing()...)
	}
	return effective, faults
}

func (e *Effective) mergeGPU(config *v1alpha1.GPUConfig, source Source) field.ErrorList {
	if config.Sharing != nil {
		e.mergeSharing(config.Sharing, source)
	}
	for _, cache := range config.KernelCaches {
		e.GPU.addCache(cache)
		e.Sources[FieldKernelCaches] = source
	}
	return nil
}

func (e *Effective) mergeGPUPolicy(config *v1alpha1.GPUConfig, source Source) {
	if config.Policy != nil {
		e.narrow(config.Policy.AllowedNamespaces, source)
		e.GPU.AllowPassthrough = e.GPU.AllowPassthrough || config.Policy.AllowPassthrough
	}
}

// restrictGPU allows passthrough only if both policies do.
func (e *Effective) restrictGPU(other *Effective) {
	e.narrowTo(other)
	e.GPU.AllowPassthrough = e.GPU.AllowPassthrough && other.GPU.AllowPassthrough
}

// addCache has a later layer's entry for an object take the place of an earlier one's.
func (g *GPUEffective) addCache(cache v1alpha1.KernelCacheSource) {
	cache.Default()
	i := slices.IndexFunc(g.KernelCaches, func(c v1alpha1.KernelCacheSource) bool { return c.Kind == cache.Kind && c.Name == cache.Name })
	if i < 0 {
		g.KernelCaches = append(g.KernelCaches, cache)
		return
	}
	g.KernelCaches[i] = cache
}

func (e *Effective) mergeHost(config *v1alpha1.HostConfig, source Source) field.ErrorList {
	if config.MountPath != "" {
		e.Host.MountPath = config.MountPath
		e.Sources[FieldMountPath] = source
	}
	return nil
}

func (e *Effective) mergeHostPolicy(config *v1alpha1.HostConfig, source Source) {
	if config.Policy != nil {
		e.narrow(config.Policy.AllowedNamespaces, source)
		e.mergeOnRelease(config.Policy.OnRelease, source)
	}
}

// restrictHost keeps data only if both policies do.
func (e *Effective) restrictHost(other *Effective) {
	e.narrowTo(other)
	if other.Host.OnRelease == v1alpha1.OnReleaseEmpty && e.Host.OnRelease != v1alpha1.OnReleaseEmpty {
		e.Host.OnRelease = v1alpha1.OnReleaseEmpty
		e.Sources[FieldOnRelease] = other.Sources[FieldOnRelease]
	}
}

// mergeOnRelease lets the first class choose and any later one only choose Empty: data is kept when every class that speaks
// agrees.
func (e *Effective) mergeOnRelease(value v1alpha1.OnRelease, source Source) {
	chosen := e.Sources[FieldOnRelease].Origin != OriginBuiltIn
	if value == "" || (chosen && value != v1alpha1.OnReleaseEmpty) {
		return
	}
	e.Host.OnRelease = value
	e.Sources[FieldOnRelease] = source
}

// narrow keeps the namespaces that are also in names. Nil names narrow nothing.
func (e *Effective) narrow(names []string, source Source) {
	if names == nil {
		return
	}
	kept := []string{}
	for _, name := range names {
		if e.AllowedNamespaces == nil || slices.Contains(e.AllowedNamespaces, name) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	if e.AllowedNamespaces != nil && len(kept) == len(e.AllowedNamespaces) {
		return
	}
	e.AllowedNamespaces = kept
	e.Sources[FieldAllowedNamespaces] = source
}

// narrowTo keeps the namespaces that another policy allows, too.
func (e *Effective) narrowTo(other *Effective) {
	e.narrow(other.AllowedNamespaces, other.Sources[FieldAllowedNamespaces])
}

// mountPathFaults refuses one path for several devices: the last mount would hide the others.
func mountPathFaults(results []Result) field.ErrorList {
	devices := map[string]int{}
	for _, r := range results {
		devices[r.Request]++
	}
	var faults field.ErrorList
	for _, r := range results {
		if r.Config.Host == nil || r.Config.Host.MountPath == "" || devices[r.Request] < 2 {
			continue
		}
		detail := fmt.Sprintf("request %s got %d devices and each needs a path of its own: "+
			"split it into requests of one device with a mountPath each, or leave mountPath out", r.Request, devices[r.Request])
		path := r.Config.Sources[FieldMountPath].parameters().Child("mountPath")
		faults = append(faults, field.Invalid(path, r.Config.Host.MountPath, detail))
	}
	return faults
}

// namespaceFaults refuses a claim whose namespace a class does not allow. A look (adminAccess) has its own gate, the label of the
// namespace, which the API server checks.
func namespaceFaults(namespace string, results []Result) field.ErrorList {
	var faults field.ErrorList
	for _, r := range results {
		allowed := r.Config.AllowedNamespaces
		if r.AdminAccess || allowed == nil || slices.Contains(allowed, namespace) {
			continue
		}
		source := r.Config.Sources[FieldAllowedNamespaces]
		path := source.parameters().Child("policy", "allowedNamespaces")
		detail := fmt.Sprintf("the class of request %s does not allow namespace %s: "+
			"create the claim in an allowed namespace, use another class, or ask an administrator to add it", r.Request, namespace)
		faults = append(faults, field.Forbidden(path, detail))
	}
	return faults
}

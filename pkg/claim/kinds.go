// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// kindRow is what this package knows of one kind of device.
type kindRow struct {
	kind device.Kind
	// config is the kind of the opaque configuration that is for these devices, is says whether one is of it.
	config string
	is     func(v1alpha1.Config) bool
	// builtIn sets what holds where neither class nor claim says anything.
	builtIn func(e *Effective, source Source)
	// parameters lays the parameters of a configuration of this kind over those that are effective so far, policy does so with its policy.
	parameters func(e *Effective, config v1alpha1.Config, source Source) field.ErrorList
	policy     func(e *Effective, config v1alpha1.Config, source Source)
	// restrict makes the policy the stricter one of its own and another's.
	restrict func(e, other *Effective)
}

// kindRows is the table of the kinds of device and their configurations, see docs/design/adding.md.
func kindRows() []kindRow {
	return []kindRow{
		newRow(row[*v1alpha1.GPUConfig]{
			device.KindGPU, v1alpha1.KindGPUConfig, builtInGPU, (*Effective).mergeGPU, (*Effective).mergeGPUPolicy, (*Effective).restrictGPU,
		}),
		newRow(row[*v1alpha1.FPGAConfig]{
			device.KindFPGA, v1alpha1.KindFPGAConfig, builtInFPGA, (*Effective).mergeFPGA, (*Effective).mergeFPGAPolicy, (*Effective).restrictFPGA,
		}),
		newRow(row[*v1alpha1.HostConfig]{
			device.KindHost, v1alpha1.KindHostConfig, builtInHost, (*Effective).mergeHost, (*Effective).mergeHostPolicy, (*Effective).restrictHost,
		}),
		newRow(row[*v1alpha1.AcceleratorConfig]{
			device.KindAccelerator, v1alpha1.KindAcceleratorConfig, nothingBuiltIn, noParameters,
			func(e *Effective, c *v1alpha1.AcceleratorConfig, source Source) { e.mergePolicy(c.Policy, source) }, (*Effective).narrowTo,
		}),
	}
}

// row is a kindRow whose functions have the configuration's own type.
type row[C v1alpha1.Config] struct {
	kind       device.Kind
	config     string
	builtIn    func(*Effective, Source)
	parameters func(*Effective, C, Source) field.ErrorList
	policy     func(*Effective, C, Source)
	restrict   func(e, other *Effective)
}

// newRow makes a row of functions for any configuration, which do nothing with one of another type.
func newRow[C v1alpha1.Config](r row[C]) kindRow {
	return kindRow{
		kind: r.kind, config: r.config, builtIn: r.builtIn, restrict: r.restrict,
		is: func(c v1alpha1.Config) bool { _, ok := c.(C); return ok },
		parameters: func(e *Effective, c v1alpha1.Config, source Source) field.ErrorList {
			if own, ok := c.(C); ok {
				return r.parameters(e, own, source)
			}
			return nil
		},
		policy: func(e *Effective, c v1alpha1.Config, source Source) {
			if own, ok := c.(C); ok {
				r.policy(e, own, source)
			}
		},
	}
}

func rowOf(kind device.Kind) (kindRow, bool) {
	for _, row := range kindRows() {
		if row.kind == kind {
			return row, true
		}
	}
	return kindRow{}, false
}

// configKind says which kind of device a configuration is for.
func configKind(config v1alpha1.Config) (name string, of device.Kind) {
	for _, row := range kindRows() {
		if row.is(config) {
			return row.config, row.kind
		}
	}
	return fmt.Sprintf("%T", config), ""
}

// KindOf returns the kind of device that a configuration is for, and nothing if there is none.
func KindOf(config v1alpha1.Config) device.Kind {
	_, of := configKind(config)
	return of
}

// nothingBuiltIn and noParameters are of kinds whose configuration has a policy alone.
func nothingBuiltIn(*Effective, Source) {}

func noParameters(*Effective, *v1alpha1.AcceleratorConfig, Source) field.ErrorList { return nil }

// mergePolicy lays a policy that has only what all policies have over the others.
func (e *Effective) mergePolicy(policy *v1alpha1.Policy, source Source) {
	if policy != nil {
		e.narrow(policy.AllowedNamespaces, source)
	}
}

func builtInGPU(e *Effective, source Source) {
	var config v1alpha1.GPUConfig
	config.Default()
	e.GPU = &GPUEffective{Strategy: config.Sharing.Strategy}
	e.Sources[FieldStrategy] = source
}

func builtInHost(e *Effective, source Source) {
	var config v1alpha1.HostConfig
	config.Default()
	e.Host = &HostEffective{OnRelease: config.Policy.OnRelease}
	e.Sources[FieldMountPath] = source
	e.Sources[FieldOnRelease] = source
}

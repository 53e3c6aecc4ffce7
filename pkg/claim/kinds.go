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
	// merge lays a configuration of this kind over what is effective so far.
	merge func(e *Effective, config v1alpha1.Config, source Source) field.ErrorList
}

// kindRows is the table of the kinds of device and their configurations, see docs/design/adding.md.
func kindRows() []kindRow {
	return []kindRow{
		newRow(device.KindGPU, v1alpha1.KindGPUConfig, builtInGPU, (*Effective).mergeGPU),
		newRow(device.KindFPGA, v1alpha1.KindFPGAConfig, builtInFPGA, (*Effective).mergeFPGA),
		newRow(device.KindHost, v1alpha1.KindHostConfig, builtInHost, (*Effective).mergeHost),
	}
}

// newRow makes a row of functions for the configuration's own type.
func newRow[C v1alpha1.Config](
	kind device.Kind, config string, builtIn func(*Effective, Source), merge func(*Effective, C, Source) field.ErrorList,
) kindRow {
	return kindRow{
		kind: kind, config: config, builtIn: builtIn,
		is: func(c v1alpha1.Config) bool { _, ok := c.(C); return ok },
		merge: func(e *Effective, c v1alpha1.Config, source Source) field.ErrorList {
			if own, ok := c.(C); ok {
				return merge(e, own, source)
			}
			return nil
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

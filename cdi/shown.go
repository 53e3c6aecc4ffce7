// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	specs "tags.cncf.io/container-device-interface/specs-go"
)

const (
	// vendor is the CDI vendor of all names.
	vendor = "fettle.dev"
	// shownEdit is the only edit of a shown device: the runtime refuses a device without edits.
	shownEdit = "FETTLE_CLAIM=prepared"
	// shownFilePrefix differs from filePrefix: an earlier version of Fettle removes files of that prefix which its records do not name.
	shownFilePrefix = "fettle-shown-"
)

// Shown makes the spec of the CDI device fettle.dev/KIND=NAME, which gives a container nothing. kubelet shows the first CDI device of each
// allocated device as its resourceID in the pod's status (pkg/kubelet/cm/dra/manager.go, buildResourceHealth). People read it there, so it
// names the device; and tenants do, so it must be of no use to them.
func Shown(kind, name string) (Spec, error) {
	device := specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{Env: []string{shownEdit}}}
	spec, err := render(&specs.Spec{Kind: vendor + "/" + kind, Devices: []specs.Device{device}})
	spec.Device, spec.File = ShownName(kind, name), ShownFile(kind, name)
	return spec, err
}

// ShownName returns the qualified name of a shown device.
func ShownName(kind, name string) string { return vendor + "/" + kind + "=" + name }

// ShownFile returns the base name of the file that defines a shown device.
func ShownFile(kind, name string) string { return shownFilePrefix + kind + "-" + name + fileSuffix }

// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
)

// Ignored returns the configurations of a claim, template or class that no driver will read, because all devices that they are for are of
// other drivers. It speaks only of configurations for this driver and of those in its devices' place: others are no business of it.
func (j *Judge) Ignored(object runtime.Object, known Known) []Remark {
	var entries []claim.Entry
	var recipients []claim.Recipient
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		for i := range class.Spec.Config {
			entries = append(entries, claim.Entry{Path: field.NewPath("spec", "config").Index(i), Opaque: class.Spec.Config[i].Opaque})
		}
		recipients = []claim.Recipient{{Driver: j.facts(class.Spec.Selectors)["driver"]}}
	} else if devices, path := devicesOf(object); devices != nil {
		for i := range devices.Config {
			c := &devices.Config[i]
			entries = append(entries, claim.Entry{Path: path.Child("config").Index(i), Requests: c.Requests, Opaque: c.Opaque})
		}
		all := askedOf(devices.Requests, path.Child("requests"))
		for i := range all {
			recipients = append(recipients, claim.Recipient{Request: all[i].name, Driver: j.driver(&all[i], known)})
		}
	}
	var remarks []Remark
	for _, ignored := range claim.IgnoredEntries(entries, recipients) {
		if ignored.Driver == v1alpha1.DriverName || slices.Contains(ignored.Has, v1alpha1.DriverName) {
			remarks = append(remarks, Remark{Field: ignored.Path.Child("opaque").String(), Message: ignored.String()})
		}
	}
	return remarks
}

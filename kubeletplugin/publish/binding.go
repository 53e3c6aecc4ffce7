// SPDX-License-Identifier: Apache-2.0

package publish

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// BindingConditions are two conditions on a claim's devices. The scheduler waits for one of them before it binds the pod (KEP-5007): what
// the pod needs is there, or it will not come. Each kind has its own, since a claim with devices of two kinds waits for both.
func BindingConditions(kind device.Kind) (ready, failed string) {
	what := "Bitstream"
	if kind == device.KindGPU {
		what = "KernelCaches"
	}
	return v1alpha1.GroupName + "/" + what + "Ready", v1alpha1.GroupName + "/" + what + "Failed"
}

// bindLate marks devices whose pods are bound after the plugin has said that they can be.
func bindLate(devices []resourceapi.Device, kind device.Kind) {
	ready, failed := BindingConditions(kind)
	for i := range devices {
		devices[i].BindsToNode = new(true)
		devices[i].BindingConditions = []string{ready}
		devices[i].BindingFailureConditions = []string{failed}
	}
}

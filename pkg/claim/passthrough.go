// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CheckPassthrough refuses a device with the type vfio unless the class of its request allows passthrough. Such a device gives a pod the
// whole PCI function: what the pod writes to it can outlive the claim, and the driver that guards it is gone meanwhile. Resolve knows only
// the kind of a device, so that the feature which knows its type calls this, with the claim that Resolve had and before it plans an effect.
// A look (adminAccess) is not refused, since it binds nothing. The error is a *RefusedError.
func (r *Result) CheckPassthrough(c *resourceapi.ResourceClaim) error {
	if r.AdminAccess || r.Config.GPU != nil && r.Config.GPU.AllowPassthrough {
		return nil
	}
	asked, _ := requestOf(c, r.Request)
	return refuse(c, ReasonForbiddenByPolicy, field.ErrorList{field.Invalid(asked.path, asked.class, fmt.Sprintf(
		"request %s got %s, a whole PCI function for a virtual machine, which this DeviceClass did not allow when the claim was allocated, or "+
			"does not allow now: use a class that does, such as vfio.gpu.fettle.dev if the cluster has it, or ask an administrator to set "+
			"policy.allowPassthrough in a GPUConfig of the class, and then delete the pod, so that the claim is allocated again",
		r.Request, r.Device))})
}

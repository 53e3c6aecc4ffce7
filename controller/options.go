// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Options configure the controller.
type Options struct {
	// Namespace is the controller's own: its Leases, Secret and Service.
	Namespace string
	// MetricsAddress and ProbeAddress are where HTTP is served, ":8080"; "0" serves nothing.
	MetricsAddress, ProbeAddress string
	// Webhook serves the admission webhook and keeps its certificate. Without it, the chart renders no configuration for one.
	Webhook bool
	// WebhookPort is where the webhook listens.
	WebhookPort int
	// ManageCRDs applies and upgrades the CRDs.
	ManageCRDs bool
	// Classes are the choices about the DeviceClasses.
	Classes ClassOptions
}

// Validate returns every fault of the options, named by the flag that sets it.
func (o Options) Validate() error {
	var faults []error
	if len(validation.IsDNS1123Label(o.Namespace)) > 0 {
		faults = append(faults, fmt.Errorf("--namespace is %q: expected the name of the controller's namespace;"+
			" in a pod, set POD_NAMESPACE from metadata.namespace", o.Namespace))
	}
	if o.Webhook && (o.WebhookPort < 1 || o.WebhookPort > 65535) {
		faults = append(faults, fmt.Errorf("--webhook-port is %d: expected 1 to 65535", o.WebhookPort))
	}
	return errors.Join(faults...)
}

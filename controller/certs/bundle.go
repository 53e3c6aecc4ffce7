// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// Inject sets the caBundle of every webhook that calls the Service, and returns whether anything changed. It leaves webhooks that call
// another address as they are.
func Inject(config *admissionregistrationv1.ValidatingWebhookConfiguration, namespace, service string, bundle []byte) bool {
	changed := false
	for i := range config.Webhooks {
		target := &config.Webhooks[i].ClientConfig
		if target.Service == nil || target.Service.Namespace != namespace || target.Service.Name != service ||
			bytes.Equal(target.CABundle, bundle) {
			continue
		}
		target.CABundle = bytes.Clone(bundle)
		changed = true
	}
	return changed
}

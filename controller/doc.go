// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster side of Fettle: one elected replica applies the CRDs, keeps the DeviceClasses that the
// driver ships, prunes the status objects of nodes that are gone, says what the references of bitstreams mean and keeps the webhook's
// CA bundle; every replica serves the webhook. It never writes what a node's own plugin writes, and nothing on a node waits for it.
//
// The parts that need no shared state live below: [github.com/fettle-dev/fettle/controller/crd] upgrades CRDs,
// [github.com/fettle-dev/fettle/controller/certs] makes and rotates the serving certificate,
// [github.com/fettle-dev/fettle/controller/bitstream] reads bitstreams from registries,
// [github.com/fettle-dev/fettle/controller/webhook] answers admission reviews, and
// [github.com/fettle-dev/fettle/controller/uninstall] is the reverse of all of it.
package controller

const (
	// Name is the field owner, the leader's Lease, the Service and the reporting controller of Events.
	Name = "fettle-controller"
	// WebhookConfiguration is the ValidatingWebhookConfiguration that the chart renders and this package completes.
	WebhookConfiguration = "fettle-config"
	// TLSSecret holds the webhook's serving certificate, in the controller's own namespace.
	TLSSecret = "fettle-controller-tls" //nolint:gosec // a name, not a credential
	// PluginAccount is the kubelet plugin's ServiceAccount, in the controller's namespace.
	PluginAccount = "fettle-kubeletplugin"
	// ManagedByLabel with the value [Name] marks the DeviceClasses and ClusterDevicePresets that this controller may change,
	// and the Roles that it made.
	ManagedByLabel = "app.kubernetes.io/managed-by"
)

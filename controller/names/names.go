// SPDX-License-Identifier: Apache-2.0

// Package names has the names that the controller, its uninstall and the chart agree on.
package names

import "github.com/fettle-dev/fettle/pkg/stack"

const (
	// Controller is the field owner, the leader's Lease, the Service of its metrics and the reporting controller of Events.
	Controller = "fettle-controller"
	// Webhook is the Deployment and the Service of the webhook, in the controller's own namespace.
	Webhook = "fettle-webhook"
	// TLSSecret is where the controllers of earlier versions kept the webhook's certificate. An uninstall deletes it.
	TLSSecret = "fettle-controller-tls" //nolint:gosec // a name, not a credential
	// PluginAccount is the kubelet plugin's ServiceAccount, in the controller's namespace.
	PluginAccount = "fettle-kubeletplugin"
	// ComponentLabel with the value PluginComponent marks the pods of the kubelet plugin's DaemonSet, in the controller's namespace.
	ComponentLabel  = stack.PluginLabel
	PluginComponent = stack.PluginComponent
	// UninstallLease is held, in the controller's namespace, while an uninstall runs.
	UninstallLease = "fettle-uninstall"
	// ManagedByLabel with the value [Controller] marks the DeviceClasses and ClusterDevicePresets that the controller may change, and the
	// Roles that it made.
	ManagedByLabel = "app.kubernetes.io/managed-by"
)

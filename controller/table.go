// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/fettle-dev/fettle/controller/bitstreams"
	"github.com/fettle-dev/fettle/controller/claims"
	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/kernelcaches"
	"github.com/fettle-dev/fettle/controller/nodes"
	"github.com/fettle-dev/fettle/controller/nodetaints"
	"github.com/fettle-dev/fettle/controller/partitionpolicies"
	"github.com/fettle-dev/fettle/controller/presets"
	"github.com/fettle-dev/fettle/controller/priorityclasses"
	"github.com/fettle-dev/fettle/controller/reclaims"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/controller/stacks"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
	"github.com/fettle-dev/fettle/controller/waiting"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Parts are what the reconcilers of the table are built from.
type Parts struct {
	reconciler.Services

	Options Options
	// Registry reaches registries, and Scratch is where large files are read by way of.
	Registry *registry.Client
	Scratch  *bitstreams.Scratch
	// Policies reads the TrustPolicies.
	Policies *trustpolicies.Reader
	// Presets bounds the DevicePresets in the manager's cache.
	Presets *preset.Shares
	// Volumes plans the volumes of kernel caches.
	Volumes *volumes.Planner
	// Version asks the API server for its version.
	Version func() (string, error)
}

// Table lists every reconciler. To add one, write its package and add its row here; docs/design/adding.md has the recipe. Building a row
// reads and changes nothing.
func Table(p Parts) []reconciler.Row {
	s, o := p.Services, p.Options
	return []reconciler.Row{
		deviceclasses.New(s, o.Classes),
		nodes.New(s),
		claims.New(s),
		trustpolicies.New(s, p.Policies),
		bitstreams.New(s, bitstreams.Options{
			Registry: p.Registry, Policies: p.Policies.All, Scratch: p.Scratch, Interval: o.BitstreamInterval,
		}),
		kernelcaches.New(s, kernelcaches.Options{
			Registry: p.Registry, Policies: p.Policies.All, Volumes: p.Volumes, Interval: o.BitstreamInterval,
		}),
		volumes.New(s, p.Volumes),
		partitionpolicies.New(s, o.NodePartitions, o.SharedTaintKeys, o.NoExecuteTaintKeys),
		nodetaints.New(s, o.NodePartitions, o.NoExecuteTaintKeys),
		priorityclasses.New(s, o.NodePartitions),
		reclaims.New(s, o.NodePartitions, o.ReclaimGrace, p.Version),
		presets.New(s, o.AllowedHostPaths, p.Presets),
		presets.NewMissing(s),
		shippedpresets.New(s, o.PresetVendors),
		stacks.New(s, o.Checks, o.DriverNamespace),
		waiting.New(s, waiting.Options{Enabled: o.ExplainWaitingPods, Version: p.Version}),
	}
}

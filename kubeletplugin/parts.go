// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
)

// Each part of the plugin, a feature or what features share, takes part in what it has the method for. TestParts lists who has which.
type (
	// runner works in the background until ctx ends.
	runner interface {
		Run(ctx context.Context)
	}
	// watcher follows objects of the API server until ctx ends. stopped waits for its end.
	watcher interface {
		Watch(ctx context.Context) (stopped func())
	}
	// reasoner returns the stable reason of an error of its own, and whether a retry on this node soon would fail in the same way. It returns
	// "" for errors of others.
	reasoner interface {
		Reason(err error) (reason string, permanent bool)
	}
	// fieldsUser handles the report of an API server that does not know fields of published devices.
	fieldsUser interface {
		FieldsDropped(ctx context.Context, dropped *resourceslice.DroppedFieldsError)
	}
	// destroyer removes its files from a node without claims.
	destroyer interface {
		Destroy() error
	}
)

// parts are the features, and all else that works, watches or keeps files by itself, each once.
type parts []any

// having returns the parts that have the methods of T, in order.
func having[T any](all parts) (out []T) {
	for _, part := range all {
		if one, ok := part.(T); ok {
			out = append(out, one)
		}
	}
	return out
}

// reason returns the stable reason of a refused claim.
func (p *parts) reason(err error) string {
	reason, _ := p.judge(err)
	return reason
}

// isPermanent reports whether a retry on this node soon would fail in the same way.
func (p *parts) isPermanent(err error) bool {
	_, permanent := p.judge(err)
	return permanent
}

// judge returns the stable reason of an error that refuses a claim, and whether a retry on this node soon would fail in the same way.
func (p *parts) judge(err error) (reason string, permanent bool) {
	reason, permanent = prepare.Reason(err), prepare.Permanent(err)
	for _, part := range having[reasoner](*p) {
		of, stays := part.Reason(err)
		if reason == "" {
			reason = of
		}
		permanent = permanent || stays
	}
	if reason == "" {
		return "PrepareFailed", permanent
	}
	return reason, permanent
}

// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
)

// ErrNotAsked: what is asked for is not on the node, and the caller holds locks for which others would wait while a registry is asked.
var ErrNotAsked = errors.New("it is not on the node, and no registry is asked now")

type withoutNetwork struct{}

// WithoutNetwork returns a context with which no registry is asked. Whatever needs one fails with ErrNotAsked.
func WithoutNetwork(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutNetwork{}, true)
}

// CheckNetwork fails with ErrNotAsked if no registry may be asked.
func CheckNetwork(ctx context.Context) error {
	if ctx.Value(withoutNetwork{}) != nil {
		return ErrNotAsked
	}
	return nil
}

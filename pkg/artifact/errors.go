// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/fettle-dev/fettle/pkg/message"
)

// What an error of this package is about, for errors.Is. The first two are passed by asking again.
var (
	// ErrUnavailable: the registry cannot be reached, is overloaded or broke off. It is worth trying again.
	ErrUnavailable = errors.New("not available now")
	// ErrNoSpace: the store is full of what is pinned, or the disk of other things. Both may pass.
	ErrNoSpace = errors.New("no space")
	// ErrUnauthorized: the registry answers 401 or 403. Trying again changes nothing, but it passes when somebody changes the pull
	// secret or the rights behind it, so who watches those may try again then.
	ErrUnauthorized = errors.New("access refused")
	// ErrNotFound: the registry does not have it. It passes when somebody pushes it. Some registries say this of what the credentials
	// may not see.
	ErrNotFound = errors.New("not found")
	// ErrMismatch: the bytes are not those that the digest or size declares. What was read is dropped.
	ErrMismatch = errors.New("not what was declared")
	// ErrTooLarge: it exceeds what is read into memory, or the whole store.
	ErrTooLarge = errors.New("too large")
	// ErrPlainHTTP: the registry, or a redirect, wants plain http and the configuration does not allow it for this host.
	ErrPlainHTTP = errors.New("plain http refused")
	// ErrDestination: the host is at an address that the administrator's rules keep Fettle from contacting.
	ErrDestination = errors.New("not contacted")
	// ErrInvalid: a reference, manifest, secret or answer that is not what its specification asks for.
	ErrInvalid = errors.New("not valid")
)

// IsRetryable says whether the same call may succeed later without anybody changing the objects behind it. It also holds for a
// context that ended and for errors of the local disk. What several endpoints said is retryable if any of it is.
func IsRetryable(err error) bool {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNoSpace) {
		return err != nil
	}
	for _, terminal := range []error{ErrUnauthorized, ErrNotFound, ErrMismatch, ErrTooLarge, ErrPlainHTTP, ErrDestination, ErrInvalid} {
		if errors.Is(err, terminal) {
			return false
		}
	}
	return true
}

// localError is an error of the disk under the store.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

func (e *localError) Unwrap() error { return e.err }

// IsLocal says that the disk under the store failed, so that no other place to read from would help.
func IsLocal(err error) bool {
	_, local := errors.AsType[*localError](err)
	return local
}

// onDisk marks what the file system says.
func onDisk(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("%w: %w: free some of the store's disk, or lower the store's quota", ErrNoSpace, err)
	}
	return &localError{err}
}

const longestQuote = 200

// clip makes the first line of foreign text fit for an error message.
func clip(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return message.Line(s, longestQuote)
}

func quote(s string) string { return `"` + clip(s) + `"` }

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

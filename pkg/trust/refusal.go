// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/message"
)

// ErrRefused is what every refusal is, for errors.Is.
var ErrRefused = errors.New("refused")

// maxReasons is how many reasons a message has; whoever may push may make more.
const maxReasons = 8

// Refusal is why a policy does not let an image pass.
type Refusal struct {
	Image      string
	Policy     string
	Generation int64
	// Wanted is how many signers the policy asks for, and Found who they are so far.
	Wanted int
	Found  []Signature
	// Tried are the authorities.
	Tried []string
	// Reasons are what is wrong with each signature, at most so many that a person can read them, and More how many there are besides.
	Reasons []string
	More    int

	causes []error
}

// add notes what is wrong with one signature, or with all of a format where name is empty.
func (r *Refusal) add(format, name string, err error) {
	r.causes = append(r.causes, err)
	if len(r.Reasons) == maxReasons {
		r.More++
		return
	}
	r.Reasons = append(r.Reasons, strings.TrimSpace(format+" "+name)+": "+clip(err.Error()))
}

// unanswered is the error where something could not be read that may be read later: then nobody knows yet.
func (r *Refusal) unanswered(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("verify %s by TrustPolicy %s: %w", r.Image, r.Policy, context.Cause(ctx))
	}
	for _, cause := range r.causes {
		if errors.Is(cause, artifact.ErrUnavailable) {
			return fmt.Errorf("verify %s by TrustPolicy %s: %w", r.Image, r.Policy, cause)
		}
	}
	return nil
}

// Error says which image, by which policy, who was tried and why not.
func (r *Refusal) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is refused by TrustPolicy %s (generation %d)", r.Image, r.Policy, r.Generation)
	if len(r.Tried) > 0 {
		fmt.Fprintf(&b, ": %d of %d signers among %s", len(r.Found), r.Wanted, strings.Join(r.Tried, ", "))
	}
	for i, f := range r.Found {
		fmt.Fprintf(&b, "%s%s (%s)", map[bool]string{true: ": found ", false: ", "}[i == 0], f.Signer, f.Authority)
	}
	switch {
	case len(r.Reasons) > 0:
		fmt.Fprintf(&b, ": %s", strings.Join(r.Reasons, "; "))
	case len(r.Found) == 0:
		b.WriteString(": the repository has no signature of it")
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "; and %d more", r.More)
	}
	return b.String() + "; sign this digest as one of the authorities, or change the policy"
}

// Is says that it is ErrRefused.
func (r *Refusal) Is(target error) bool { return target == ErrRefused }

// Unwrap is what could not be read, for who waits for rights or for somebody's push.
func (r *Refusal) Unwrap() []error { return r.causes }

const longestText = 400

// clip makes foreign text fit for a message.
func clip(s string) string { return message.Line(s, longestText) }

// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// owners returns the reference by each name that it has at a registry that has mirrors: the reference itself if its registry has some,
// and, if its registry is a mirror, what it stands for. A mirror often reads with credentials of its own and asks nobody for any. So
// what it gives a tenant is first asked of each owner, with the tenant's own credentials. Registries of MirrorsOnly are not asked.
func (c *Client) owners(ref artifact.Reference) (owners []artifact.Reference, err error) {
	if len(c.mirrors[ref.Registry()]) > 0 && !c.mirrorsOnly[ref.Registry()] {
		owners = append(owners, ref)
	}
	for _, repository := range c.Mirrors().Origins(ref.Repository()) {
		owner, err := ref.In(repository)
		if err != nil {
			return nil, told{fmt.Errorf("%s is a mirror of %s: %w", ref.Registry(), repository, err)}
		}
		if !c.mirrorsOnly[owner.Registry()] {
			owners = append(owners, owner)
		}
	}
	return owners, nil
}

// askOwners asks every owner of a tenant's reference whether the credentials may read it. It returns the answer of the reference's own
// registry, or nil if that is no owner. Where an owner gives no answer, there is none for the tenant either.
func (s *Source) askOwners(ctx context.Context) (own *artifact.Descriptor, err error) {
	if !s.tenant {
		return nil, nil //nolint:nilnil // documented above
	}
	owners, err := s.client.owners(s.ref)
	if err != nil {
		return nil, err
	}
	for _, owner := range owners {
		d, err := s.headAt(ctx, owner)
		switch {
		case err != nil && owner != s.ref:
			return nil, fmt.Errorf("%s is a mirror of %s, which has to let you read it; name the image by %s: %w",
				s.ref.Registry(), owner.Registry(), owner.Repository(), err)
		case err != nil:
			return nil, err
		case owner == s.ref:
			own = &d
		}
	}
	s.allowed.Store(true)
	return own, nil
}

// headAt asks the registry that a reference names, and none of its mirrors.
func (s *Source) headAt(ctx context.Context, ref artifact.Reference) (d artifact.Descriptor, err error) {
	at := []endpoint{own(ref)}
	err = s.retryAt(ctx, at, nothing, func(ctx context.Context, at *session) error {
		d, err = at.head(ctx, ref)
		return err
	})
	return d, err
}

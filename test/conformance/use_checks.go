// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func useChecks() []Check {
	return []Check{
		{
			Name:    "use/double",
			Summary: "a device that a claim holds is refused to an unrelated claim, without harm to the holder, and given once it is free",
			needs:   needs{devices: 1, exclusive: true}, run: checkDoubleUse,
		},
		{
			Name:    "use/partly-held",
			Summary: "a claim for a free and a held device is refused and keeps nothing: the free one can be given to others at once",
			needs:   needs{devices: 2, exclusive: true}, run: checkPartlyHeld,
		},
		{
			Name:    "use/admin-access",
			Summary: "a claim with adminAccess is prepared beside the holder, neither takes the device nor frees it",
			needs:   needs{devices: 1, exclusive: true}, run: checkAdminAccess,
		},
		{
			Name:    "use/same-claim-again",
			Summary: "a claim that was unprepared is prepared again under the same UID, as the next pod of a named claim needs it",
			needs:   needs{devices: 1}, run: checkSameClaimAgain,
		},
		{
			Name:    "use/same-name-new-uid",
			Summary: "a new claim of a deleted claim's name is another claim: refused while the old one holds, untouched by its unprepare",
			needs:   needs{devices: 1, exclusive: true}, run: checkSameNameNewUID,
		},
	}
}

const heldByOther = "another claim that has nothing to do with it holds the device"

// pair are two claims for one device, the first of which holds it.
func (s *scene) pair(ctx context.Context, d device) (holder, other *resourceapi.ResourceClaim, a answer, err error) {
	if holder, err = s.claim(ctx, d); err != nil {
		return nil, nil, nil, err
	}
	if a, err = s.prepare(ctx, holder); err != nil {
		return nil, nil, nil, err
	}
	other, err = s.claim(ctx, d)
	return holder, other, a, err
}

// stillHeld wants a claim to be as it was when it was prepared.
func (s *scene) stillHeld(ctx context.Context, c *resourceapi.ResourceClaim, first answer, meant map[string]string, since string) error {
	now, err := s.meanings(first)
	if err != nil {
		return fmt.Errorf("claim %s %s: %w", c.Name, since, err)
	}
	if err := sameMeanings(meant, now, since); err != nil {
		return err
	}
	again, err := s.prepare(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", since, err)
	}
	return same(c, first, again)
}

func checkDoubleUse(ctx context.Context, s *scene) error {
	holder, other, a, err := s.pair(ctx, s.devices[0])
	if err != nil {
		return err
	}
	meant, err := s.meanings(a)
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.refusedAsHeld(ctx, other, heldByOther); err != nil {
			return err
		}
	}
	if err := s.stillHeld(ctx, holder, a, meant, "after another claim was refused"); err != nil {
		return err
	}
	// Kubelet unprepares what it could not prepare. That must not free the device.
	if err := s.unprepare(ctx, other); err != nil {
		return err
	}
	if err := s.refusedAsHeld(ctx, other, heldByOther+", and the end of a refused claim frees nothing"); err != nil {
		return err
	}
	if err := s.unprepare(ctx, holder); err != nil {
		return err
	}
	if _, err := s.prepareSoon(ctx, other); err != nil {
		return caused(CauseNotFreed, fmt.Errorf("after the holder was unprepared: %w", err))
	}
	return nil
}

func checkPartlyHeld(ctx context.Context, s *scene) error {
	holder, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, holder); err != nil {
		return err
	}
	both, err := s.claimFor(ctx, request{name: "main", devices: s.devices[:2]})
	if err != nil {
		return err
	}
	if err := s.refusedAsHeld(ctx, both, "another claim holds one of its devices"); err != nil {
		return err
	}
	free, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, free); err != nil {
		return fmt.Errorf("after a claim for this and a held device was refused: %w", err)
	}
	return nil
}

// checkAdminAccess needs a label on the namespace, which some clusters do not let everybody set.
func checkAdminAccess(ctx context.Context, s *scene) error {
	if err := s.labelNamespace(ctx); err != nil {
		return skip("the API server refuses the label that adminAccess needs: %v", err)
	}
	look, err := s.claimFor(ctx, request{name: "look", devices: s.devices[:1], admin: true})
	if err != nil {
		return skip("the API server refuses a claim with adminAccess: %v", err)
	}
	if !ptr.Deref(look.Spec.Devices.Requests[0].Exactly.AdminAccess, false) {
		return skip("the API server drops adminAccess, its feature gate is off")
	}
	// A look at a free device, which must not keep the holder away.
	if _, err := s.prepare(ctx, look); err != nil {
		return err
	}
	holder, other, a, err := s.pair(ctx, s.devices[0])
	if err != nil {
		return fmt.Errorf("beside a claim with adminAccess, which holds nothing: %w", err)
	}
	meant, err := s.meanings(a)
	if err != nil {
		return err
	}
	again, err := s.claimFor(ctx, request{name: "look", devices: s.devices[:1], admin: true})
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, again); err != nil {
		return fmt.Errorf("with adminAccess beside the holder: %w", err)
	}
	if err := s.unprepare(ctx, look, again); err != nil {
		return err
	}
	return errors.Join(
		s.refusedAsHeld(ctx, other, heldByOther+", and the end of a claim with adminAccess frees nothing"),
		s.stillHeld(ctx, holder, a, meant, "after claims with adminAccess came and went"),
	)
}

func (s *session) labelNamespace(ctx context.Context) error {
	namespaces := s.config.Kube.CoreV1().Namespaces()
	object, err := namespaces.Get(ctx, s.namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	object.Labels[resourceapi.DRAAdminNamespaceLabelKey] = "true"
	_, err = namespaces.Update(ctx, object, metav1.UpdateOptions{})
	return err
}

func checkSameClaimAgain(ctx context.Context, s *scene) error {
	c, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	for pod := range 3 {
		a, err := s.prepareSoon(ctx, c)
		if err != nil {
			return fmt.Errorf("for pod %d of the same claim: %w", pod+1, err)
		}
		if _, err := s.meanings(a); err != nil {
			return err
		}
		if err := s.unprepare(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func checkSameNameNewUID(ctx context.Context, s *scene) error {
	name := s.nextName()
	main := request{name: "main", devices: s.devices[:1]}
	old, err := s.create(ctx, name, main)
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, old); err != nil {
		return err
	}
	if err := s.remove(ctx, old); err != nil {
		return err
	}
	c, err := s.create(ctx, name, main)
	if err != nil {
		return err
	}
	if err := s.refusedAsHeld(ctx, c, "the claim that had its name is still prepared and holds the device"); err != nil {
		return err
	}
	if err := s.unprepare(ctx, old); err != nil {
		return err
	}
	a, err := s.prepareSoon(ctx, c)
	if err != nil {
		return fmt.Errorf("after the claim that had its name was unprepared: %w", err)
	}
	meant, err := s.meanings(a)
	if err != nil {
		return err
	}
	// Kubelet may repeat itself. The name is the same, the claim is not.
	if err := s.unprepare(ctx, old); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, c, a, meant, "after the claim that had its name was unprepared again"); err != nil {
		return err
	}
	other, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	return s.refusedAsHeld(ctx, other, heldByOther)
}

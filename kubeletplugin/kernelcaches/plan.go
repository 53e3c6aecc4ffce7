// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Name returns the feature's name in records.
func (f *Feature) Name() string { return "kernelCaches" }

// Kinds returns the step that mounts a cache.
func (f *Feature) Kinds() step.Kinds {
	return step.Kinds{cachemount.StepKind: f.Mounter.Kind(f.Store)}
}

// Fetch returns what brings the caches of a claim to the node, or nil if it names none. Plan says what became of optional ones.
func (f *Feature) Fetch(r *prepare.Request) func(context.Context) error {
	if r.AfterReboot {
		if r.Decision == nil {
			return nil
		}
		return func(ctx context.Context) error {
			uses, err := decodeUses(r.Decision)
			if err != nil {
				return err
			}
			return f.restoreAll(ctx, uses)
		}
	}
	requests := requestsOf(r.Allocation)
	if !f.Enabled || len(requests) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, q := range requests {
			for _, source := range q.config.KernelCaches {
				waiting, cancel := limit(ctx, source)
				if _, _, err := f.find(waiting, r.Claim, source); err != nil && !source.Optional {
					errs = append(errs, fmt.Errorf("request %s: %w", q.base, err))
				}
				cancel()
			}
		}
		return errors.Join(errs...)
	}
}

// Plan finds the caches that a claim names and plans their mounts. A decision of an earlier boot holds, even if the objects changed
// since.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	uses, err := f.uses(ctx, &r)
	if err != nil || len(uses) == 0 {
		return prepare.Contribution{}, err
	}
	c := prepare.Contribution{Edits: map[string]prepare.Edits{}}
	for _, request := range slices.Sorted(maps.Keys(uses)) {
		var own container.Edits
		givers := map[string]string{}
		for i := range uses[request] {
			use := &uses[request][i]
			s, err := use.Step()
			if err != nil {
				return prepare.Contribution{}, err
			}
			edits := f.Mounter.Edits(use)
			for _, m := range edits.Mounts {
				givers[m.ContainerPath] = use.String()
			}
			for _, e := range use.Env {
				givers[e.Name] = use.String()
			}
			own = own.With(edits)
			c.Steps = append(c.Steps, s)
		}
		c.Edits[request] = prepare.Edits{Own: own, Givers: givers}
	}
	if c.Decision, err = json.Marshal(uses); err != nil {
		return prepare.Contribution{}, fmt.Errorf("encode which caches claim %s has: %w", r.Claim.Name, err)
	}
	return c, nil
}

func (f *Feature) uses(ctx context.Context, r *prepare.Request) (map[string][]cachemount.Use, error) {
	if !r.AfterReboot {
		return f.decide(ctx, r.Claim, r.Allocation, r.Find)
	}
	uses, err := decodeUses(r.Decision)
	if err != nil {
		return nil, err
	}
	return uses, f.restoreAll(ctx, uses)
}

// Restore fetches the caches of a claim that the store lost.
func (f *Feature) Restore(ctx context.Context, r *record.Record) error {
	uses, err := decodeUses(r.Decisions[f.Name()])
	if err != nil {
		return err
	}
	return f.restoreAll(ctx, uses)
}

// decodeUses returns the caches that a decision names, by request.
func decodeUses(decision json.RawMessage) (map[string][]cachemount.Use, error) {
	if decision == nil {
		return nil, nil //nolint:nilnil // a claim without a decision has no cache
	}
	var uses map[string][]cachemount.Use
	if err := json.Unmarshal(decision, &uses); err != nil {
		return nil, fmt.Errorf("kernel caches, as recorded: %w", err)
	}
	return uses, nil
}

// Leftovers returns the steps that a claim whose record is lost may have had, by its pins in the store.
func (f *Feature) Leftovers(_ context.Context, uid string, _ device.Device) ([]step.Step, error) {
	trees, err := f.trees()
	var out []step.Step
	for i := range trees {
		if !slices.Contains(trees[i].Pins, uid) {
			continue
		}
		u := cachemount.Use{Tree: trees[i].Digest, Owner: uid, Key: trees[i].Digest.Hex()}
		s, err := u.Step()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, err
}

// Claims returns the claims that keep trees in the store.
func (f *Feature) Claims() ([]string, error) {
	trees, err := f.trees()
	var out []string
	for i := range trees {
		for _, owner := range trees[i].Pins {
			if !strings.HasPrefix(owner, retentionPrefix) && !slices.Contains(out, owner) {
				out = append(out, owner)
			}
		}
	}
	return out, err
}

// restore fetches the image of a claim's cache by its digest, if the store lost it. It takes its turn as any other fetch does: after a
// reboot all claims of a node may ask at once.
func (f *Feature) restore(ctx context.Context, u *cachemount.Use) error {
	store, err := f.Store()
	if err != nil {
		return err
	}
	if _, err := store.OpenTree(u.Tree); !artifact.NeedsUnpack(err) {
		return err // the tree is in the store, and its new last use keeps it there until the step pins it
	}
	ref, err := artifact.ParseReference(u.Reference)
	if err != nil {
		return err
	}
	if err := artifact.CheckNetwork(ctx); err != nil {
		return fmt.Errorf("%s %w: %w", u, cachemount.ErrNotReady, err)
	}
	keys, err := f.Credentials(ctx, u.SecretsIn, u.Secrets)
	if err != nil {
		return fmt.Errorf("%s %w: %w", u, cachemount.ErrNotReady, err)
	}
	received := &atomic.Int64{}
	src := f.source(u.Namespace, ref, keys)
	src.CountInto(received)
	err = f.Unpacking.Do(ctx, u.Namespace, pace(received), func(ctx context.Context) error {
		image, err := artifact.ReadImage(ctx, src, artifact.Descriptor{Digest: u.Tree}, "linux/"+runtime.GOARCH)
		if err == nil {
			_, err = f.unpack(ctx, src, image, u.Namespace, false)
		}
		return err
	})
	if err != nil {
		return fetchError(u, err)
	}
	return nil
}

// restoreAll restores the caches of a claim that the store lost.
func (f *Feature) restoreAll(ctx context.Context, uses map[string][]cachemount.Use) error {
	var errs []error
	for _, request := range slices.Sorted(maps.Keys(uses)) {
		for i := range uses[request] {
			if err := f.restore(ctx, &uses[request][i]); err != nil {
				errs = append(errs, fmt.Errorf("request %s: %w", request, err))
			}
		}
	}
	return errors.Join(errs...)
}

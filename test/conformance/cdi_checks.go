// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
)

func cdiChecks() []Check {
	return []Check{
		{
			Name:    "cdi/resolve",
			Summary: "every CDI id of an answer is a qualified name and resolves in the CDI directories when the answer comes",
			needs:   needs{devices: 1, cdi: true}, run: checkResolve,
		},
		{
			Name:    "cdi/valid",
			Summary: "spec files that appear while a claim is prepared are read by the CDI library without an error",
			needs:   needs{devices: 2, cdi: true}, run: checkSpecsValid,
		},
		{
			Name:    "cdi/inject",
			Summary: "a container can be given the ids: device nodes are there or described in full, mounted host paths exist",
			needs:   needs{devices: 1, cdi: true}, run: checkInject,
		},
		{
			Name:    "cdi/unique",
			Summary: "no id comes twice in a claim's answer, and different devices differ in their ids",
			needs:   needs{devices: 2, cdi: true}, run: checkUnique,
		},
		{
			Name:    "cdi/immutable",
			Summary: "what an id means stays the same while its claim holds it, whatever other claims do, and a reused id means the same",
			needs:   needs{devices: 2, cdi: true}, run: checkImmutable,
		},
		{
			Name:    "cdi/wiped",
			Summary: "spec files that vanished under a live kubelet are back, with the same ids and meanings, after the next prepare",
			needs:   needs{devices: 1, cdi: true}, run: checkWiped,
		},
	}
}

// withIDs prepares a claim and returns what its ids mean. A plugin that uses no CDI has nothing to check here.
func (s *scene) withIDs(ctx context.Context, devices ...device) (*resourceapi.ResourceClaim, answer, map[string]string, error) {
	c, err := s.claimFor(ctx, request{name: "main", devices: devices})
	if err != nil {
		return nil, nil, nil, err
	}
	a, err := s.prepare(ctx, c)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(ids(a)) == 0 {
		return nil, nil, nil, skip("the plugin answers without CDI ids")
	}
	meant, err := s.meanings(a)
	return c, a, meant, err
}

func checkResolve(ctx context.Context, s *scene) error {
	_, _, _, err := s.withIDs(ctx, s.devices[:min(len(s.devices), 2)]...)
	return err
}

func checkSpecsValid(ctx context.Context, s *scene) error {
	before, err := listFiles(s.config.CDIDirs)
	if err != nil {
		return err
	}
	_, a, _, err := s.withIDs(ctx, s.devices[:2]...)
	if err != nil {
		return err
	}
	after, err := listFiles(s.config.CDIDirs)
	if err != nil {
		return err
	}
	cache, err := s.cache()
	if err != nil {
		return err
	}
	used, err := s.specPaths(a)
	if err != nil {
		return err
	}
	return invalid(cache, append(after.without(before), used...))
}

// invalid is what the library says against some of its files.
func invalid(cache *cdiapi.Cache, paths []string) error {
	var errs []error
	problems := cache.GetErrors()
	for _, path := range slices.Sorted(maps.Keys(problems)) {
		if slices.Contains(paths, path) {
			errs = append(errs, fmt.Errorf("spec file %s: %w", path, errors.Join(problems[path]...)))
		}
	}
	return errors.Join(errs...)
}

func checkInject(ctx context.Context, s *scene) error {
	_, a, _, err := s.withIDs(ctx, s.devices[:1]...)
	if err != nil {
		return err
	}
	spec, err := s.inject(a)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range spec.Mounts {
		if m.Type == "" || m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
			if _, err := os.Stat(m.Source); err != nil {
				errs = append(errs, fmt.Errorf("the mount at %s needs a host path: %w", m.Destination, err))
			}
		}
	}
	return errors.Join(errs...)
}

// repeatedIDs says what an id that comes twice does. Sources: Cache.InjectDevices of CDI's library 1.1, which appends the edits of each id
// that it is given; WithCDI in internal/cri/opts/spec_linux.go of containerd 2.4.2, which leaves repeated ids out before it calls it.
const repeatedIDs = "a runtime that gives the ids to CDI's library as they come applies the edits twice, so that mounts and hooks come " +
	"twice. containerd leaves repeated ids out (2.4.2); other runtimes were not tried"

func checkUnique(ctx context.Context, s *scene) error {
	_, a, _, err := s.withIDs(ctx, s.devices[:2]...)
	if err != nil {
		return err
	}
	var errs []error
	all := ids(a)
	for i, id := range all {
		if slices.Contains(all[:i], id) {
			errs = append(errs, fmt.Errorf("id %s comes twice: %s", id, repeatedIDs))
		}
	}
	sets := map[string]device{}
	for _, d := range a.GetDevices() {
		this, key := device{d.GetPoolName(), d.GetDeviceName()}, fmt.Sprintf("%q", d.GetCdiDeviceIds())
		if other, ok := sets[key]; ok && len(d.GetCdiDeviceIds()) > 0 {
			errs = append(errs, fmt.Errorf("devices %s and %s have the same ids %s", other, this, key))
		}
		sets[key] = this
	}
	return errors.Join(errs...)
}

func checkImmutable(ctx context.Context, s *scene) error {
	c, a, meant, err := s.withIDs(ctx, s.devices[0])
	if err != nil {
		return err
	}
	other, err := s.claim(ctx, s.devices[1])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, other); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, c, a, meant, "after another claim was prepared"); err != nil {
		return err
	}
	if err := s.unprepare(ctx, other); err != nil {
		return err
	}
	if err := s.stillHeld(ctx, c, a, meant, "after another claim was unprepared"); err != nil {
		return err
	}
	if err := s.unprepare(ctx, c); err != nil {
		return err
	}
	next, err := s.claim(ctx, s.devices[0])
	if err != nil {
		return err
	}
	a, err = s.prepareSoon(ctx, next)
	if err != nil {
		return err
	}
	now, err := s.meanings(a)
	if err != nil {
		return err
	}
	return sameMeanings(meant, now, "for the next claim")
}

// checkWiped removes only files that define the claim's ids: those of others are not the run's to lose. What was there before the
// run is put back where the plugin does not do it.
func checkWiped(ctx context.Context, s *scene) (err error) {
	c, a, meant, err := s.withIDs(ctx, s.devices[:1]...)
	if err != nil {
		return err
	}
	paths, err := s.specPaths(a)
	if err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("save a spec file: %w", err)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("wipe a spec file: %w", err)
		}
		if s.before[filepath.Clean(path)] {
			defer func() { err = errors.Join(err, putBack(path, content)) }()
		}
	}
	since := "after its spec files were wiped and it was prepared again"
	again, err := s.prepare(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", since, err)
	}
	if err := same(c, a, again); err != nil {
		return err
	}
	return s.stillHeld(ctx, c, a, meant, since)
}

// putBack writes a file that is not there.
func putBack(path string, content []byte) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(path, content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("put the spec file back: %w", err)
	}
	return nil
}

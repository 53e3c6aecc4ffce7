// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// files are paths.
type files map[string]bool

// listFiles lists what is in the CDI directories. One that does not exist is empty.
func listFiles(dirs []string) (files, error) {
	out := files{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the CDI directory: %w", err)
		}
		for _, entry := range entries {
			out[filepath.Join(dir, entry.Name())] = true
		}
	}
	return out, nil
}

// without are the files that are not in other, sorted.
func (f files) without(other files) []string {
	left := maps.Clone(f)
	maps.DeleteFunc(left, func(name string, _ bool) bool { return other[name] })
	return slices.Sorted(maps.Keys(left))
}

// cache reads the CDI directories anew, as a container runtime does when it starts.
func (s *session) cache() (*cdiapi.Cache, error) {
	return cdiapi.NewCache(cdiapi.WithSpecDirs(s.config.CDIDirs...), cdiapi.WithAutoRefresh(false))
}

// ids are the CDI ids of an answer, in its order.
func ids(a answer) []string {
	var out []string
	for _, d := range a.GetDevices() {
		out = append(out, d.GetCdiDeviceIds()...)
	}
	return out
}

// meanings are digests of what a container gets for each CDI id of an answer: the edits of the device and of its whole spec. An id
// that does not resolve is an error, with the runtime library's reason where it has one. Without CDI directories there are none.
func (s *session) meanings(a answer) (map[string]string, error) {
	if len(s.config.CDIDirs) == 0 {
		return nil, nil //nolint:nilnil // documented above: nobody can tell what they mean
	}
	cache, err := s.cache()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var errs []error
	for _, id := range ids(a) {
		if _, _, _, err := parser.ParseQualifiedName(id); err != nil {
			errs = append(errs, fmt.Errorf("CDI id: %w", err))
			continue
		}
		found := cache.GetDevice(id)
		if found == nil {
			unresolved := fmt.Errorf("CDI id %s does not resolve in %s%s", id, list(s.config.CDIDirs), reasons(cache))
			errs = append(errs, caused(CauseUnresolved, unresolved))
			continue
		}
		out[id], err = digest(found)
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// reasons are what the library says about files that it could not use.
func reasons(cache *cdiapi.Cache) string {
	var text string
	problems := cache.GetErrors()
	for _, path := range slices.Sorted(maps.Keys(problems)) {
		text += fmt.Sprintf("; %s: %v", path, errors.Join(problems[path]...))
	}
	return text
}

func digest(d *cdiapi.Device) (string, error) {
	content, err := json.Marshal([]specs.ContainerEdits{d.GetSpec().ContainerEdits, d.ContainerEdits})
	if err != nil {
		return "", fmt.Errorf("digest the edits of %s: %w", d.GetQualifiedName(), err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// sameMeanings wants every id of the first that the second has to mean the same.
func sameMeanings(first, second map[string]string, since string) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(first)) {
		if now, ok := second[id]; ok && now != first[id] {
			errs = append(errs, fmt.Errorf("CDI id %s means something else %s: kubelet hands the same id to a container that restarts, "+
				"and runtimes cache what it means", id, since))
		}
	}
	return caused(CauseMeaningChanges, errors.Join(errs...))
}

// specPaths are the files that define the ids of an answer.
func (s *session) specPaths(a answer) ([]string, error) {
	cache, err := s.cache()
	if err != nil {
		return nil, err
	}
	paths := files{}
	for _, id := range ids(a) {
		if found := cache.GetDevice(id); found != nil {
			paths[found.GetSpec().GetPath()] = true
		}
	}
	return slices.Sorted(maps.Keys(paths)), nil
}

// inject makes a container's configuration of an answer's ids, as the runtime does, and returns it.
func (s *session) inject(a answer) (*oci.Spec, error) {
	cache, err := s.cache()
	if err != nil {
		return nil, err
	}
	spec := &oci.Spec{}
	if _, err := cache.InjectDevices(spec, ids(a)...); err != nil {
		return nil, fmt.Errorf("what a container runtime does with the ids %s: %w", list(ids(a)), err)
	}
	return spec, nil
}

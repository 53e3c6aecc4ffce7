// SPDX-License-Identifier: Apache-2.0

package registryname

import "strings"

// Mirrors lists the mirrors of registries, HOST, HOST:PORT or either with a /PATH, by the host of the registry.
type Mirrors map[string][]string

// Origins returns the repositories, as REGISTRY/PATH, whose content a repository has because its registry is a mirror of theirs. The order
// is not fixed. A mirror of a mirror counts, too: what is pulled by one name may have come by the other.
func (m Mirrors) Origins(repository string) (origins []string) {
	seen := map[string]bool{repository: true}
	for pending := []string{repository}; len(pending) > 0; pending = pending[1:] {
		for _, origin := range m.mirrored(pending[0]) {
			if !seen[origin] {
				seen[origin] = true
				origins, pending = append(origins, origin), append(pending, origin)
			}
		}
	}
	return origins
}

// mirrored returns the repositories of which a repository is a mirror.
func (m Mirrors) mirrored(repository string) (origins []string) {
	for host, mirrors := range m {
		for _, mirror := range mirrors {
			if path, found := strings.CutPrefix(repository, Repository(mirror)+"/"); found {
				origins = append(origins, Host(host)+"/"+path)
			}
		}
	}
	return origins
}

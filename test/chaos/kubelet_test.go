// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// kubeletState is the file in which kubelet keeps which claims it has asked for and not been told the release of. It is there
// before the first Prepare of a claim, and replaced as a whole at each change.
type kubeletState struct {
	path   string
	mu     sync.Mutex
	claims map[string]stateEntry
}

// stateEntry has the members that kubelet writes for a claim, but for its devices.
type stateEntry struct {
	ClaimUID, ClaimName, Namespace string
	PodUIDs, DriverState           map[string]struct{}
}

func newKubeletState(dir string) *kubeletState {
	return &kubeletState{path: filepath.Join(dir, "dra_manager_state"), claims: map[string]stateEntry{}}
}

func (k *kubeletState) add(claims []*tenancy) error {
	return k.change(func() {
		for _, t := range claims {
			k.claims[t.uid] = stateEntry{ClaimUID: t.uid, ClaimName: t.claim, Namespace: namespace}
		}
	})
}

func (k *kubeletState) forget(claims []*tenancy) error {
	return k.change(func() {
		for _, t := range claims {
			delete(k.claims, t.uid)
		}
	})
}

func (k *kubeletState) change(apply func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	apply()
	data, err := json.Marshal(map[string]any{
		"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
		"ClaimInfoStateList": slices.Collect(maps.Values(k.claims)),
	})
	if err != nil {
		return err
	}
	file, err := json.Marshal(map[string]any{"Data": string(data), "Checksum": crc32.ChecksumIEEE(data)})
	if err != nil {
		return err
	}
	if err := os.WriteFile(k.path+".new", file, 0o600); err != nil {
		return err
	}
	return os.Rename(k.path+".new", k.path)
}

// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"encoding/json"
	"os"
	"reflect"
	"sync/atomic"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// memoryFile is the file, below the state directory, of what Review last knew.
const memoryFile = "cards.json"

// memory is what the last Review knew of the divided GPUs. A GPU that a virtual machine has is hidden from its driver, and the library may
// not answer: what a claim holds of the GPU must stay published all the same. It outlives the process.
type memory struct {
	path string
	remembered
	// destroyed says that the file was removed and not written again since.
	destroyed atomic.Bool
}

type remembered struct {
	Version int `json:"version"`
	// Counters is the form of slices in which the API server kept counters.
	Counters partition.Form `json:"counters,omitempty"`
	// Kept is what the API server kept then.
	Kept  partition.Kept            `json:"kept,omitzero"`
	Cards map[string]rememberedCard `json:"cards,omitempty"`
}

type rememberedCard struct {
	Physical discover.Physical  `json:"physical"`
	Settings partition.Settings `json:"settings"`
	// Policy is the PartitionPolicy that held for the GPU, empty if none did.
	Policy string `json:"policy,omitempty"`
}

const memoryVersion = 1

// openMemory reads the file. One that cannot be used is as none: it only tells what the API server and the machine tell as well, later.
func openMemory(path string) *memory {
	m := &memory{path: path}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &m.remembered)
	}
	if err != nil || m.Version != memoryVersion {
		m.remembered = remembered{Version: memoryVersion}
	}
	return m
}

// keep writes what is known now, if it differs from the file. On a retired node nothing is written again after the file was destroyed.
func (m *memory) keep(now remembered, retired bool) error {
	now.Version = memoryVersion
	destroyed := m.destroyed.Load()
	if destroyed && retired {
		m.remembered = now
		return nil
	}
	if !destroyed && reflect.DeepEqual(now, m.remembered) {
		return nil
	}
	data, err := json.Marshal(now)
	if err == nil {
		err = disk.ReplaceDurably(disk.OS{}, m.path, append(data, '\n'), 0o600)
	}
	if err == nil {
		m.remembered = now
		m.destroyed.Store(false)
	}
	return err
}

// destroy removes the file. What is remembered holds on in this process.
func (m *memory) destroy() error {
	m.destroyed.Store(true)
	return removeAll(m.path)
}

// remembered returns what the next process must know of a decision.
func (d *decision) remembered(now *setting) remembered {
	next := remembered{Counters: now.counters, Kept: now.kept}
	for name, c := range d.cards {
		if next.Cards == nil {
			next.Cards = map[string]rememberedCard{}
		}
		physical := c.Physical
		physical.Device = c.known
		physical.Device.Edits = container.Edits{}
		if c.held[partition.VFIOName(name)] {
			// The version before publishes nothing while a card that it remembers has no edits.
			physical.Device.Edits.Made = []string{name}
		}
		next.Cards[name] = rememberedCard{Physical: physical, Settings: c.settings, Policy: c.policy}
	}
	return next
}

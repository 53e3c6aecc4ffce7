// SPDX-License-Identifier: Apache-2.0

package nvmlsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
)

// State is everything that the machine's GPUs and library remember.
type State struct {
	// Tree is the host tree in which the capability files are kept. A relative one begins at the directory of the state's file, so that
	// processes that have the tree at different places agree. Empty: nowhere.
	Tree  string
	Cards []*Card
	// Minors are those that capabilities get, the smallest free one first. Empty: they are numbered as the driver does. Containers of a
	// simulated node can open few character devices.
	Minors []int
	// Numbered are the minors of the capabilities that there are, by the directories of their access files.
	Numbered map[string]int
	// ToolVersion is the version of nvidia-smi. Empty: DriverVersion.
	ToolVersion string
	// AsksAdmin has the driver refuse to set a compute mode or a time slice to a process without CAP_SYS_ADMIN, as the real one does. Tests
	// that run as any user leave it off.
	AsksAdmin bool
	// Faults are the script, Calls the number of calls since it was set, by function; Total are all.
	Faults []Fault
	Calls  map[string]int
	Total  int
	// Changes lists what the library was asked to change since then, as "Function argument". LastChange is the number of the last such call.
	Changes    []string
	LastChange int
	// Refused lists those that were not done, as "Function argument: return".
	Refused []string

	// Xids are the critical errors that the driver reported, oldest first. A process is told of those since it began to wait.
	Xids []Xid

	// root is Tree for this process.
	root string
}

// Xid is a critical error of a card.
type Xid struct {
	BusID  string
	Number uint64
}

// DriverVersion is the version of the simulated driver and its library.
const DriverVersion = "580.95.05"

// Machine is a simulated machine, by the file of its state.
type Machine struct{ File string }

// New makes a machine with cards of some models, at 0000:41:00.0, 0000:42:00.0 and so on. It writes the files of the driver into the host
// tree, which may be empty.
func New(file, tree string, names ...string) (Machine, error) {
	m := Machine{File: file}
	s := &State{Tree: tree, Calls: map[string]int{}}
	for i, name := range names {
		if _, ok := models()[name]; !ok {
			return m, fmt.Errorf("no model %q", name)
		}
		s.Cards = append(s.Cards, &Card{
			Model: name, BusID: fmt.Sprintf("00000000:%02X:00.0", 0x41+i), UUID: fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", i+1), Minor: i,
		})
	}
	return m, m.begin(s)
}

// begin writes the driver's files and the state.
func (m Machine) begin(s *State) error {
	s.root = m.rootOf(s)
	return errors.Join(s.writeTree(nil), s.writeControls(), s.writeMinors(), m.save(s))
}

// Change gives the state to a function, while no other process has it, and keeps what the function made of it and of the host tree.
func (m Machine) Change(do func(*State) error) (err error) {
	lock, err := os.OpenFile(m.File+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := filelock.Flock(lock, filelock.Exclusive); err != nil {
		return err
	}
	s, err := m.load()
	if err != nil {
		return err
	}
	before := s.capabilities()
	if err := do(s); err != nil {
		return err
	}
	s.number()
	if err := s.writeTree(before); err != nil {
		return err
	}
	return m.save(s)
}

// Look returns the state as it is now.
func (m Machine) Look() (*State, error) {
	var out *State
	err := m.Change(func(s *State) error {
		s.followDrivers()
		out = s
		return nil
	})
	return out, err
}

func (m Machine) load() (*State, error) {
	data, err := os.ReadFile(m.File)
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read the simulated machine %s: %w", m.File, err)
	}
	s.root = m.rootOf(s)
	return s, nil
}

// rootOf is where this process has the host tree.
func (m Machine) rootOf(s *State) string {
	if s.Tree == "" || filepath.IsAbs(s.Tree) {
		return s.Tree
	}
	return filepath.Join(filepath.Dir(m.File), s.Tree)
}

func (m Machine) save(s *State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return disk.Replace(disk.OS{}, m.File, data, 0o600)
}

// Card finds a card by any form of its bus id. Absent ones are not found.
func (s *State) Card(busID string) (*Card, Return) {
	for _, c := range s.Cards {
		if sameBusID(c.BusID, busID) && !c.Absent {
			if c.Lost {
				return nil, GPUIsLost
			}
			return c, Success
		}
	}
	return nil, NotFound
}

// Reset resets one GPU, which may get another minor.
func (m Machine) Reset(card, minor int) error {
	return m.Change(func(s *State) error {
		s.Cards[card].reset()
		s.Cards[card].Minor = minor
		return nil
	})
}

// Report has the driver report a critical error of a card.
func (m Machine) Report(card int, xid uint64) error {
	return m.Change(func(s *State) error {
		s.Xids = append(s.Xids, Xid{BusID: s.Cards[card].BusID, Number: xid})
		return nil
	})
}

// Reboot restarts the machine. MIG mode lasts only on GPUs where it needs a reset.
func (m Machine) Reboot() error {
	return m.Change(func(s *State) error {
		for _, c := range s.Cards {
			c.Pending = c.Pending && c.Kind().NeedsReset
			c.Clients = 0
			c.reset()
		}
		return nil
	})
}

// SwitchOn puts all cards into MIG mode.
func (m Machine) SwitchOn() error {
	return m.Change(func(s *State) error {
		for _, c := range s.Cards {
			c.MIG, c.Pending = true, true
		}
		return nil
	})
}

// Hold starts a process in every compute instance of the card with this UUID, a negative number ends processes.
func (m Machine) Hold(uuid string, processes int) error {
	return m.Change(func(s *State) error {
		for _, c := range s.Cards {
			for _, one := range c.Instances {
				for _, compute := range one.Compute {
					if compute.UUID == uuid {
						compute.Processes += processes
						return nil
					}
				}
			}
		}
		return fmt.Errorf("no compute instance %s", uuid)
	})
}

// Use starts processes on a whole card, as far as its compute mode lets it; a negative number ends processes.
func (m Machine) Use(card, processes int) error {
	return m.Change(func(s *State) error {
		return s.Cards[card].use(processes)
	})
}

// Foreign makes an instance as an administrator does by hand, with compute instances of so many slices each. It returns its id.
func (m Machine) Foreign(card int, profileID, start uint32, compute ...uint32) (id uint32, err error) {
	err = m.Change(func(s *State) error {
		c := s.Cards[card]
		p, ret := c.ProfileByID(profileID)
		if ret != Success {
			return fmt.Errorf("no profile %d", profileID)
		}
		one, ret := c.Create(profileID, start, p.Size)
		if ret != Success {
			return fmt.Errorf("create an instance of profile %d at %d: %d", profileID, start, ret)
		}
		for _, slices := range compute {
			if _, ret := c.CreateCompute(one, slices); ret != Success {
				return fmt.Errorf("create a compute instance of %d slices: %d", slices, ret)
			}
		}
		id = one.ID
		return nil
	})
	return id, err
}

// Script replaces the faults, and counts calls from now on.
func (m Machine) Script(faults ...Fault) error {
	return m.Change(func(s *State) error {
		s.Faults, s.Calls, s.Total, s.Changes, s.LastChange, s.Refused = faults, map[string]int{}, 0, nil, 0, nil
		return nil
	})
}

// DefaultFile is the file of a machine's state below a directory.
func DefaultFile(dir string) string { return filepath.Join(dir, "nvmlsim.json") }

// WritableDir is the directory of the state's file below a host tree that containers have without the right to write. It is a mount of its
// own, which they may write to.
const WritableDir = "nvmlsim"

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// InUseError says that another claim holds a device. The scheduler should have prevented that; the plugin is the last barrier (see the
// contract of kubeletplugin.DRAPlugin).
type InUseError struct {
	Pool, Device string
	// Owner is the record of the claim that holds the device. If that record is damaged, Owner has only a UID.
	Owner *Record
	// Differs says that the device may be shared, but the holder has another configuration.
	Differs bool
	// Have is the setting of the holder, Want that of the claim that asked for the device. They are empty if they are not known.
	Have, Want string
	// Namespace is that of the claim that asked for the device.
	Namespace string
	// Deleted says that the holder was deleted while its pod runs, so that the scheduler took the device for free.
	Deleted bool
}

// Holder names the claim that holds the device, for the node's log.
func (e *InUseError) Holder() string { return e.Owner.claim() }

func (r *Record) claim() string {
	return fmt.Sprintf("claim %s/%s (UID %s)", r.Namespace, r.Name, r.UID)
}

// NamedTo names the record's claim to its own namespace, and to no other.
func (r *Record) NamedTo(namespace string) string {
	if r.Namespace == namespace {
		return r.claim()
	}
	return "another claim"
}

// Error names the device, and what ends the conflict. It names the holder only to the holder's own namespace.
func (e *InUseError) Error() string {
	how := "is held"
	if e.Differs {
		how = "is shared with another configuration"
		if e.Have != "" && e.Want != "" {
			how += fmt.Sprintf(" (%s, not %s)", e.Have, e.Want)
		}
	}
	return fmt.Sprintf("device %s/%s %s by %s: retried until then; delete the pod to let the scheduler choose another device",
		e.Pool, e.Device, how, e.Owner.HolderTo(e.Namespace, e.Deleted))
}

// HolderTo names the record's claim as the holder of a device to a namespace, and says until when it holds it.
func (r *Record) HolderTo(namespace string, deleted bool) string {
	until := "until kubelet unprepares it"
	switch {
	case deleted:
		until = "that was deleted while its pod runs, until that pod ends"
	case r.Phase == Releasing:
		until = "until what it did is undone, which is tried again in the background"
	}
	return r.NamedTo(namespace) + " " + until
}

// whole is the target of a link if the claim does not share the device.
const whole = "whole"

// target returns the target of the link: how the claim holds the device.
func (d *Device) target() string {
	if d.ShareID == "" {
		return whole
	}
	return "shared:" + d.Effect
}

// Holders lists the claims that hold a device, including claims in doubt.
func (s *Store) Holders(pool, name string) ([]string, error) {
	entries, err := s.fs.ReadDir(s.deviceDir(pool, name))
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("look up who holds device %s/%s: %w", pool, name, err)
	}
	var uids []string
	for _, e := range entries {
		holder, err := s.holder(pool, name, e.Name())
		if err != nil {
			return nil, err
		}
		if holder != nil && !holder.Released() {
			uids = append(uids, e.Name())
		}
	}
	return uids, nil
}

// Held reports whether a claim holds a device. It returns true if that cannot be read.
func (s *Store) Held(pool, name string) bool {
	holders, err := s.Holders(pool, name)
	return err != nil || len(holders) > 0
}

// HeldBy reports whether a claim holds a device. It returns true if that cannot be read.
func (s *Store) HeldBy(pool, name, uid string) bool {
	r, err := s.holder(pool, name, uid)
	return err != nil || r != nil && !r.Released()
}

// HeldOf returns those of a pool's devices that claims hold. One that cannot be read counts as held.
func (s *Store) HeldOf(pool string, names []string) (map[string]bool, error) {
	entries, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir))
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("list the devices that claims hold: %w", err)
	}
	linked := make(map[string]bool, len(entries))
	for _, e := range entries {
		linked[e.Name()] = true
	}
	held := map[string]bool{}
	for _, name := range names {
		if linked[deviceDir(pool, name)] && s.Held(pool, name) {
			held[name] = true
		}
	}
	return held, nil
}

// HeldIn lists the devices of a pool that records hold, in no order. A device with a name that is too long for a file is among them if the
// record of a claim that holds it can be read.
func (s *Store) HeldIn(pool string) ([]string, error) {
	entries, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir))
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("list the devices of pool %s that claims hold: %w", pool, err)
	}
	var names []string
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), deviceDir(pool, ""))
		if !ok && strings.HasPrefix(e.Name(), hashed) {
			name, ok, err = nameOf(s, pool, e.Name())
		}
		if err != nil {
			return nil, err
		}
		if ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// nameOf returns the name of the device of a pool that has a directory with a hashed name, by the record of a claim that holds it.
func nameOf(s *Store, pool, dir string) (name string, ok bool, err error) {
	links, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir, dir))
	if ignoreMissing(err) != nil {
		return "", false, fmt.Errorf("list who holds a device of pool %s: %w", pool, err)
	}
	for _, link := range links {
		r, err := s.Load(link.Name())
		if err != nil {
			continue // another claim may name it
		}
		for i := range r.Devices {
			if d := &r.Devices[i]; d.Pool == pool && !d.AdminAccess && deviceDir(pool, d.Name) == dir {
				return d.Name, true, nil
			}
		}
	}
	return "", false, nil
}

// SharedOf returns those of a pool's devices of which claims hold shares.
func (s *Store) SharedOf(pool string, names []string) (map[string]bool, error) {
	shared := map[string]bool{}
	for _, name := range names {
		holders, err := s.Holders(pool, name)
		if err != nil {
			return nil, err
		}
		for _, uid := range holders {
			how, err := s.fs.Readlink(s.ownerPath(pool, name, uid))
			if ignoreMissing(err) != nil {
				return nil, fmt.Errorf("look up how claim %s holds device %s/%s: %w", uid, pool, name, err)
			}
			if err == nil && how != whole {
				shared[name] = true
			}
		}
	}
	return shared, nil
}

// holder returns the record behind a link, which may be released. It returns nil for a leftover link: its record is gone, or belongs to a
// later life of the claim.
func (s *Store) holder(pool, name, uid string) (*Record, error) {
	r, err := s.Load(uid)
	switch {
	case err == nil && r.Holds(pool, name):
		return r, nil
	case err == nil && !s.InDoubt(uid): // else the record was made again without the devices that the machine did not list
		return nil, nil //nolint:nilnil // documented above
	case errors.Is(err, fs.ErrNotExist) && !s.InDoubt(uid):
		return nil, nil //nolint:nilnil // documented above
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrDamaged), errors.Is(err, ErrForeign):
		return &Record{UID: uid, Namespace: "unknown", Name: "unknown"}, nil
	}
	return nil, fmt.Errorf("device %s/%s may be held: %w", pool, name, err)
}

// Acquire makes the record's claim a holder of all its devices, or of none, with an *InUseError. Admin access holds nothing. Acquire may
// come before the record exists: until then its links count as stale, which does no harm while the caller holds the claim and the devices.
func (s *Store) Acquire(r *Record) error {
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.AdminAccess {
			if err := s.checkFree(d, r); err != nil {
				return err
			}
		}
	}
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.AdminAccess {
			if err := s.setOwner(d, r.UID); err != nil {
				return fmt.Errorf("take device %s/%s for claim %s/%s: %w", d.Pool, d.Name, r.Namespace, r.Name, err)
			}
		}
	}
	return nil
}

// checkFree returns an *InUseError if a claim other than the record's holds a device and the two cannot share it.
//
// Claims of one boot share a device only with the same setting: each was checked when it took its share, and renewing one is checked again.
// So one of them with the setting of this record speaks for all others, however many there are.
func (s *Store) checkFree(d *Device, r *Record) error {
	entries, err := s.fs.ReadDir(s.deviceDir(d.Pool, d.Name))
	if ignoreMissing(err) != nil {
		return fmt.Errorf("look up who holds device %s/%s: %w", d.Pool, d.Name, err)
	}
	for _, e := range entries {
		if e.Name() == r.UID {
			continue
		}
		agrees, err := s.agrees(d, r, e.Name())
		if agrees || err != nil {
			return err
		}
	}
	return nil
}

// agrees reports whether the claim behind a link holds a share of a device with the same setting as a record's. The error is an *InUseError
// if it holds the device in another way. It returns false if no claim is behind the link.
func (s *Store) agrees(d *Device, r *Record, uid string) (bool, error) {
	how, err := s.fs.Readlink(s.ownerPath(d.Pool, d.Name, uid))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it was removed meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("look up how claim %s holds device %s/%s: %w", uid, d.Pool, d.Name, err)
	}
	other, err := s.holder(d.Pool, d.Name, uid)
	same := d.ShareID != "" && how == d.target()
	if err == nil && other != nil && other.Released() {
		if same {
			return false, nil // a share excludes none of the same setting, so it may wait for its own removal
		}
		other, err = s.takeOver(d, other)
	}
	if err != nil || other == nil || same {
		return same && err == nil && other != nil && other.BootID == r.BootID, err
	}
	return false, d.inUse(r, other, how)
}

// inUse returns the *InUseError of a device of a record that another claim holds in some way. It returns nil for a share of an earlier boot
// that excludes none of this one.
func (d *Device) inUse(r, other *Record, how string) error {
	shares := d.ShareID != "" && how != whole
	if shares && other.isOutdated(d, r) {
		return nil
	}
	fault := &InUseError{Pool: d.Pool, Device: d.Name, Owner: other, Namespace: r.Namespace}
	if shares {
		fault.Differs, fault.Have, fault.Want = true, other.settingOf(d.Pool, d.Name), d.Setting
	}
	return fault
}

// isOutdated reports whether the record's share of a device has a setting of an earlier boot only, which ended with that boot. All shares
// of a GPU have what its policy says, so this one gets the same as the others when it is renewed.
func (r *Record) isOutdated(d *Device, now *Record) bool {
	setting := r.settingOf(d.Pool, d.Name)
	return r.BootID != "" && r.BootID != now.BootID && setting != "" && d.Setting != "" && setting != d.Setting
}

// settingOf returns the setting of the record's share of a device, empty if it has none.
func (r *Record) settingOf(pool, name string) string {
	if d := r.Held(pool, name); d != nil {
		return d.Setting
	}
	return ""
}

// takeOver removes a released record that names a device, or returns the record that holds the device now. A process left the released
// record when it ended. Its last note may not be durable, and the device is free only after the removal of the record is.
func (s *Store) takeOver(d *Device, released *Record) (*Record, error) {
	hold, err := s.TryLockClaim(released.UID)
	if err != nil || hold == nil {
		return released, err // another caller works on it
	}
	defer hold.Release()
	now, err := s.holder(d.Pool, d.Name, released.UID)
	if err != nil || now == nil || !now.Released() {
		return now, err
	}
	return nil, s.Remove(now)
}

func (s *Store) setOwner(d *Device, uid string) error {
	path := s.ownerPath(d.Pool, d.Name, uid)
	have, err := s.fs.Readlink(path)
	if err == nil && have == d.target() {
		return nil
	}
	if err == nil {
		err = disk.RemoveIfThere(s.fs, path)
	}
	if ignoreMissing(err) != nil {
		return err
	}
	err = s.fs.Symlink(d.target(), path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := disk.MkdirAll(s.fs, filepath.Dir(path), 0o700); err != nil {
			return err
		}
		err = s.fs.Symlink(d.target(), path)
	}
	return err
}

// LinkedTo returns those of some devices whose links name a claim, and whether links name it for another device. It is for a claim whose
// record is lost.
func (s *Store) LinkedTo(uid string, devices []Device) (linked []Device, others bool, err error) {
	known := make(map[string]bool, len(devices))
	for _, d := range devices {
		known[deviceDir(d.Pool, d.Name)] = true
		if _, err := s.fs.Readlink(s.ownerPath(d.Pool, d.Name, uid)); err == nil {
			linked = append(linked, d)
		}
	}
	entries, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir))
	if ignoreMissing(err) != nil {
		return linked, false, fmt.Errorf("list what claim %s holds: %w", uid, err)
	}
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		if _, err := s.fs.Readlink(filepath.Join(s.dir, ownersDir, e.Name(), uid)); err == nil {
			return linked, true, nil
		}
	}
	return linked, false, nil
}

// SweepOwners removes links without a record behind them. It skips claims that another caller works on.
func (s *Store) SweepOwners() error {
	devices, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir))
	if ignoreMissing(err) != nil {
		return fmt.Errorf("list who holds devices: %w", err)
	}
	var errs []error
	for _, d := range devices {
		links, err := s.fs.ReadDir(filepath.Join(s.dir, ownersDir, d.Name()))
		errs = append(errs, ignoreMissing(err))
		for _, link := range links {
			errs = append(errs, s.sweepLink(d.Name(), link.Name()))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) sweepLink(device, uid string) error {
	hold, err := s.TryLockClaim(uid)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	r, err := s.Load(uid)
	stale := (err == nil && !r.holdsDir(device) || errors.Is(err, fs.ErrNotExist)) && !s.InDoubt(uid)
	if !stale {
		return nil
	}
	return disk.RemoveIfThere(s.fs, filepath.Join(s.dir, ownersDir, device, uid))
}

// holdsDir reports whether the links of one of the held devices are in a directory.
func (r *Record) holdsDir(name string) bool {
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.AdminAccess && deviceDir(d.Pool, d.Name) == name {
			return true
		}
	}
	return false
}

// hashed begins the name of a directory that is not made of the device's name.
const hashed = "sha256_"

// deviceDir returns the name of the directory of a device, in one flat directory. Pool names hold one slash, device names none, and neither
// may hold an underscore. A name that is too long for a file, as on a node with a long name, is hashed.
func deviceDir(pool, name string) string {
	const maxName = 255
	file := strings.ReplaceAll(pool+"/"+name, "/", "_")
	if len(file) > maxName {
		sum := sha256.Sum256([]byte(file))
		file = hashed + hex.EncodeToString(sum[:])
	}
	return file
}

func (s *Store) deviceDir(pool, name string) string {
	return filepath.Join(s.dir, ownersDir, deviceDir(pool, name))
}

func (s *Store) ownerPath(pool, name, uid string) string {
	return filepath.Join(s.deviceDir(pool, name), uid)
}

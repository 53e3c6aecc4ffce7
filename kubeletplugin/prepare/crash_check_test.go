// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/fault"
)

// consistent starts a process on what an earlier one left and says what is wrong with it: each device must be free and as discovered, or
// be held by one claim that has its record, its specs and its effects. Then it plays kubelet, which asks again for every claim that
// a pod needs and gives back all others, and in the end everything is given back and the node must be as it was at first.
func consistent(dir, boot string, s story) error {
	w, err := newWorld(dir, fault.New(), boot)
	if err != nil {
		return fmt.Errorf("start again: %w", err)
	}
	if s.begun["collect b"] {
		delete(w.claims, "b")
	}
	w.recover()
	if err := w.inOrder(s); err != nil {
		return fmt.Errorf("after the start: %w", err)
	}
	if err := w.playKubelet(s); err != nil {
		return err
	}
	if err := w.asDiscovered(); err != nil {
		return fmt.Errorf("after everything was given back: %w", err)
	}
	return nil
}

// inOrder looks before kubelet asks for anything.
func (w *world) inOrder(s story) error {
	uids, err := w.engine.Store.UIDs()
	errs := []error{err}
	held := map[string]string{}
	for _, uid := range uids {
		r, err := w.engine.Store.Load(uid)
		if err != nil {
			return err
		}
		if interrupted(r) {
			errs = append(errs, fmt.Errorf("claim %s is still %s", uid, r.Phase))
		}
		errs = append(errs, w.complete(r, held))
	}
	for name := range crashClaims() {
		there := slices.Contains(uids, name)
		if s.promised(name) && !there {
			errs = append(errs, fmt.Errorf("claim %s was prepared and has no record", name))
		}
		if s.over(name) && there {
			errs = append(errs, fmt.Errorf("claim %s was given back and has a record", name))
		}
		if s.promised(name) && s.ended["write "+name] {
			errs = append(errs, w.hasData(name))
		}
		if s.over(name) && w.hasData(name) == nil {
			errs = append(errs, fmt.Errorf("the data of claim %s is still in the directory", name))
		}
	}
	for _, d := range []string{"ssd0", "ssd1"} {
		if held[crashNode+"/host/"+d] == "" {
			errs = append(errs, w.freeDirectory(d))
		}
	}
	for _, d := range []string{"reg0", "reg1"} {
		if held[crashNode+"/fpga/"+d] == "" {
			errs = append(errs, w.loadedFor("", d))
		}
	}
	for uid := range presetClaims() {
		if !slices.Contains(uids, uid) {
			errs = append(errs, w.loadedFor("", mountOf(uid)))
		}
	}
	return errors.Join(errs...)
}

// complete says what a record lacks. What was prepared in an earlier boot has no more than its devices until kubelet asks.
func (w *world) complete(r *record.Record, held map[string]string) error {
	var errs []error
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AdminAccess {
			continue
		}
		key := d.Pool + "/" + d.Name
		if held[key] != "" {
			errs = append(errs, fmt.Errorf("claims %s and %s hold %s", held[key], r.UID, key))
		}
		held[key] = r.UID
		holders, err := w.engine.Store.Holders(d.Pool, d.Name)
		if err != nil || !slices.Equal(holders, []string{r.UID}) {
			errs = append(errs, fmt.Errorf("device %s is held by %v (%w), its record says %s", key, holders, err, r.UID))
		}
	}
	if r.BootID == w.boot && r.Phase == record.Prepared {
		errs = append(errs, w.effective(r))
	}
	return errors.Join(errs...)
}

// effective says what a prepared claim lacks in the host tree and among the specs.
func (w *world) effective(r *record.Record) error {
	var errs []error
	for _, s := range r.Steps {
		switch s.Kind {
		case cdi.StepKind:
			if w.engine.specs.anyMissing(map[string]bool{s.Target: true}) {
				errs = append(errs, fmt.Errorf("claim %s has no spec %s", r.UID, s.Target))
			}
		case hostdir.StepKind:
			if mode, _, err := inode(w.path("host" + s.Target)); err != nil || mode.Perm() != 0o777 {
				errs = append(errs, fmt.Errorf("directory %s of claim %s has mode %v (%w)", s.Target, r.UID, mode, err))
			}
		}
	}
	for i := range r.Devices {
		if r.Devices[i].Kind() == device.KindFPGA {
			errs = append(errs, w.loadedFor(r.UID, r.Devices[i].Name))
		}
	}
	_, wanted := presetClaims()[r.UID]
	if wanted {
		errs = append(errs, w.loadedFor(r.UID, mountOf(r.UID)))
	}
	if wanted != (presetOf(r) == "BOOT="+w.boot) {
		errs = append(errs, fmt.Errorf("claim %s has of presets %q in boot %s", r.UID, presetOf(r), w.boot))
	}
	for _, d := range sharedDevices(r) {
		if !w.engine.Specs.Has(d.name) {
			errs = append(errs, fmt.Errorf("claim %s has no spec %s", r.UID, d.name))
		}
	}
	files, err := w.engine.Specs.Files()
	errs = append(errs, err)
	for _, file := range specFiles(r) {
		if !files[file] {
			errs = append(errs, fmt.Errorf("claim %s has no file %s", r.UID, file))
		}
	}
	return errors.Join(errs...)
}

func (w *world) hasData(name string) error {
	data, err := os.ReadFile(w.path("host/mnt/ssd0/data-" + name))
	if err == nil && string(data) != name {
		err = fmt.Errorf("it reads %q", data)
	}
	if err != nil {
		return fmt.Errorf("the data of claim %s: %w", name, err)
	}
	return nil
}

// loadedFor says how a region is not loaded for a claim; an empty UID: for none.
func (w *world) loadedFor(uid, region string) error {
	if got, err := w.loaded(region); err != nil || got != uid {
		return fmt.Errorf("region %s is loaded for %q, want %q (%w)", region, got, uid, err)
	}
	return nil
}

// freeDirectory says how a directory that no claim holds differs from what was discovered.
func (w *world) freeDirectory(name string) error {
	path := w.path("host/mnt/" + name)
	mode, uid, err := inode(path)
	if err != nil || mode.Perm() != 0o755 || mode&os.ModeSticky != 0 || uid != 0 {
		return fmt.Errorf("directory %s has mode %v and owner %d (%w)", name, mode, uid, err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".fettle-trash-") {
			return fmt.Errorf("free directory %s holds %s", name, e.Name())
		}
	}
	return nil
}

// playKubelet asks for what pods need, gives back the rest, and then everything.
func (w *world) playKubelet(s story) error {
	ctx := context.Background()
	if err := w.empty(); err != nil {
		return err
	}
	var names, wanted []string
	for name := range crashClaims() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if s.wanted(name) {
			wanted = append(wanted, name)
			continue
		}
		if _, err := w.engine.Unprepare(ctx, name, w.engine.Now()); err != nil {
			return fmt.Errorf("unprepare %s again: %w", name, err)
		}
	}
	if err := w.empty(); err != nil {
		return err
	}
	for _, name := range wanted {
		r, err := w.engine.Prepare(ctx, w.claims[name], w.engine.Now())
		if err != nil {
			return fmt.Errorf("prepare %s again: %w", name, err)
		}
		errs := []error{w.effective(r)}
		if r.Phase != record.Prepared || r.BootID != w.boot {
			errs = append(errs, fmt.Errorf("claim %s was answered as %s of boot %s", name, r.Phase, r.BootID))
		}
		if s.ended["write "+name] {
			errs = append(errs, w.hasData(name))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("prepared %s again: %w", name, err)
		}
	}
	for _, name := range wanted {
		if _, err := w.engine.Unprepare(ctx, name, w.engine.Now()); err != nil {
			return fmt.Errorf("unprepare %s in the end: %w", name, err)
		}
	}
	return w.empty()
}

// empty deletes what was set aside, as the plugin does in the background.
func (w *world) empty() error {
	for _, name := range []string{"ssd0", "ssd1"} {
		d, err := hostdir.Open(w.path("host/mnt/" + name))
		if err != nil {
			return err
		}
		uids, err := w.engine.Store.Holders(crashNode+"/host", name)
		if err == nil && len(uids) == 0 {
			err = d.Purge(context.Background())
		}
		if err := errors.Join(err, d.Close()); err != nil {
			return err
		}
	}
	return nil
}

// asDiscovered says what is left over of all claims.
func (w *world) asDiscovered() error {
	w.engine.operations.wg.Wait()
	if err := w.empty(); err != nil { // what the ends of claims had no time for
		return err
	}
	if err := w.engine.SweepSpecs(context.Background()); err != nil {
		return err
	}
	uids, err := w.engine.Store.UIDs()
	errs := []error{err}
	if len(uids) > 0 {
		errs = append(errs, fmt.Errorf("records of %v", uids))
	}
	damaged, err := w.engine.Store.Damaged()
	if err != nil || len(damaged) > 0 {
		errs = append(errs, fmt.Errorf("records set aside of %v (%w)", damaged, err))
	}
	for _, d := range crashDevices() {
		if w.engine.Store.Held(crashNode+"/"+string(d.Kind), d.Name) {
			errs = append(errs, fmt.Errorf("device %s is held", d.Name))
		}
	}
	errs = append(errs, w.freeDirectory("ssd0"), w.freeDirectory("ssd1"), w.loadedFor("", "reg0"), w.loadedFor("", "reg1"), w.noLeftovers())
	return errors.Join(errs...)
}

// noLeftovers finds files that no device needs: own specs, trash, temporary files.
func (w *world) noLeftovers() error {
	standing := map[string]bool{}
	for _, d := range crashDevices() {
		spec, err := names().Common(d.Edits)
		if err != nil {
			return err
		}
		standing[spec.File], standing[cdi.ShownFile(string(d.Kind), d.Name)] = true, true
	}
	var left []string
	err := filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		inCDI := filepath.Dir(path) == w.path("cdi") && !standing[name]
		if err == nil && !e.IsDir() && (inCDI || strings.HasPrefix(name, ".tmp-")) || strings.HasPrefix(name, ".fettle-trash-") {
			left = append(left, path)
		}
		return err
	})
	if len(left) > 0 {
		return errors.Join(err, fmt.Errorf("left over: %v", left))
	}
	return err
}

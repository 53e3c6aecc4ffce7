// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

func (f *fakePlugin) NodePrepareResources(
	ctx context.Context, request *drav1.NodePrepareResourcesRequest,
) (*drav1.NodePrepareResourcesResponse, error) {
	response := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	if len(request.Claims) == 0 && f.is("prepare: refuses the empty call") {
		return nil, errors.New("no claims")
	}
	busy := f.enter()
	defer f.leave()
	if busy && f.is("concurrency: refuses calls side by side") {
		return nil, errors.New("busy")
	}
	for i, c := range request.Claims {
		if i > 0 && f.is("prepare: answers the first claim only") {
			break
		}
		devices, err := f.prepareOne(ctx, c)
		a := &drav1.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			a = &drav1.NodePrepareResourceResponse{Error: err.Error()}
			if f.is("prepare: one bad claim fails the call") {
				return nil, err
			}
		}
		response.Claims[c.Uid] = a
	}
	if len(request.Claims) > 0 && f.is("prepare: answers a claim that was not asked for") {
		response.Claims["somebody"] = &drav1.NodePrepareResourceResponse{}
	}
	return response, nil
}

// enter and leave count the calls under way. enter says whether there are others.
func (f *fakePlugin) enter() bool {
	f.mu.Lock()
	f.flying++
	slow := f.is("concurrency: refuses calls side by side") || f.is("concurrency: loses devices under load") ||
		f.is("concurrency: an unprepare in between keeps the device")
	f.mu.Unlock()
	if slow {
		time.Sleep(f.blink) // fragile: where it is too short for the race, TestFaults tries a longer one
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flying > 1
}

func (f *fakePlugin) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flying--
}

// get reads the claim as the usual library does.
func (f *fakePlugin) get(ctx context.Context, c *drav1.Claim) (*resourceapi.ResourceClaim, error) {
	got, err := f.kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case err != nil && f.is("prepare: accepts a claim that is not there"):
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: types.UID(c.Uid)},
			Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
		}, nil
	case err != nil:
		return nil, err
	case got.Status.Allocation == nil && f.is("prepare: accepts a claim without allocation"):
		got.Status.Allocation = &resourceapi.AllocationResult{}
	case got.Status.Allocation == nil:
		return nil, errors.New("not allocated")
	case string(got.UID) != c.Uid && !f.is("prepare: accepts another UID"):
		return nil, errors.New("replaced")
	}
	got.UID = types.UID(c.Uid)
	return got, nil
}

func (f *fakePlugin) prepareOne(ctx context.Context, c *drav1.Claim) ([]*drav1.Device, error) {
	claim, err := f.get(ctx, c)
	if err != nil {
		return nil, err
	}
	if f.is("concurrency: goes on after it was abandoned") {
		time.Sleep(f.blink) // fragile: where it is too short for the race, TestFaults tries a longer one
	}
	f.mu.Lock()
	r := f.records[f.key(claim)]
	f.mu.Unlock()
	if r != nil {
		return f.hit(r)
	}
	if f.is("concurrency: looks before it takes") {
		if err := f.look(claim); err != nil {
			return nil, err
		}
		time.Sleep(f.blink) // fragile: where it is too short for the race, TestFaults tries a longer one
	}
	r, err = f.take(ctx, claim)
	if err != nil {
		return nil, err
	}
	return f.changed(r), nil
}

// key is under which a record is kept.
func (f *fakePlugin) key(c *resourceapi.ResourceClaim) types.UID {
	if f.is("use: knows claims by name") {
		return types.UID(c.Name)
	}
	return c.UID
}

// hit answers for a claim that is prepared.
func (f *fakePlugin) hit(r *fakeRecord) ([]*drav1.Device, error) {
	switch {
	case f.is("prepare: refuses the second time"):
		return nil, errors.New("prepared already")
	case f.is("prepare: other ids the second time"), f.is("cdi: other ids after a wipe") && f.wiped(r),
		f.is("restart: other ids") && f.starts > 0:
		f.mu.Lock()
		r = &fakeRecord{claim: r.claim, devices: f.result(r.claim)}
		f.serial++
		for _, d := range r.devices {
			d.CdiDeviceIds[0] += fmt.Sprintf("-%d", f.serial)
		}
		f.records[r.claim.UID] = r
		f.mu.Unlock()
	case f.is("prepare: a device more each time"):
		f.mu.Lock()
		r.devices = append(r.devices, r.devices[0])
		f.mu.Unlock()
	case f.is("cdi: no files on a hit"):
		return r.devices, nil
	}
	f.ensure(r)
	return f.changed(r), nil
}

func (f *fakePlugin) wiped(r *fakeRecord) bool {
	_, err := os.Stat(filepath.Join(f.path("cdi"), strings.SplitN(r.devices[0].CdiDeviceIds[0], "=", 2)[1]+".json"))
	return err != nil
}

func (f *fakePlugin) look(c *resourceapi.ResourceClaim) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lookLocked(c)
}

// lookLocked says why a claim cannot have its devices.
func (f *fakePlugin) lookLocked(c *resourceapi.ResourceClaim) error {
	if f.ended[c.UID] && f.is("use: a claim ends for good") {
		return errors.New("that claim has ended")
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != fakeDriver && !f.is("prepare: takes the results of others for its own") {
			continue
		}
		admin := ptr.Deref(result.AdminAccess, false)
		if admin && f.is("use: refuses adminAccess") {
			return errors.New("no adminAccess")
		}
		if result.Device == "no-such-device" && !f.is("prepare: accepts an unknown device") {
			return errors.New("no such device")
		}
		owner, held := f.owners[device{result.Pool, result.Device}]
		if result.ShareID != nil && owner != keptShare && !f.is("shares: gives a device once") {
			continue
		}
		if held && owner != c.UID && !f.givesHeld(admin) {
			return errors.New("the device is held")
		}
		if f.is("use: keeps a part of what was refused") {
			f.owners[device{result.Pool, result.Device}] = c.UID
		}
	}
	return nil
}

// keptShare owns a device of which a share was lost.
const keptShare = "a share that ended"

// givesHeld says whether a device that is held is given all the same.
func (f *fakePlugin) givesHeld(admin bool) bool {
	return admin || f.is("use: gives what is held")
}

// take makes a record and its files, unless kubelet gave up meanwhile and has perhaps unprepared the claim.
func (f *fakePlugin) take(ctx context.Context, c *resourceapi.ResourceClaim) (*fakeRecord, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil && !f.is("concurrency: goes on after it was abandoned") {
		return nil, err
	}
	if !f.is("concurrency: looks before it takes") {
		if err := f.lookLocked(c); err != nil {
			return nil, err
		}
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		d := device{result.Pool, result.Device}
		if result.ShareID != nil && !f.is("shares: gives a device once") {
			continue
		}
		if admin := ptr.Deref(result.AdminAccess, false); !admin || f.is("use: adminAccess holds") {
			f.owners[d] = c.UID
		}
	}
	r := &fakeRecord{claim: c, devices: f.result(c)}
	f.records[f.key(c)] = r
	f.ensure(r)
	if f.flying > 1 && f.is("concurrency: loses devices under load") {
		f.owners[device{r.devices[0].PoolName, r.devices[0].DeviceName}] = "nobody"
	}
	return r, nil
}

// result is the answer for a claim.
func (f *fakePlugin) result(c *resourceapi.ResourceClaim) []*drav1.Device {
	var out []*drav1.Device
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != fakeDriver && !f.is("prepare: takes the results of others for its own") {
			continue
		}
		name, _, _ := strings.Cut(result.Request, "/")
		if f.is("prepare: names the sub-request") {
			name = result.Request
		}
		d := &drav1.Device{
			RequestNames: []string{name}, PoolName: result.Pool, DeviceName: result.Device,
			CdiDeviceIds: f.ids(c.UID, result.Device),
		}
		if result.ShareID != nil && !f.is("shares: answers without the share") {
			d.ShareId = ptr.To(string(*result.ShareID))
		}
		if len(out) > 0 && f.is("shares: one of a claim") {
			continue
		}
		out = append(out, d)
	}
	return out
}

// changed is an answer that is wrong the first time already.
func (f *fakePlugin) changed(r *fakeRecord) []*drav1.Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(r.devices)
	edit := func(change func(*drav1.Device)) {
		for i, d := range out {
			out[i] = &drav1.Device{
				RequestNames: d.RequestNames, PoolName: d.PoolName, DeviceName: d.DeviceName, CdiDeviceIds: d.CdiDeviceIds, ShareId: d.ShareId,
			}
			change(out[i])
		}
	}
	switch {
	case f.is("prepare: another pool"):
		edit(func(d *drav1.Device) { d.PoolName = "pool" })
	case f.is("prepare: no device name"):
		edit(func(d *drav1.Device) { d.DeviceName = "" })
	case f.is("prepare: all for the first request"):
		edit(func(d *drav1.Device) { d.RequestNames = r.devices[0].RequestNames })
	case f.is("prepare: the last device is missing"):
		out = out[:len(out)-1]
	case f.is("cdi: a prepare changes what others hold"):
		for _, uid := range sortedUIDs(f.records) {
			if name := fmt.Sprintf("c%s-%s", uid, f.records[uid].devices[0].DeviceName); uid != r.claim.UID {
				f.records[uid].devices[0].CdiDeviceIds = nil
				must(f.t, os.WriteFile(filepath.Join(f.path("cdi"), name+".json"),
					fmt.Appendf(nil, `{"cdiVersion":"0.5.0","kind":"example.com/claim","devices":[{"name":%q,"containerEdits":{"env":["A=b"]}}]}`, name),
					0o644))
			}
		}
	}
	return out
}

func (f *fakePlugin) NodeUnprepareResources(
	ctx context.Context, request *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	response := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	busy := f.enter()
	defer f.leave()
	for _, c := range request.Claims {
		if f.is("unprepare: wants the claim to exist") {
			if _, err := f.get(ctx, c); err != nil {
				response.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{Error: err.Error()}
				continue
			}
		}
		known, err := f.unprepareOne(ctx, c, busy)
		if !known && f.is("unprepare: passes over claims that it does not know") {
			continue
		}
		response.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
		if err != nil {
			response.Claims[c.Uid].Error = err.Error()
		}
	}
	return response, nil
}

func (f *fakePlugin) unprepareOne(ctx context.Context, c *drav1.Claim, busy bool) (known bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	uid := types.UID(c.Uid)
	r := f.records[f.key(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: uid}})]
	defer func() { f.ended[uid] = true }()
	if f.is("unprepare: frees by the claim's devices") {
		f.freeAllocated(ctx, c)
	}
	if r == nil {
		switch {
		case f.is("unprepare: refuses what it does not know"),
			f.is("unprepare: refuses the second time") && f.ended[uid],
			f.is("restart: refuses claims of before") && f.starts > 0:
			return false, errors.New("not prepared")
		}
		// What a Prepare that failed left.
		if !f.is("reboot: keeps devices of forgotten claims") && !f.is("restart: forgets the claims") {
			f.free(uid)
		}
		return false, nil
	}
	if f.is("unprepare: keeps the device") || busy && f.is("concurrency: an unprepare in between keeps the device") {
		delete(f.records, uid)
		f.owners[device{r.devices[0].PoolName, r.devices[0].DeviceName}] = "nobody"
		return true, nil
	}
	delete(f.records, f.key(r.claim))
	f.free(r.claim.UID)
	if f.is("unprepare: frees by the claim's devices") || f.is("use: the end of adminAccess frees") {
		for _, d := range r.devices {
			delete(f.owners, device{d.PoolName, d.DeviceName})
		}
	}
	if f.is("unprepare: leaves its files") {
		return true, nil
	}
	switch {
	case f.is("shares: the end of one ends all"):
		f.wipe()
	case f.is("shares: keeps a share that ended"):
		f.owners[device{r.devices[0].PoolName, r.devices[0].DeviceName}] = keptShare
	}
	for _, d := range r.devices {
		for _, id := range d.CdiDeviceIds {
			_ = os.Remove(filepath.Join(f.path("cdi"), id[strings.Index(id, "=")+1:]+".json"))
		}
	}
	_ = os.Remove(filepath.Join(f.path("cdi"), "broken.json"))
	return true, nil
}

// free gives back what a claim holds.
func (f *fakePlugin) free(uid types.UID) {
	for d, owner := range f.owners {
		if owner == uid && (f.is("use: keeps a part of what was refused") && f.records[uid] == nil) {
			continue
		}
		if owner == uid {
			delete(f.owners, d)
		}
	}
}

// freeAllocated frees devices whoever holds them.
func (f *fakePlugin) freeAllocated(ctx context.Context, c *drav1.Claim) {
	claim, err := f.kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation == nil {
		return
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		delete(f.owners, device{result.Pool, result.Device})
	}
}

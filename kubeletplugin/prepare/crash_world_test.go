// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/objects"
)

// world is a node, its API server and its kubelet, all of whose changes go through an injector.
type world struct {
	dir    string
	in     *fault.Injector
	boot   string
	engine *Engine
	// claims are the API server's objects by name.
	claims map[string]*resourceapi.ResourceClaim
	// onEffect is called after a directory was lent or a region loaded, before the step returns.
	onEffect func() error
	// answered is closed when an act is over. What the engine does after its answers waits for that, so that the log always has it there.
	answered chan struct{}
}

const crashNode = "node-1"

func crashDevices() crashMachine {
	gpu := func(name string, minor int64) device.Device {
		return device.Device{Kind: device.KindGPU, Name: name, Edits: container.Edits{
			Nodes: []container.Node{{Path: "/dev/" + name, Major: 195, Minor: minor, Permissions: "rw"}},
		}}
	}
	ssd := func(name string) device.Device {
		return device.Device{Kind: device.KindHost, Name: name, Edits: container.Edits{
			Mounts: []container.Mount{{HostPath: "/mnt/" + name, ContainerPath: "/mnt/" + name}},
		}}
	}
	region := func(name string, minor int64) device.Device {
		return device.Device{
			Kind: device.KindFPGA, Name: name, Region: &fpga.Region{Backend: "memory", Card: "card"},
			Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + name, Major: 245, Minor: minor, Permissions: "rw"}}},
		}
	}
	return crashMachine{gpu("gpu0", 0), gpu("gpu1", 1), ssd("ssd0"), ssd("ssd1"), region("reg0", 0), region("reg1", 1)}
}

type crashMachine []device.Device

func (m crashMachine) All() []device.Device { return m }

func (m crashMachine) RegionsOf(card string) []string { return onCard(m, card) }

func (m crashMachine) Card(string) (device.Card, bool) { return device.Card{}, false }

func (m crashMachine) Find(kind device.Kind, name string) (device.Device, bool) {
	i := slices.IndexFunc(m, func(d device.Device) bool { return d.Kind == kind && d.Name == name })
	if i < 0 {
		return device.Device{}, false
	}
	return m[i], true
}

// makeHost makes the directories of a fresh node.
func makeHost(dir string) error {
	for _, sub := range []string{"host/mnt/ssd0", "host/mnt/ssd1", "cdi", "state", "hardware"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// newWorld starts the plugin's part on a node: what the process does before it serves.
func newWorld(dir string, in *fault.Injector, boot string) (*world, error) {
	w := &world{dir: dir, in: in, claims: crashClaims()}
	return w, w.start(boot)
}

func (w *world) start(boot string) error {
	w.boot = boot
	fsys := w.in.FS(disk.OS{})
	store, err := record.Open(fsys, w.path("state"))
	if err != nil {
		return err
	}
	specs, err := cdi.Open(fsys, w.path("cdi"))
	if err != nil {
		return err
	}
	began := time.Now()
	w.engine = New(Config{
		Node: crashNode, BootID: boot, Store: store, Specs: specs, Names: names(),
		Features: []Feature{
			lending(w.path("host"), w.lending()),
			&fakeFeature{name: "loads", kinds: step.Kinds{loadKind: w.loading()}, plan: loads, leftovers: remains},
			&fakeFeature{name: presetsName, plan: w.presets},
		},
		Health: &fakeHealth{}, Observer: &fakeObserver{},
		Machine: func() Machine { return crashDevices() }, ScanAgain: func(context.Context) error { return nil },
		PlaceOf: func(_ context.Context, d *device.Device) (container.Place, error) { return d.Place, nil },
		Claim:   w.claim, Classes: crashClasses, KubeletState: w.path("kubelet_state"),
		NamespaceUID: func(_ context.Context, name string) (string, error) { return name + "-uid", nil },
		Uptime:       func() time.Duration { return time.Hour + time.Since(began) }, Budget: 10 * time.Second,
	})
	w.engine.operations.runFollowUp = func(later func()) {
		if w.answered != nil {
			<-w.answered
		}
		later()
	}
	return w.engine.Index(context.Background())
}

// lending is the real step on a directory that the injector watches. What a power loss left is made again in another place, so the step
// does not look whether that is the place of before.
func (w *world) lending() step.Kind {
	kind := hostdir.Kind(w.path("host"), w.in.Root)
	for _, part := range []*stepFunc{&kind.Apply, &kind.Verify, &kind.Undo, &kind.Finish} {
		do := *part
		*part = func(ctx context.Context, raw json.RawMessage) error {
			params, err := step.Decode[hostdir.Params](raw)
			if err != nil {
				return err
			}
			params.Place = nil
			anywhere, err := step.New(hostdir.StepKind, params.Path, params)
			if err != nil {
				return err
			}
			return do(ctx, anywhere.Params)
		}
	}
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		if err := apply(ctx, params); err != nil || w.onEffect == nil {
			return err
		}
		return w.onEffect()
	}
	return kind
}

// loadKind is the step that loads a region.
const loadKind = "test.load"

// load is the step's parameters.
type load struct{ Region, Claim string }

// loads are the steps of a claim's regions, as the plugin decides them.
func loads(ctx context.Context, r Request) (c Contribution, err error) {
	for i := range r.Allocation.Results {
		dev, ok := r.Find(&r.Allocation.Results[i])
		if !ok || r.Allocation.Results[i].AdminAccess {
			continue
		}
		own, err := loadsOf(ctx, string(r.Claim.UID), dev)
		if err != nil {
			return c, err
		}
		c.Steps = append(c.Steps, own...)
	}
	return c, nil
}

func loadsOf(_ context.Context, uid string, dev device.Device) ([]step.Step, error) {
	if dev.Region == nil {
		return nil, nil
	}
	return loadOf(uid, dev.Name)
}

func loadOf(uid, name string) ([]step.Step, error) {
	raw, err := json.Marshal(load{Region: name, Claim: uid})
	return []step.Step{{Kind: loadKind, Target: name, Params: raw}}, err
}

// mountOf is what presets mount for a claim. It is an effect as a loaded region: gone with the power, and not with the process.
func mountOf(uid string) string { return "mount-" + uid }

// remains are all steps that a claim may have had for a device.
func remains(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	steps, err := loadsOf(ctx, uid, dev)
	if _, given := presetClaims()[uid]; err != nil || !given {
		return steps, err
	}
	mount, err := loadOf(uid, mountOf(uid))
	return append(steps, mount...), err
}

// loading is a step on hardware: what it did outlives the process, is never on the disk, and is gone with the power. A region that another
// claim loaded is not loaded over, and is not this claim's to clear.
func (w *world) loading() step.Kind {
	with := func(do func(l load, holds string) error) func(context.Context, json.RawMessage) error {
		return func(_ context.Context, raw json.RawMessage) error {
			var l load
			if err := json.Unmarshal(raw, &l); err != nil {
				return err
			}
			holds, err := w.loaded(l.Region)
			if err != nil {
				return err
			}
			return do(l, holds)
		}
	}
	set := func(what, region, value string) error {
		return w.in.Do(what+" "+region, func() error {
			return os.WriteFile(w.path("hardware/"+region), []byte(value), 0o600)
		})
	}
	return step.Kind{
		Apply: with(func(l load, holds string) error {
			if holds != "" && holds != l.Claim {
				return fmt.Errorf("region %s is still loaded for claim %s", l.Region, holds)
			}
			if err := set("load", l.Region, l.Claim); err != nil || w.onEffect == nil {
				return err
			}
			return w.onEffect()
		}),
		Undo: with(func(l load, holds string) error {
			if holds != l.Claim {
				return nil
			}
			return set("clear", l.Region, "")
		}),
		Verify: with(func(l load, holds string) error {
			if holds != l.Claim {
				return fmt.Errorf("region %s is loaded for %q", l.Region, holds)
			}
			return nil
		}),
	}
}

// loaded is the claim that a region is loaded for, empty where it is as it was at power on.
func (w *world) loaded(region string) (string, error) {
	data, err := os.ReadFile(w.path("hardware/" + region))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

// claim is the API server's answer, which may not come.
func (w *world) claim(_ context.Context, _, name string) (c *resourceapi.ResourceClaim, err error) {
	err = w.in.Do("get claim "+name, func() error { //nolint:contextcheck // nothing in it takes time
		if c = w.claims[name]; c == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
		}
		return nil
	})
	return c, err
}

func (w *world) path(sub string) string { return filepath.Join(w.dir, sub) }

// recover is what the process does in the background, at once.
func (w *world) recover() {
	w.engine.collection.pass(context.Background(), nil)
	w.engine.operations.wg.Wait()
}

// kubeletHolds writes kubelet's own list of prepared claims.
func (w *world) kubeletHolds(names ...string) error {
	type info struct{ ClaimUID string }
	list := make([]info, len(names))
	for i, name := range names {
		list[i].ClaimUID = name
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": list})
	if err != nil {
		return err
	}
	outer, err := json.Marshal(map[string]any{"Data": string(data), "Checksum": crc32.ChecksumIEEE(data)})
	if err != nil {
		return err
	}
	return os.WriteFile(w.path("kubelet_state"), outer, 0o600)
}

// act is one thing that kubelet or a pod does, with a mark before and after it in the log. What is then left to do ends with it.
func (w *world) act(what string, do func() error) error {
	mark := func(when string) error { return w.in.Do(when+" "+what, func() error { return nil }) }
	if err := mark("begin"); err != nil {
		return err
	}
	w.answered = make(chan struct{})
	defer func() {
		close(w.answered)
		w.engine.operations.wg.Wait()
	}()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return mark("end")
}

func (w *world) prepare(name string) error {
	return w.act("prepare "+name, func() error {
		_, err := w.engine.Prepare(context.Background(), w.claims[name], w.engine.Now())
		return err
	})
}

func (w *world) unprepare(name string) error {
	return w.act("unprepare "+name, func() error {
		_, err := w.engine.Unprepare(context.Background(), name, w.engine.Now())
		return err
	})
}

// write is a pod that writes a file into its directory, and another into a directory in it, and syncs both: what is small is deleted right
// away, what is a directory is moved aside.
func (w *world) write(name string) error {
	return w.act("write "+name, func() error {
		fsys, dir := w.in.FS(disk.OS{}), w.path("host/mnt/ssd0")
		if err := disk.MkdirAll(fsys, filepath.Join(dir, "more-"+name), 0o700); err != nil {
			return err
		}
		more := disk.ReplaceDurably(fsys, filepath.Join(dir, "more-"+name, "data"), []byte(name), 0o600)
		return errors.Join(more, disk.ReplaceDurably(fsys, filepath.Join(dir, "data-"+name), []byte(name), 0o600))
	})
}

// presetClaims are the claims that presets give something to, by the request that has it.
func presetClaims() map[string]string {
	return map[string]string{"a": "gpu0", "b": "gpu1", "c": "reg0"}
}

// presets give each boot another file to what was decided in the first, as a driver does that is updated.
func (w *world) presets(_ context.Context, r Request) (Contribution, error) {
	request, decision := presetClaims()[r.Claim.Name], r.Decision
	if !r.AfterReboot {
		decision = json.RawMessage(`"decided"`)
	}
	if request == "" || decision == nil {
		return Contribution{}, nil
	}
	mount, err := loadOf(r.Claim.Name, mountOf(r.Claim.Name))
	return Contribution{Decision: decision, Steps: mount, Edits: map[string]Edits{request: {
		Shared: container.Edits{Env: []string{"BOOT=" + w.boot}},
		Own:    container.Edits{Mounts: []container.Mount{{HostPath: "/" + mountOf(r.Claim.Name), ContainerPath: "/own"}}},
	}}}, err
}

// crashClaims are the claims of the script. A claim's UID is its name.
func crashClaims() map[string]*resourceapi.ResourceClaim {
	const moved = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/scratch"}`
	result := func(kind device.Kind, name string, admin bool) resourceapi.DeviceRequestAllocationResult {
		r := resourceapi.DeviceRequestAllocationResult{
			Request: name, Driver: v1alpha1.DriverName, Pool: crashNode + "/" + string(kind), Device: name,
		}
		if admin {
			r.AdminAccess = &admin
		}
		return r
	}
	results := map[string][]resourceapi.DeviceRequestAllocationResult{
		"a":    {result(device.KindGPU, "gpu0", false), result(device.KindHost, "ssd0", false)},
		"b":    {result(device.KindGPU, "gpu1", false)},
		"look": {result(device.KindGPU, "gpu0", true)},
		"c":    {result(device.KindHost, "ssd0", false), result(device.KindFPGA, "reg0", false)},
		"d":    {result(device.KindFPGA, "reg1", false)},
		"e":    {result(device.KindHost, "ssd1", false)},
	}
	claims := map[string]*resourceapi.ResourceClaim{}
	for name, r := range results {
		c := &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)},
			Status:     resourceapi.ResourceClaimStatus{Allocation: objects.Allocation(r...)},
		}
		if name == "a" {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
				Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"ssd0"},
				DeviceConfiguration: objects.Opaque(v1alpha1.DriverName, moved),
			}}
		}
		objects.Asked(c, plainClass)
		claims[name] = c
	}
	return claims
}

func crashClasses(_ context.Context, names []string) (map[string]*resourceapi.DeviceClass, error) {
	found := map[string]*resourceapi.DeviceClass{}
	for _, name := range names {
		found[name] = classNamed(name)
	}
	return found, nil
}

var errLoad = errors.New("the region cannot be loaded")

// script is the life of a node. It goes through Prepare with and without effects, a hit, an admin's look, Unprepare, a directory's
// next tenant, a region that is loaded, a Prepare that fails, one that is cut off by a restart, a reboot, and the collection of a claim
// that is nobody's. An error stops it; trying again is the caller's.
func script(w *world) []func() error {
	return []func() error{
		func() error { return w.kubeletHolds("a", "b", "c", "d", "e", "look") },
		func() error { return w.prepare("a") },
		func() error { return w.write("a") },
		func() error { return w.prepare("b") },
		func() error { return w.prepare("look") },
		func() error { return w.prepare("a") },
		func() error { return w.unprepare("look") },
		func() error { return w.unprepare("a") },
		func() error { return w.prepare("c") },
		func() error { return w.write("c") },
		func() error { // fails after it took effect, and is rolled back
			w.onEffect = func() error { return errLoad }
			defer func() { w.onEffect = nil }()
			if err := w.prepare("d"); !errors.Is(err, errLoad) {
				return fmt.Errorf("want the step's error, not %w", err)
			}
			return w.unprepare("d")
		},
		func() error { // the process ends while a step is applied
			w.onEffect = func() error { w.engine.operations.stop(); return context.Canceled }
			defer func() { w.onEffect = nil }()
			if err := w.prepare("e"); err == nil {
				return errors.New("prepared by a process that has ended")
			}
			return nil
		},
		func() error { return w.start(w.boot) },
		func() error { w.recover(); return nil },
		func() error { return w.unprepare("e") },
		func() error { return w.act("boot-2", func() error { return w.start("boot-2") }) },
		func() error { w.recover(); return nil },
		func() error { return w.prepare("c") },
		func() error {
			delete(w.claims, "b")
			if err := w.kubeletHolds("c"); err != nil {
				return err
			}
			return w.act("collect b", func() error {
				w.engine.collect(context.Background())
				w.engine.collect(context.Background())
				return nil
			})
		},
		func() error { return w.unprepare("c") },
	}
}

// story is what a log says that kubelet asked for and was answered.
type story struct{ begun, ended map[string]bool }

func storyOf(log fault.Log) story {
	s := story{begun: map[string]bool{}, ended: map[string]bool{}}
	for _, op := range log {
		if op.Kind != fault.Effect || !op.Done {
			continue
		}
		if what, ok := strings.CutPrefix(op.Path, "begin "); ok {
			s.begun[what] = true
		}
		if what, ok := strings.CutPrefix(op.Path, "end "); ok {
			s.ended[what] = true
		}
	}
	return s
}

// wanted: kubelet has a pod that needs the claim.
func (s story) wanted(name string) bool {
	return s.begun["prepare "+name] && !s.begun["unprepare "+name] && !s.begun["collect "+name]
}

// promised: kubelet was told that the claim is prepared.
func (s story) promised(name string) bool { return s.wanted(name) && s.ended["prepare "+name] }

// over: kubelet was told that the claim is given back.
func (s story) over(name string) bool { return s.ended["unprepare "+name] }

func inode(path string) (mode os.FileMode, uid uint32, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("no owner on this platform")
	}
	return info.Mode(), stat.Uid, nil
}

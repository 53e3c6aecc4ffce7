// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	testNode = "node-1"
	// patience is how long a test waits for what must happen, and a call of kubelet's for its claim.
	patience = time.Minute

	keepContent = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"onRelease":"Keep"}}`
	atScratch   = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/scratch"}`
	atData      = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/data"}`
	onlyTeamB   = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"allowedNamespaces":["team-b"]}}`
)

// machine is what a look at hardware finds.
type machine []device.Device

func (m machine) All() []device.Device { return m }

func (m machine) RegionsOf(card string) []string { return onCard(m, card) }

// onCard lists the regions of a card among devices.
func onCard(devices []device.Device, card string) (names []string) {
	for i := range devices {
		if r := devices[i].Region; r != nil && r.Card == card {
			names = append(names, devices[i].Name)
		}
	}
	return names
}

func (m machine) Card(name string) (device.Card, bool) {
	return device.Card{Name: name, Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("2")}}}, name != ""
}

func (m machine) Find(kind device.Kind, name string) (device.Device, bool) {
	for _, d := range m {
		if d.Kind == kind && d.Name == name {
			return d, true
		}
	}
	return device.Device{}, false
}

// gpu is a device of the shape that discovery makes.
func gpu(name string, minor int64) device.Device {
	return device.Device{Kind: device.KindGPU, Name: name, Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/" + name, Major: 195, Minor: minor, Permissions: "rw"}},
	}}
}

// ssd is a host directory at /mnt/disks/NAME.
func ssd(name string) device.Device {
	return device.Device{Kind: device.KindHost, Name: name, Edits: container.Edits{
		Mounts: []container.Mount{{HostPath: "/mnt/disks/" + name, ContainerPath: "/mnt/localssd/" + name}},
	}}
}

// place is a node and the cluster that it is in: a machine of two GPUs and two disks, a state directory, the API server's claims.
// Any number of engines may serve it, one after the other or at once.
type place struct {
	t     *testing.T
	dir   string
	clock *fault.Clock
	// files is the disk under the state and the CDI directory.
	files *fault.Injector

	mu      sync.Mutex
	machine Machine
	// found is what the next scan finds, nil if that is what the last one found. scanErr is why none ends, scanTakes how long one takes.
	found     Machine
	scanErr   error
	scanTakes time.Duration
	// remade is appended to the names of namespaces to be their UIDs.
	remade string
	names  *cdi.Names
	claims map[string]*resourceapi.ResourceClaim
	apiErr error
	// classes are DeviceClasses that are not what their names say, classesAsked is how often they were read.
	classes      map[string]*resourceapi.DeviceClass
	classesErr   error
	classesAsked int
	asked        int
	incidents    []Incident
	decisions    resolved
}

// site is one engine at the place.
type site struct {
	*Engine
	*place
	// effects is a feature that does nothing before a test says what, and health is that of the engine.
	effects *fakeFeature
	health  *fakeHealth
}

func newSite(t *testing.T) *site { return newPlace(t).newEngine() }

// inBubble runs a test in which time passes at once when everybody waits for it: a call is as long as the engine lets it be, and
// synctest.Wait returns when everything else waits for something.
func inBubble(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newSite(t)) })
}

// names are those of a node with some secret.
func names() *cdi.Names { return cdi.NewNames([cdi.SecretSize]byte{1}) }

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{
		t: t, dir: t.TempDir(), names: names(), clock: fault.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), files: fault.New(),
		machine: machine{gpu("gpu0", 0), gpu("gpu1", 1), ssd("ssd0"), ssd("ssd1")}, claims: map[string]*resourceapi.ResourceClaim{},
		classes: map[string]*resourceapi.DeviceClass{},
	}
	for _, name := range []string{"ssd0", "ssd1"} {
		check.Must(t, os.MkdirAll(p.disk(name), 0o755))
	}
	return p
}

// newEngine is a process that starts on the node. It has not looked at anything yet, see Index.
func (p *place) newEngine() *site {
	p.t.Helper()
	fsys := p.files.FS(disk.OS{})
	store, err := record.Open(fsys, filepath.Join(p.dir, "state"))
	check.Must(p.t, err)
	specs, err := cdi.Open(fsys, p.cdiDir())
	check.Must(p.t, err)
	effects := &fakeFeature{name: "effects", kinds: step.Kinds{}}
	health := &fakeHealth{}
	e := New(Config{
		Node: testNode, BootID: p.clock.BootID(), Store: store, Specs: specs, Names: p.names,
		Features: []Feature{
			lending(p.dir, hostdir.Kind(p.dir, hostdir.OpenRoot)), effects, &fakeFeature{name: presetsName, plan: p.resolve},
		},
		Machine: p.seen, ScanAgain: p.scanAgain, PlaceOf: p.placeOf,
		Health: health, Claim: p.get, Classes: p.live, KubeletState: filepath.Join(p.dir, "dra_manager_state"),
		NamespaceUID: func(_ context.Context, name string) (string, error) { return name + p.remade, nil },
		Uptime:       p.clock.SinceBoot, Budget: patience, Observer: &fakeObserver{incident: p.note},
	})
	p.t.Cleanup(e.Stop)
	return &site{Engine: e, place: p, effects: effects, health: health}
}

// restart ends the process and starts the next, as an update or a crash does.
func (s *site) restart() *site {
	s.t.Helper()
	s.Stop()
	next := s.newEngine()
	check.Must(s.t, next.Index(s.t.Context()))
	return next
}

// reboot is a restart of the machine: what is on a tmpfs is gone.
func (s *site) reboot() *site {
	s.t.Helper()
	s.Stop()
	check.Must(s.t, os.RemoveAll(s.cdiDir()))
	s.clock.Reboot(time.Minute)
	next := s.newEngine()
	check.Must(s.t, next.Index(s.t.Context()))
	return next
}

func (p *place) seen() Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine
}

func (p *place) setMachine(m Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machine = m
}

// placeOf is where a device is: where the next scan finds it.
func (p *place) placeOf(_ context.Context, d *device.Device) (container.Place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		now, _ := p.found.Find(d.Kind, d.Name)
		return now.Place, nil
	}
	return d.Place, nil
}

// scanAgain is a scan that somebody asks for.
func (p *place) scanAgain(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.scanTakes):
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		p.machine, p.found = p.found, nil
	}
	return p.scanErr
}

// get is the API server.
func (p *place) get(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.apiErr != nil {
		return nil, p.apiErr
	}
	c := p.claims[namespace+"/"+name]
	if c == nil {
		return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
	}
	return c.DeepCopy(), nil
}

// put stores a claim at the API server.
func (p *place) put(c *resourceapi.ResourceClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims[c.Namespace+"/"+c.Name] = c.DeepCopy()
}

func (p *place) drop(c *resourceapi.ResourceClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, c.Namespace+"/"+c.Name)
}

// breakAPI makes every answer of the API server an error, or with nil none.
func (p *place) breakAPI(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apiErr = err
}

// questions is how often the API server was asked.
func (p *place) questions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *place) note(_ context.Context, i Incident) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.incidents = append(p.incidents, i)
}

// reasons takes the reasons of the incidents since the last call, each with the claim's UID.
func (p *place) reasons() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, i := range p.incidents {
		out = append(out, i.Reason+" "+i.UID)
	}
	p.incidents = nil
	return out
}

func (p *place) disk(name string) string { return filepath.Join(p.dir, "mnt", "disks", name) }

func (p *place) cdiDir() string { return filepath.Join(p.dir, "run", "cdi") }

func (p *place) statePath(parts ...string) string {
	return filepath.Join(append([]string{p.dir, "state"}, parts...)...)
}

// write puts a file into a disk, as a workload does. It is too large to be deleted right away.
func (p *place) write(name string) string {
	p.t.Helper()
	path := filepath.Join(p.disk(name), "data")
	check.Must(p.t, os.WriteFile(path, bytes.Repeat([]byte("a tenant's "), 1<<14), 0o600))
	return path
}

// now is a moment that is later than every moment before.
func (s *site) now() record.Moment {
	s.clock.Advance(time.Millisecond)
	return s.Now()
}

// ask prepares a claim of the API server as kubelet does.
func (s *site) ask(c *resourceapi.ResourceClaim) (*record.Record, error) {
	s.put(c)
	return s.Prepare(s.t.Context(), c, s.now())
}

// prepare wants the claim to be prepared, at the latest when kubelet asked a few times, and every CDI device that kubelet is told of
// to be there.
func (s *site) prepare(c *resourceapi.ResourceClaim) *record.Record {
	s.t.Helper()
	s.put(c)
	r, err := s.insist(func() (*record.Record, error) { return s.Prepare(s.t.Context(), c, s.now()) })
	check.Must(s.t, err)
	s.isWhole(r)
	return r
}

// insist calls again while the answer is that it goes on in the background.
func (s *site) insist(call func() (*record.Record, error)) (r *record.Record, err error) {
	const often = 1000 // which in a bubble is hours, and else never happens
	for range often {
		r, err = call()
		if _, pending := errors.AsType[*PendingError](err); !pending || s.t.Context().Err() != nil {
			break
		}
	}
	return r, err
}

func (s *site) isWhole(r *record.Record) {
	s.t.Helper()
	if r.Phase != record.Prepared {
		s.t.Errorf("claim %s is answered in phase %s", r.UID, r.Phase)
	}
	for i := range r.Devices {
		for _, name := range r.Devices[i].CDIDevices() {
			if !s.defined(r.UID, name) {
				s.t.Errorf("kubelet is told of %s, which is not there", name)
			}
		}
		if file := cdi.ShownFile(string(r.Devices[i].Kind()), r.Devices[i].Name); !there(filepath.Join(s.cdiDir(), file)) {
			s.t.Errorf("kubelet shows %s by a name whose file %q is not there", r.Devices[i].Name, file)
		}
	}
}

// defined says whether a CDI device is in the directory.
func (s *site) defined(uid, qualified string) bool {
	s.t.Helper()
	if !isOwnDevice(qualified) {
		return s.Specs.Has(qualified)
	}
	for _, d := range s.ownSpec(uid).Devices {
		if cdi.ClaimKind+"="+d.Name == qualified {
			return true
		}
	}
	return false
}

func (s *site) unprepare(uid string) {
	s.t.Helper()
	_, err := s.insist(func() (*record.Record, error) { return s.Unprepare(s.t.Context(), uid, s.now()) })
	check.Must(s.t, err)
	s.atRest(uid)
}

// atRest waits until nobody works on a claim. No time passes meanwhile in a bubble.
func (s *site) atRest(uid string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); runtime.Gosched() {
		hold, err := s.Store.TryLockClaim(uid)
		check.Must(s.t, err)
		if hold != nil {
			hold.Release()
			return
		}
	}
	s.t.Fatalf("claim %s is not left alone", uid)
}

// tidy runs one pass and waits for what it began.
func (s *site) tidy() (expected map[string]bool) {
	s.t.Helper()
	expected = s.collection.pass(s.t.Context(), nil)
	s.operations.wg.Wait()
	return expected
}

// holders are the claims that hold a device, joined by blanks.
func (s *site) holders(d apiResult) string {
	s.t.Helper()
	uids, err := s.Store.Holders(d.Pool, d.Device)
	check.Must(s.t, err)
	out := ""
	for i, uid := range uids {
		if i > 0 {
			out += " "
		}
		out += uid
	}
	return out
}

// heldBy wants a device to be held by one claim, or with an empty UID by none.
func (s *site) heldBy(uid string, devices ...apiResult) {
	s.t.Helper()
	for _, d := range devices {
		if got := s.holders(d); got != uid {
			s.t.Errorf("device %s is held by %q, want %q", d.Device, got, uid)
		}
	}
}

// records wants the claims that have a record to be these, when those that were answered are gone.
func (s *site) records(want ...string) {
	s.t.Helper()
	uids, err := s.Store.UIDs()
	check.Must(s.t, err)
	for _, uid := range uids {
		if r, err := s.Store.Load(uid); err == nil && r.Released() {
			s.atRest(uid)
		}
	}
	got, err := s.Store.UIDs()
	check.Must(s.t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("claims with a record (-want +got):\n%s", diff)
	}
}

func (s *site) load(uid string) *record.Record {
	s.t.Helper()
	r, err := s.Store.Load(uid)
	check.Must(s.t, err)
	return r
}

// inPhase wants a claim's record on disk to be in a phase.
func (s *site) inPhase(uid string, want record.Phase) {
	s.t.Helper()
	if got := s.load(uid).Phase; got != want {
		s.t.Errorf("claim %s is in phase %s, want %s", uid, got, want)
	}
}

// reported wants these incidents, "REASON UID", since the last call.
func (s *site) reported(want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.reasons()); diff != "" {
		s.t.Errorf("incidents (-want +got):\n%s", diff)
	}
}

// there says whether a path is there.
func there(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// receive takes a value, or gives up.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happens")
		panic("unreachable")
	}
}

type apiResult = resourceapi.DeviceRequestAllocationResult

func result(request string, kind device.Kind, name string) apiResult {
	return apiResult{Request: request, Driver: v1alpha1.DriverName, Pool: testNode + "/" + string(kind), Device: name}
}

// aGPU and aDisk are results whose requests are named like the devices.
func aGPU(name string) apiResult  { return result(name, device.KindGPU, name) }
func aDisk(name string) apiResult { return result(name, device.KindHost, name) }

func asAdmin(r apiResult) apiResult {
	r.AdminAccess = new(true)
	return r
}

func share(r apiResult, id types.UID) apiResult {
	r.ShareID = &id
	return r
}

// plainClass is the DeviceClass of claims without a configuration of a class. Any other class of these tests is named by its only
// configuration.
const plainClass = "any"

// classNamed is the DeviceClass of a name.
func classNamed(name string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if name != plainClass {
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: opaque(name)}}
	}
	return class
}

// live returns the DeviceClasses as they are now: the tests' own, and else those of the names.
func (p *place) live(_ context.Context, names []string) (map[string]*resourceapi.DeviceClass, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classesAsked++
	found := map[string]*resourceapi.DeviceClass{}
	for _, name := range names {
		class, known := p.classes[name]
		if !known {
			class = classNamed(name)
		}
		if class != nil {
			found[name] = class
		}
	}
	return found, p.classesErr
}

// setClass changes what a class is now. Nil: it is gone.
func (p *place) setClass(name string, class *resourceapi.DeviceClass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classes[name] = class
}

// allocated is the claim team-a/claim-UID with an allocation, and a spec that asks for it.
func allocated(uid string, results ...apiResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: objects.Allocation(results...)},
	}
	objects.Asked(c, plainClass)
	return c
}

func opaque(content string) resourceapi.DeviceConfiguration {
	return objects.Opaque(v1alpha1.DriverName, content)
}

// configured adds an opaque configuration, for some requests or all, to an allocated claim.
func configured(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, content string, requests ...string,
) *resourceapi.ResourceClaim {
	devices := &c.Status.Allocation.Devices
	devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests, DeviceConfiguration: opaque(content),
	})
	class := plainClass
	for _, config := range devices.Config {
		if config.Source == resourceapi.AllocationConfigSourceClass {
			class = string(config.Opaque.Parameters.Raw)
		}
	}
	objects.Asked(c, class)
	return c
}

func ofClass(c *resourceapi.ResourceClaim, content string, requests ...string) *resourceapi.ResourceClaim {
	return configured(c, resourceapi.AllocationConfigSourceClass, content, requests...)
}

func ofClaim(c *resourceapi.ResourceClaim, content string, requests ...string) *resourceapi.ResourceClaim {
	return configured(c, resourceapi.AllocationConfigSourceClaim, content, requests...)
}

// entries are the names in a directory.
func (p *place) entries(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(dir)
	check.Must(p.t, err)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

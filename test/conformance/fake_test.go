// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"
)

const (
	fakeDriver = "dra.example.com"
	fakeNode   = "node-1"
	fakePool   = "node-1"
	// longPatience is for what comes, on a machine that may be busy with other things.
	longPatience = time.Minute
)

// fakePlugin is a small plugin that keeps every promise, but for the fault that a test gives it. What is in memory stands for its
// disk: a restart keeps it.
type fakePlugin struct {
	t    *testing.T
	dir  string
	kube *fake.Clientset
	// fault is the name of what is wrong with it, "" for nothing.
	fault string
	// patience is what the checks have. blink is a moment of it that is long for a race.
	patience, blink time.Duration

	mu      sync.Mutex
	records map[types.UID]*fakeRecord
	owners  map[device]types.UID
	// serial makes things differ. ended are claims that were unprepared, flying the calls under way.
	serial, starts int
	ended          map[types.UID]bool
	flying         int
	streams        int
	stop           func()

	registerapi.UnimplementedRegistrationServer
	drav1.UnimplementedDRAPluginServer
	drahealthv1.UnimplementedDRAResourceHealthServer
}

// fakeRecord is what a prepared claim holds.
type fakeRecord struct {
	claim   *resourceapi.ResourceClaim
	devices []*drav1.Device
}

// newFake returns a plugin for which the checks have patience.
func newFake(t *testing.T, fault string, patience time.Duration) *fakePlugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "fcf") //nolint:usetesting // the test's own directory is too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &fakePlugin{
		t: t, dir: dir, kube: fake.NewClientset(), fault: fault, patience: patience, blink: min(patience/15, 100*time.Millisecond),
		records: map[types.UID]*fakeRecord{}, owners: map[device]types.UID{}, ended: map[types.UID]bool{},
	}
	f.kube.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateAction); ok {
			if c, ok := create.GetObject().(*resourceapi.ResourceClaim); ok {
				c.UID = uuid.NewUUID()
			}
		}
		return false, nil, nil
	})
	must(t, os.Mkdir(f.path("cdi"), 0o755))
	f.publish(t.Context())
	f.start(t.Context())
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *fakePlugin) path(name string) string { return filepath.Join(f.dir, name) }

// is says whether the fault is the named one.
func (f *fakePlugin) is(fault string) bool {
	return f.fault == fault
}

// config is that of a run against the fake.
func (f *fakePlugin) config() Config {
	restart := func(ctx context.Context) error {
		f.restart(ctx)
		return nil
	}
	return Config{
		Kube: f.kube, Driver: fakeDriver, Node: fakeNode, Endpoint: f.path("dra.sock"), Registration: f.path("*-reg.sock"),
		CDIDirs: []string{f.path("cdi")}, Class: "any.example.com", Restart: restart, Reboot: func(ctx context.Context) error {
			f.reboot(ctx)
			return nil
		},
		CallTimeout: 20 * f.patience, Patience: f.patience, StableFor: 5 * f.blink, Parallel: 4,
	}
}

func (f *fakePlugin) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	dra, registrar := grpc.NewServer(), grpc.NewServer()
	older := f.is("mode: older services")
	if !older {
		drav1.RegisterDRAPluginServer(dra, f)
		drahealthv1.RegisterDRAResourceHealthServer(dra, f)
	}
	if !f.is("services: lists what it does not serve") {
		drav1beta1.RegisterDRAPluginServer(dra, drav1beta1.V1ServerWrapper{DRAPluginServer: f})
	}
	drahealthv1alpha1.RegisterDRAResourceHealthServer(dra, drahealthv1.V1ServerWrapper{Server: f})
	registerapi.RegisterRegistrationServer(registrar, f)
	var group sync.WaitGroup
	f.stop = func() {
		cancel()
		dra.Stop()
		registrar.Stop()
		group.Wait()
	}
	for name, server := range map[string]*grpc.Server{"dra.sock": dra, fakeDriver + "-reg.sock": registrar} {
		listener, err := net.Listen("unix", f.path(name))
		must(f.t, err)
		group.Go(func() { _ = server.Serve(listener) })
	}
	group.Go(func() { f.background(ctx) })
}

// background does what a plugin should not do while nothing happens.
func (f *fakePlugin) background(ctx context.Context) {
	rewrite, replace := f.is("slices: written again and again"), f.is("slices: deleted and made again and again")
	for (rewrite || replace) && sleep(ctx, f.blink/4) {
		if replace {
			f.replace(ctx)
		} else {
			f.publish(ctx)
		}
	}
}

func (f *fakePlugin) restart(ctx context.Context) {
	f.stop()
	f.starts++
	if f.is("restart: forgets the claims") {
		clear(f.records)
	}
	if f.is("restart: forgets who holds what") {
		clear(f.owners)
	}
	if f.is("restart: sweeps spec files in use") {
		f.wipe()
	}
	if f.is("restart: publishes anew") {
		f.unpublish(ctx)
		f.publish(ctx)
	}
	if f.is("restart: publishes less") {
		f.unpublish(ctx)
	}
	f.start(ctx)
}

func (f *fakePlugin) reboot(ctx context.Context) {
	f.wipe()
	if f.is("reboot: keeps devices of forgotten claims") {
		clear(f.records)
	}
	f.restart(ctx)
}

func (f *fakePlugin) wipe() {
	must(f.t, os.RemoveAll(f.path("cdi")))
	must(f.t, os.Mkdir(f.path("cdi"), 0o755))
}

func (f *fakePlugin) unpublish(ctx context.Context) {
	list, err := f.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	must(f.t, err)
	for _, s := range list.Items {
		must(f.t, f.kube.ResourceV1().ResourceSlices().Delete(ctx, s.Name, metav1.DeleteOptions{}))
	}
}

// replace deletes the slices and makes them again, one after the other, so that a check that lists them always finds one.
func (f *fakePlugin) replace(ctx context.Context) {
	client := f.kube.ResourceV1().ResourceSlices()
	for i := range 2 {
		s := f.slice(i)
		must(f.t, client.Delete(ctx, s.Name, metav1.DeleteOptions{}))
		_, err := client.Create(ctx, s, metav1.CreateOptions{})
		must(f.t, err)
	}
}

// publish writes two slices of two devices.
func (f *fakePlugin) publish(ctx context.Context) {
	if f.is("slices: none") {
		return
	}
	for i := range 2 {
		s := f.slice(i)
		if i == 1 && f.is("slices: half a pool") {
			continue
		}
		client := f.kube.ResourceV1().ResourceSlices()
		if _, err := client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			_, err = client.Create(ctx, s, metav1.CreateOptions{})
			must(f.t, err)
		}
	}
}

func (f *fakePlugin) slice(i int) *resourceapi.ResourceSlice {
	f.mu.Lock()
	f.serial++
	serial := f.serial
	f.mu.Unlock()
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("slice-%d", i), UID: types.UID(fmt.Sprint("slice-", i)), ResourceVersion: fmt.Sprint(serial),
		},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: fakeDriver, NodeName: ptr.To(fakeNode),
			Pool:    resourceapi.ResourcePool{Name: fakePool, Generation: 1, ResourceSliceCount: 2},
			Devices: []resourceapi.Device{{Name: fmt.Sprintf("dev-%d", 2*i)}, {Name: fmt.Sprintf("dev-%d", 2*i+1)}},
		},
	}
	if f.starts > 0 && f.is("restart: publishes anew") || f.is("slices: deleted and made again and again") {
		s.UID = types.UID(fmt.Sprint("slice-", i, "-", serial))
	}
	if i == 1 && f.shares() {
		for j := range s.Spec.Devices {
			shareable(&s.Spec.Devices[j])
		}
	}
	if f.is("slices: a device twice") {
		s.Spec.Devices[0].Name = "dev-0"
	}
	return s
}

// shares says whether the second slice's devices allow several allocations.
func (f *fakePlugin) shares() bool {
	return f.is("mode: shared devices") || strings.HasPrefix(f.fault, "shares: ")
}

// shareable lets a device be allocated up to four times.
func shareable(d *resourceapi.Device) {
	d.AllowMultipleAllocations = ptr.To(true)
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
		Value: resource.MustParse("4Gi"),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    ptr.To(resource.MustParse("2Gi")),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1Gi"))},
		},
	}}
}

func (f *fakePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	info := &registerapi.PluginInfo{
		Type: registerapi.DRAPlugin, Name: fakeDriver, Endpoint: f.path("dra.sock"),
		SupportedVersions: []string{drav1.DRAPluginService, drav1beta1.DRAPluginService, drahealthv1.DRAResourceHealthService},
	}
	switch {
	case f.is("mode: older services"):
		info.SupportedVersions = []string{drav1beta1.DRAPluginService, drahealthv1alpha1.DRAResourceHealthService}
	case f.is("info: type"):
		info.Type = registerapi.CSIPlugin
	case f.is("info: name"):
		info.Name = "other.example.com"
	case f.is("info: relative endpoint"):
		info.Endpoint = "dra.sock"
	case f.is("info: dead endpoint"):
		info.Endpoint = f.path("nobody.sock")
	case f.is("info: unknown versions"):
		info.SupportedVersions = []string{"v0.DRAPlugin"}
	case f.is("restart: other versions") && f.starts > 0:
		info.SupportedVersions = info.SupportedVersions[:1]
	case f.is("notify: changes the information") && f.flag("notified"):
		info.Endpoint += ".new"
	case f.is("health: not offered"):
		info.SupportedVersions = info.SupportedVersions[:2]
	case f.is("info: error"):
		return nil, errors.New("not now")
	}
	return info, nil
}

// flag says whether mark was called with a name.
func (f *fakePlugin) flag(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[types.UID(name)]
}

func (f *fakePlugin) mark(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.ended[types.UID(name)]
	f.ended[types.UID(name)] = true
	return before
}

func (f *fakePlugin) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if f.mark("notified") && f.is("notify: only once") || f.starts > 0 && f.is("restart: refuses the registration") {
		return nil, errors.New("I am registered already")
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (f *fakePlugin) NodeWatchResources(
	_ *drahealthv1.NodeWatchResourcesRequest, stream drahealthv1.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	f.mu.Lock()
	f.streams++
	stale := f.is("health: second stream is empty") && f.streams > 1
	f.mu.Unlock()
	timeout := int64(longPatience.Seconds())
	if strings.HasPrefix(f.fault, "health: ") {
		timeout = 1
	}
	for first := true; ; first = false {
		report := &drahealthv1.NodeWatchResourcesResponse{}
		for i := range 4 {
			if i == 3 && f.is("health: a device is left out") || stale || !first && i == 2 && f.is("health: a device is not sent again") {
				continue
			}
			report.Devices = append(report.Devices, &drahealthv1.DeviceHealth{
				Device: &drahealthv1.DeviceIdentifier{PoolName: fakePool, DeviceName: fmt.Sprintf("dev-%d", i)},
				Health: drahealthv1.HealthStatus_HEALTHY, HealthCheckTimeoutSeconds: timeout,
			})
		}
		if err := stream.Send(report); err != nil {
			return err
		}
		if f.is("health: nothing is sent again") {
			<-stream.Context().Done()
			return nil
		}
		if !sleep(stream.Context(), 5*f.blink) {
			return nil
		}
	}
}

// spec is the content of a spec file. Each device of a claim has a file of its own.
func (f *fakePlugin) spec(name, value string) string {
	edits := fmt.Sprintf(`"env":["DEVICE=%s"]`, value)
	switch {
	case f.is("cdi: node that is not there"):
		edits = `"deviceNodes":[{"path":"/dev/no-such-node"}]`
	case f.is("cdi: mount of what is not there"):
		edits = `"mounts":[{"hostPath":"/no/such/directory","containerPath":"/data"}]`
	}
	return fmt.Sprintf(`{"cdiVersion":"0.5.0","kind":"example.com/claim","devices":[{"name":%q,"containerEdits":{%s}}]}`, name, edits)
}

func (f *fakePlugin) write(name, content string) {
	must(f.t, os.WriteFile(filepath.Join(f.path("cdi"), name), []byte(content), 0o644))
}

// ensure writes the spec files of a record.
func (f *fakePlugin) ensure(r *fakeRecord) {
	if f.is("cdi: no files") {
		return
	}
	for _, d := range r.devices {
		for _, id := range d.CdiDeviceIds {
			name := id[strings.Index(id, "=")+1:]
			value := d.DeviceName
			if f.is("cdi: another meaning for the next claim") {
				value = r.claim.Name
			}
			f.write(name+".json", f.spec(name, value))
		}
	}
	if f.is("cdi: an invalid file") {
		f.write("broken.json", `{"cdiVersion":"0.5.0","kind":"example.com/claim","devices":[]}`)
	}
}

// ids are a device's, unique for the claim.
func (f *fakePlugin) ids(uid types.UID, name string) []string {
	id := fmt.Sprintf("example.com/claim=c%s-%s", uid, name)
	switch {
	case f.is("cdi: no ids"):
		return nil
	case f.is("cdi: unqualified id"):
		return []string{name}
	case f.is("cdi: an id twice"):
		return []string{id, id}
	case f.is("cdi: one id for all devices"):
		return []string{fmt.Sprintf("example.com/claim=c%s", uid)}
	case f.is("cdi: another meaning for the next claim"):
		return []string{"example.com/claim=" + name}
	}
	return []string{id}
}

// wantClean wants nothing left of a run: neither claims nor namespaces nor files, and no device held.
func (f *fakePlugin) wantClean() {
	f.t.Helper()
	claims, err := f.kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	must(f.t, err)
	namespaces, err := f.kube.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
	must(f.t, err)
	left, err := os.ReadDir(f.path("cdi"))
	must(f.t, err)
	if len(claims.Items)+len(namespaces.Items)+len(left)+len(f.records)+len(f.owners) > 0 {
		f.t.Errorf("left: %d claims, %d namespaces, files %v, records %v, owners %v", len(claims.Items), len(namespaces.Items), left,
			f.records, f.owners)
	}
}

func sortedUIDs(records map[types.UID]*fakeRecord) []types.UID {
	return slices.Sorted(maps.Keys(records))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

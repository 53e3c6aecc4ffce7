// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/signed"
)

// Ids of two shells, of two accelerators and of a blank one.
const (
	shell      = "69528db6eb31577a8c3668f9faa081f6"
	otherShell = "9926ab6d6c925a68aabca7d84c545738"
	nlb0       = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3       = "f7df405cbd7acf7222f144b0b93acd18"
	blankAFU   = "b1a2c3d4e5f60718293a4b5c6d7e8f90"

	testBoot = "boot-1"
	// artifactsDir is the directory of the store below that of the state.
	artifactsDir = "artifacts"
)

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// objects is an API server that answers reads of the objects that a test puts there. It has no more of one than what real clients ask.
type objects struct {
	t       *testing.T
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	mu      sync.Mutex
	held    map[string]any
	// asked are the paths of all requests.
	asked []string
	// broken makes it answer 500.
	broken bool
}

func newObjects(t *testing.T) *objects {
	t.Helper()
	o := &objects{t: t, held: map[string]any{}}
	server := httptest.NewServer(o)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	var err error
	o.dynamic, err = dynamic.NewForConfig(config)
	check.Must(t, err)
	o.kube, err = kubernetes.NewForConfig(config)
	check.Must(t, err)
	return o
}

const groupPath = "/apis/fettle.dev/v1alpha1/"

func (o *objects) put(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1alpha1.FPGABitstream:
		object.APIVersion, object.Kind = v1alpha1.GroupVersion.String(), v1alpha1.KindFPGABitstream
		o.held[groupPath+"namespaces/"+object.Namespace+"/fpgabitstreams/"+object.Name] = object
	case *v1alpha1.ClusterFPGABitstream:
		object.APIVersion, object.Kind = v1alpha1.GroupVersion.String(), v1alpha1.KindClusterFPGABitstream
		o.held[groupPath+"clusterfpgabitstreams/"+object.Name] = object
	case *v1alpha1.TrustPolicy:
		object.APIVersion, object.Kind = v1alpha1.GroupVersion.String(), v1alpha1.KindTrustPolicy
		o.held[groupPath+"trustpolicies/"+object.Name] = object
	case *corev1.Secret:
		object.APIVersion, object.Kind = "v1", "Secret"
		o.held["/api/v1/namespaces/"+object.Namespace+"/secrets/"+object.Name] = object
	default:
		o.t.Fatalf("%T is not an object of this test", object)
	}
}

func (o *objects) setBroken(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.broken = on
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, r.URL.Path)
	answer, found := o.held[r.URL.Path]
	code := http.StatusOK
	switch {
	case o.broken:
		code, answer = http.StatusInternalServerError, statusOf(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case r.URL.Path == groupPath+"clusterfpgabitstreams", r.URL.Path == groupPath+"trustpolicies":
		list := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "List"}
		items := []any{}
		for _, path := range slices.Sorted(maps.Keys(o.held)) {
			if strings.HasPrefix(path, r.URL.Path+"/") {
				items = append(items, o.held[path])
			}
		}
		list["items"], answer = items, list
	case !found:
		code, answer = http.StatusNotFound, statusOf(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func statusOf(code int32, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
	}
}

// resolved is the status of an object of the first generation.
func resolved(images ...v1alpha1.BitstreamImage) v1alpha1.FPGABitstreamStatus {
	return v1alpha1.FPGABitstreamStatus{ObservedGeneration: 1, Digest: images[0].Manifest, Images: images}
}

// site is a registry and an API server whose objects name what it has.
type site struct {
	*signed.Registry
	*objects
	t *testing.T
}

func newSite(t *testing.T) *site {
	t.Helper()
	return &site{Registry: signed.Start(t, true), objects: newObjects(t), t: t}
}

// client asks each thing once, so that what a registry does to one try is seen.
func (s *site) client() *registry.Client {
	s.t.Helper()
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{s.Host}, Tries: 1, Backoff: time.Millisecond, MaxWait: time.Millisecond,
	})
	check.Must(s.t, err)
	return client
}

// store is a node's store of files in a directory.
func (s *site) store(dir string) *artifacts.Node {
	s.t.Helper()
	files := artifacts.New(artifacts.Config{Dir: filepath.Join(dir, artifactsDir), Client: s.client(), Kube: s.kube})
	s.t.Cleanup(func() { check.Must(s.t, files.Destroy()) })
	return files
}

// image pushes a bitstream and says of it what the controller would.
func (s *site) image(repository, interfaceID, afu string) v1alpha1.BitstreamImage {
	s.t.Helper()
	return s.Registry.Registry.Image(s.t, repository, interfaceID, afu)
}

// object is an FPGABitstream with images that the registry has.
func (s *site) object(namespace, name string, images ...v1alpha1.BitstreamImage) *v1alpha1.FPGABitstream {
	return &v1alpha1.FPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1},
		Spec:       v1alpha1.FPGABitstreamSpec{Image: s.Host + "/team/" + name + ":v1"}, Status: resolved(images...),
	}
}

func (s *site) clusterObject(name string, images ...v1alpha1.BitstreamImage) *v1alpha1.ClusterFPGABitstream {
	return &v1alpha1.ClusterFPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec:       v1alpha1.ClusterFPGABitstreamSpec{Image: s.Host + "/team/" + name + ":v1", Namespaces: []string{"*"}},
		Status:     resolved(images...),
	}
}

// quickly is a disk that is not waited for: only a power loss would tell.
func quickly() disk.FS {
	in := fault.New()
	in.Quick = true
	return in.FS(disk.OS{})
}

// lab is a node with regions in memory, a registry and an API server.
type lab struct {
	*site
	*Feature
	t     *testing.T
	dir   string
	cards *chips
	// remade counts how often all namespaces were deleted and made again.
	remade int
}

// namespaceUID is the UID of a namespace as it is now.
func (l *lab) namespaceUID(name string) string { return fmt.Sprintf("%s-uid-%d", name, l.remade) }

// regionOf is a device on a card. Its region shows the first accelerator.
func regionOf(name, card, interfaceID string) device.Device {
	return device.Device{
		Kind: device.KindFPGA, Name: name, Region: &fpga.Region{
			Backend: "memory", Card: card, InterfaceID: interfaceID, Requester: "sys/bus/pci/devices/" + card,
		},
		Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + name, Major: 245, Permissions: "rw"}}},
	}
}

func newLab(t *testing.T, devices ...device.Device) *lab {
	t.Helper()
	s, dir := newSite(t), t.TempDir()
	l := &lab{site: s, t: t, dir: dir, cards: &chips{regions: map[string]*fpga.Region{}, shows: map[*fpga.Region]string{}}}
	for i := range devices {
		l.cards.regions[devices[i].Name], l.cards.shows[devices[i].Region] = devices[i].Region, nlb0
		l.setIOMMU(devices[i].Region, "DMA-FQ")
	}
	l.Feature = newFeature(t, s, Config{
		HostRoot: dir, StateDir: dir, File: &nodeconfig.FPGA{Programming: true, MaxFailedProgrammings: maxFailures},
	})
	l.contents = region.OpenContents(quickly(), filepath.Join(dir, regionsDir))
	l.failures = region.OpenFailures(l.contents, maxFailures, nil)
	l.programmer = region.New(region.Config{
		Find: l.cards.find, Backends: map[string]region.Backend{"memory": l.cards}, Contents: l.contents, Open: l.Artifacts.Open,
		Siblings: func(name string) []string { return l.cards.siblings(name) }, Failures: l.failures, HostRoot: dir, BootID: testBoot,
	})
	return l
}

// shows is a scan of the machine, with a Review.
func (l *lab) shows(devices ...device.Device) {
	l.t.Helper()
	v := nodefixture.SnapshotWith(devices...)
	l.Review(l.t.Context(), v)
	l.Holder.Set(v)
}

// maxFailures is how many programmings of a namespace may fail in a lab.
const maxFailures = 3

// setIOMMU gives the device of a region an IOMMU group of a type, "" for none.
func (l *lab) setIOMMU(r *fpga.Region, kind string) {
	l.t.Helper()
	device, group := filepath.Join(l.dir, r.Requester), filepath.Join(l.dir, "sys/kernel/iommu_groups/7")
	check.Must(l.t, os.RemoveAll(filepath.Join(device, "iommu_group")))
	if kind == "" {
		return
	}
	check.Must(l.t, os.MkdirAll(device, 0o755))
	check.Must(l.t, os.MkdirAll(group, 0o755))
	check.Must(l.t, os.Symlink("../../../../kernel/iommu_groups/7", filepath.Join(device, "iommu_group")))
	check.Must(l.t, os.WriteFile(filepath.Join(group, "type"), []byte(kind+"\n"), 0o600))
}

// newFeature adds to a configuration what is the same for all tests.
func newFeature(t *testing.T, s *site, c Config) *Feature {
	t.Helper()
	records, err := record.Open(disk.OS{}, filepath.Join(c.StateDir, "state"))
	check.Must(t, err)
	c.Node, c.BootID, c.Namespace = nodefixture.Node, testBoot, "fettle"
	c.Policies, err = trustpolicies.NewReader(s.dynamic, nil, nil)
	check.Must(t, err)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.Dynamic, c.Records, c.Artifacts, c.Holder = s.dynamic, records, s.store(c.StateDir), inventory.NewHolder()
	c.Names = cdi.NewNames([cdi.SecretSize]byte{1})
	c.Rescan, c.Registry = notify.New(), prometheus.NewRegistry()
	if c.Event == nil {
		c.Event = func(_, _ *corev1.ObjectReference, _, _, _ string) {}
	}
	return New(c)
}

// chips are regions in memory that remember what was done to them.
type chips struct {
	regions map[string]*fpga.Region
	shows   map[*fpga.Region]string
	trace   []string
	params  map[string]int32
	// fail is what programming ends with, failing the same by AFU id.
	fail    error
	failing map[string]error
}

func (c *chips) find(name string) (*fpga.Region, error) {
	if r, ok := c.regions[name]; ok {
		return r, nil
	}
	return nil, region.ErrGone
}

func (c *chips) siblings(name string) (others []string) {
	for other, r := range c.regions {
		if other != name && r.Card == c.regions[name].Card {
			others = append(others, other)
		}
	}
	return others
}

func (c *chips) nameOf(r *fpga.Region) string {
	for name, other := range c.regions {
		if other == r {
			return name
		}
	}
	return "?"
}

func (c *chips) State(r *fpga.Region) (region.State, error) {
	return region.State{AFU: c.shows[r]}, nil
}

func (c *chips) Params(_ context.Context, _ *fpga.Region, names []string) (map[string]int32, error) {
	out := map[string]int32{}
	for _, name := range names {
		value, ok := c.params[name]
		if !ok {
			return nil, backend.ErrNoParam
		}
		out[name] = value
	}
	return out, nil
}

func (c *chips) Acquire(_ context.Context, r *fpga.Region, _ string) (region.Lease, error) {
	return &chipLease{chips: c, region: r}, nil
}

type chipLease struct {
	*chips
	region *fpga.Region
}

func (l *chipLease) note(what string) { l.trace = append(l.trace, what+" "+l.nameOf(l.region)) }

func (l *chipLease) Program(_ context.Context, load region.Load) (time.Duration, error) {
	l.note("program " + load.AFU)
	err := cmp.Or(l.fail, l.failing[load.AFU])
	if err == nil {
		l.shows[l.region] = load.AFU
	}
	return time.Millisecond, err
}

func (l *chipLease) SetParams(_ context.Context, params []region.Param) error {
	for _, p := range params {
		l.note(fmt.Sprintf("set %s=%d of", p.Name, p.Value))
	}
	return nil
}

func (l *chipLease) Reset() error                          { l.note("reset"); return nil }
func (l *chipLease) ResetForRelease(context.Context) error { return l.Reset() }
func (l *chipLease) Release() error                        { return nil }

// wants an error, of a cause unless that is nil, which says some words.
func wants(t testing.TB, err, cause error, words ...string) {
	t.Helper()
	if err == nil || cause != nil && !errors.Is(err, cause) {
		t.Errorf("got %v, want %v %q", err, cause, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: does not say %q", err, w)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// Ids of two shells, of two accelerators and of a blank one.
const (
	shell      = "69528db6eb31577a8c3668f9faa081f6"
	otherShell = "9926ab6d6c925a68aabca7d84c545738"
	nlb0       = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3       = "f7df405cbd7acf7222f144b0b93acd18"
	blankAFU   = "b1a2c3d4e5f60718293a4b5c6d7e8f90"

	testBoot = "boot-1"
)

// gbs is an image in its usual form.
func gbs(interfaceID, afu string) []byte {
	metadata := fmt.Sprintf(`{"version":1,"platform-name":"DCP","afu-image":{"power":50,"interface-uuid":%q,"magic-no":488605312,`+
		`"accelerator-clusters":[{"total-contexts":1,"name":"afu","accelerator-type-uuid":%q}]}}`, interfaceID, afu)
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(metadata)))
	return slices.Concat([]byte("XeonFPGA\xb7GBSv001"), length, []byte(metadata), bytes.Repeat([]byte{0xa5}, 1000))
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// objects is an API server that answers reads of the objects that a test puts there. It has no more of one than what real clients ask.
type objects struct {
	t    *testing.T
	mu   sync.Mutex
	held map[string]any
	// asked are the paths of all requests.
	asked []string
	// broken makes it answer 500.
	broken bool
}

func newObjects(t *testing.T) (*objects, Clients) {
	t.Helper()
	o := &objects{t: t, held: map[string]any{}}
	server := httptest.NewServer(o)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	var clients Clients
	var err error
	clients.Dynamic, err = dynamic.NewForConfig(config)
	must(t, err)
	clients.Kube, err = kubernetes.NewForConfig(config)
	must(t, err)
	return o, clients
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
	case r.URL.Path == groupPath+"clusterfpgabitstreams":
		list := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ClusterFPGABitstreamList"}
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

// hub is a registry behind something that may answer in its place.
type hub struct {
	*fpgaregistry.Registry
	t *testing.T
	// host is where the hub is; that of the Registry is behind it.
	host string
	// requests are all that arrived.
	requests atomic.Int64

	mu     sync.Mutex
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{Registry: fpgaregistry.Start(t), t: t}
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: h.Host})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		h.mu.Lock()
		before := h.before
		h.mu.Unlock()
		if before == nil || !before(w, r) {
			behind.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	h.host = strings.TrimPrefix(server.URL, "http://")
	return h
}

// intercept answers the blob's requests itself, and with nil no longer.
func (h *hub) intercept(digest string, answer func(w http.ResponseWriter, r *http.Request)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		mine := answer != nil && strings.HasSuffix(r.URL.Path, "/blobs/"+digest)
		if mine {
			answer(w, r)
		}
		return mine
	}
}

// client asks each thing once, so that what a registry does to one try is seen.
func (h *hub) client() *registry.Client {
	h.t.Helper()
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{h.host}, Tries: 1, Backoff: time.Millisecond, MaxWait: time.Millisecond,
	})
	must(h.t, err)
	return client
}

// image pushes a bitstream and says of it what the controller would.
func (h *hub) image(repository, interfaceID, afu string) v1alpha1.BitstreamImage {
	h.t.Helper()
	file := gbs(interfaceID, afu)
	config := fmt.Sprintf(`{"format":"gbs","interfaceID":%q,"id":%q}`, interfaceID, afu)
	manifest := h.Push(h.t, repository, "", config, fpga.GBS, file)
	return v1alpha1.BitstreamImage{
		Manifest: manifest.Digest, Layer: digestOf(file), Size: int64(len(file)), Format: "gbs", ID: afu, AFUID: afu, InterfaceID: interfaceID,
	}
}

// resolved is the status of an object of the first generation.
func resolved(images ...v1alpha1.BitstreamImage) v1alpha1.FPGABitstreamStatus {
	return v1alpha1.FPGABitstreamStatus{ObservedGeneration: 1, Digest: images[0].Manifest, Images: images}
}

// object is an FPGABitstream with images that the hub has.
func (h *hub) object(namespace, name string, images ...v1alpha1.BitstreamImage) *v1alpha1.FPGABitstream {
	return &v1alpha1.FPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1},
		Spec:       v1alpha1.FPGABitstreamSpec{Image: h.host + "/team/" + name + ":v1"}, Status: resolved(images...),
	}
}

func (h *hub) clusterObject(name string, images ...v1alpha1.BitstreamImage) *v1alpha1.ClusterFPGABitstream {
	return &v1alpha1.ClusterFPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec:       v1alpha1.ClusterFPGABitstreamSpec{Image: h.host + "/team/" + name + ":v1", Namespaces: []string{"*"}},
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
	*hub
	*objects
	*fpgas
	t     *testing.T
	dir   string
	cards *chips
}

// regionOf is a device on a card. Its region shows the first accelerator.
func regionOf(name, card, interfaceID string) device.Device {
	return device.Device{
		Kind: device.KindFPGA, Name: name, Region: &fpga.Region{Backend: "memory", Card: card, InterfaceID: interfaceID},
		Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + name, Major: 245, Permissions: "rw"}}},
	}
}

func newLab(t *testing.T, devices ...device.Device) *lab {
	t.Helper()
	h := newHub(t)
	o, clients := newObjects(t)
	dir := t.TempDir()
	client := h.client()
	contents := region.OpenContents(quickly(), filepath.Join(dir, regionsDir))
	files := &artifacts{dir: filepath.Join(dir, artifactsDir), client: client, kube: clients.Kube}
	t.Cleanup(func() { must(t, files.destroy()) })
	cards := &chips{regions: map[string]*fpga.Region{}, shows: map[*fpga.Region]string{}}
	for i := range devices {
		cards.regions[devices[i].Name], cards.shows[devices[i].Region] = devices[i].Region, nlb0
	}
	return &lab{
		hub: h, objects: o, t: t, dir: dir, cards: cards,
		fpgas: &fpgas{
			programming: true,
			bitstreams:  &bitstreams{dynamic: clients.Dynamic, client: client, namespace: "fettle", hostRoot: dir},
			artifacts:   files, contents: contents,
			programmer: region.New(region.Config{
				Find: cards.find, Backends: map[string]region.Backend{"memory": cards}, Contents: contents, Open: files.open,
				HostRoot: dir, BootID: testBoot,
			}),
		},
	}
}

// chips are regions in memory that remember what was done to them.
type chips struct {
	regions map[string]*fpga.Region
	shows   map[*fpga.Region]string
	trace   []string
	params  map[string]int32
	// fail is what programming ends with.
	fail error
}

func (c *chips) find(name string) (*fpga.Region, error) {
	if r, ok := c.regions[name]; ok {
		return r, nil
	}
	return nil, region.ErrGone
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
	if l.fail == nil {
		l.shows[l.region] = load.AFU
	}
	return time.Millisecond, l.fail
}

func (l *chipLease) SetParams(_ context.Context, params []region.Param) error {
	for _, p := range params {
		l.note(fmt.Sprintf("set %s=%d of", p.Name, p.Value))
	}
	return nil
}

func (l *chipLease) Reset() error                { l.note("reset"); return nil }
func (l *chipLease) Leave(context.Context) error { return l.Reset() }
func (l *chipLease) Release() error              { return nil }

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

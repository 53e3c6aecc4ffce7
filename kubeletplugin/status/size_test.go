// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// texts makes texts that take more bytes than characters.
type texts struct{ *rand.Rand }

func (r texts) text(limit int) string {
	alphabet := []rune("abc <>&\"\\\n\x01äß漢🦀\u2028")
	var b strings.Builder
	for range r.IntN(limit + 1) {
		b.WriteRune(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

func (r texts) name(at, limit int) string {
	return fmt.Sprintf("%03d-%s", at, strings.Repeat("n", r.IntN(limit-4)))
}

func (r texts) digest() string {
	return fmt.Sprintf("sha256:%016x%016x%016x%016x", r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64())
}

// state is a node with up to so many of everything, and texts of up to so many characters.
func (r texts) state(most, long int) statusInput {
	some := func(limit int) int { return r.IntN(min(limit, most) + 1) }
	name := strings.Repeat("n", 1+r.IntN(253))
	in := statusInput{
		node: name, version: r.text(128), bootID: r.text(64), podUID: r.text(64), bootTime: time.Unix(1, 0), now: time.Unix(2, 0),
		snapshot: nodefixture.SnapshotWith(), published: r.IntN(2) == 0, prepared: some(1000), ready: errors.New(r.text(long)),
	}
	in.snapshot.Health = inventory.Health{}
	for i := range some(208) {
		d := nodefixture.GPU(r.name(i, 60), int64(i))
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for _, attribute := range []resourceapi.QualifiedName{
			device.AttributeProductName, device.AttributeFirmwareVersion, device.AttributeDriverVersion,
		} {
			d.Attributes[attribute] = resourceapi.DeviceAttribute{StringValue: new(r.name(i, 64))}
		}
		d.Attributes[device.AttributeVendor] = resourceapi.DeviceAttribute{StringValue: new([]string{"nvidia", "amd", "intel"}[i%3])}
		in.snapshot.Devices = append(in.snapshot.Devices, d)
	}
	for i := range some(100) {
		in.snapshot.Problems = append(in.snapshot.Problems, discover.Problem{
			Subject: r.name(i, 400), Reason: []string{"DriverNotLoaded", "BadAttribute"}[r.IntN(2)], Message: r.text(long),
		})
	}
	for range some(300) {
		in.bitstreams = append(in.bitstreams, r.digest())
	}
	slices.Sort(in.bitstreams)
	for i := range some(300) {
		in.presets = append(in.presets, v1alpha1.NodePreset{Namespace: "team", Name: r.name(i, 253), Claims: int32(1 + r.IntN(300))})
	}
	for i := range some(300) {
		in.kernelCaches = append(in.kernelCaches, r.cache(i, long))
	}
	for i := range some(40) {
		p := v1alpha1.NodePartitionPolicy{Name: r.name(i, 253), Devices: 8}
		if r.IntN(3) == 0 {
			p.Reason, p.Message = "InUse", r.text(long)
		}
		in.snapshot.PartitionPolicies = append(in.snapshot.PartitionPolicies, p)
	}
	return in
}

func (r texts) cache(i, long int) v1alpha1.NodeCache {
	c := v1alpha1.NodeCache{
		Namespace: "team-" + strings.Repeat("x", r.IntN(50)), Name: r.name(i, 253), Digest: r.digest(), Phase: v1alpha1.NodeCacheExtracted,
		Claims: int32(r.IntN(16)),
	}
	switch r.IntN(4) {
	case 0:
		c.Phase, c.Reason, c.Message = v1alpha1.NodeCacheError, "NotFetched", r.text(long)
	case 1:
		c.Phase = v1alpha1.NodeCacheDownloading
	case 2:
		c.IncompatibleDevices, c.Message = 8, r.text(long)
	default:
		c.CompatibleDevices, c.Bytes = int32(1+r.IntN(8)), r.Int64()
	}
	return c
}

// TestStatusSize: whatever a node holds, its status takes at most 8 kB, says which caches, presets and policies it leaves out, and tells
// the controller the state of up to 256 caches.
func TestStatusSize(t *testing.T) {
	largest, rests := 0, 0
	for seed := range uint64(150) {
		r := texts{rand.New(rand.NewPCG(seed, 1))}
		in := r.state([]int{3, 30, 1000}[seed%3], []int{20, 2000}[seed%2])
		got := nodeStatus(in)
		size := sizeOf(&got)
		largest = max(largest, size)
		if size > v1alpha1.MaxNodeStatus {
			t.Errorf("seed %d: %d bytes", seed, size)
		}
		if again := nodeStatus(in); !reflect.DeepEqual(got, again) {
			t.Errorf("seed %d: another status of the same state", seed)
		}
		if got.Rest != nil {
			rests++
		} else {
			got.Rest = &v1alpha1.NodeRest{}
		}
		checkCounts(t, seed, &in, &got)
		checkCaches(t, seed, in.kernelCaches, &got)
		checkFailuresFirst(t, seed, &got)
	}
	if rests < 50 || largest < v1alpha1.MaxNodeStatus*9/10 {
		t.Errorf("%d states had more than a status takes, the largest status has %d bytes", rests, largest)
	}
}

// checkCounts wants everything listed or counted.
func checkCounts(t *testing.T, seed uint64, in *statusInput, got *v1alpha1.AcceleratorNodeStatus) {
	t.Helper()
	for what, counts := range map[string][2]int{
		"problems":   {len(in.snapshot.Problems), int(got.ProblemCount)},
		"caches":     {len(in.kernelCaches), len(got.KernelCaches) + int(got.Rest.KernelCacheCount)},
		"bitstreams": {len(in.bitstreams), len(got.Bitstreams) + int(got.Rest.BitstreamCount)},
		"presets":    {len(in.presets), len(got.Presets) + int(got.Rest.PresetCount)},
		"policies":   {len(in.snapshot.PartitionPolicies), len(got.PartitionPolicies) + int(got.Rest.PartitionPolicyCount)},
	} {
		if counts[0] != counts[1] {
			t.Errorf("seed %d: %d %s, listed or counted are %d", seed, counts[0], what, counts[1])
		}
	}
	for _, digest := range got.Bitstreams {
		if !got.HasBitstream(digest) {
			t.Errorf("seed %d: a listed file is not held", seed)
		}
	}
	if len(in.bitstreams) <= 40 { // there is room for the short entries of so many beside all else
		for _, digest := range in.bitstreams {
			if !got.HasBitstream(digest) {
				t.Errorf("seed %d: file %s is lost", seed, digest)
			}
		}
	}
	for i := range in.presets {
		p := &in.presets[i]
		if claims, there := got.PresetClaims(p.Namespace, p.Name); there && claims != p.Claims {
			t.Errorf("seed %d: preset %s has %d claims, want %d", seed, p.Name, claims, p.Claims)
		}
	}
}

// checkCaches wants that what the controller counts of caches is told of each of the first 256.
func checkCaches(t *testing.T, seed uint64, caches []v1alpha1.NodeCache, got *v1alpha1.AcceleratorNodeStatus) {
	t.Helper()
	lost := 0
	for i := range caches {
		c := &caches[i]
		found := got.CachesOf(c.Namespace, c.Name, c.Digest)
		if len(found) == 0 {
			lost++
			continue
		}
		f := &found[0]
		if len(found) > 1 || f.Digest != c.Digest || f.Phase != c.Phase || f.Claims != c.Claims || failed(f) != failed(c) ||
			(f.CompatibleDevices > 0) != (c.CompatibleDevices > 0) {
			t.Errorf("seed %d: %+v is told as %+v", seed, c, found)
		}
	}
	if most := max(0, len(caches)-v1alpha1.MaxNodeCaches); lost > most {
		t.Errorf("seed %d: of %d caches %d are not told", seed, len(caches), lost)
	}
}

func checkFailuresFirst(t *testing.T, seed uint64, got *v1alpha1.AcceleratorNodeStatus) {
	t.Helper()
	if got.Rest.KernelCacheCount == 0 {
		return
	}
	sound := slices.IndexFunc(got.KernelCaches, func(c v1alpha1.NodeCache) bool { return !failed(&c) })
	all := len(got.KernelCaches) + int(got.Rest.KernelCacheCount)
	if sound >= 0 && (got.Rest.FailedKernelCacheCount > 0 && all <= v1alpha1.MaxNodeCaches ||
		slices.ContainsFunc(got.KernelCaches[sound:], func(c v1alpha1.NodeCache) bool { return failed(&c) })) {
		t.Errorf("seed %d: a cache that failed comes after one that did not", seed)
	}
}

// TestManyCachesOfATenant: a tenant makes hundreds of caches that no node can get, and has claims with something from hundreds of presets.
// The node tells of those of other namespaces all the same, and of the cluster's: the controller rolls caches out by what nodes tell.
func TestManyCachesOfATenant(t *testing.T) {
	r := texts{rand.New(rand.NewPCG(1, 1))}
	in := statusInput{node: "n", bootID: "b", snapshot: nodefixture.SnapshotWith(), now: time.Unix(2, 0)}
	add := func(namespace string, n int, phase v1alpha1.NodeCachePhase) {
		for i := range n {
			name := fmt.Sprintf("c%03d", i)
			in.kernelCaches = append(in.kernelCaches, v1alpha1.NodeCache{Namespace: namespace, Name: name, Digest: r.digest(), Phase: phase})
			in.presets = append(in.presets, v1alpha1.NodePreset{Namespace: namespace, Name: name, Claims: 1})
		}
	}
	add("", 10, v1alpha1.NodeCacheExtracted)
	add("a", 400, v1alpha1.NodeCacheError)
	add("b", 5, v1alpha1.NodeCacheExtracted)
	add("c", 400, v1alpha1.NodeCacheError)
	got := nodeStatus(in)
	for i := range in.kernelCaches {
		c := &in.kernelCaches[i]
		if c.Namespace != "" && c.Namespace != "b" {
			continue
		}
		if len(got.CachesOf(c.Namespace, c.Name, c.Digest)) == 0 {
			t.Errorf("cache %s/%s is not told of", c.Namespace, c.Name)
		}
		if _, there := got.PresetClaims(c.Namespace, c.Name); !there {
			t.Errorf("preset %s/%s is not told of", c.Namespace, c.Name)
		}
	}
}

// TestFormerReaders: a node whose lists fit writes them as before, so that a controller of the version before reads all.
func TestFormerReaders(t *testing.T) {
	r := texts{rand.New(rand.NewPCG(1, 1))}
	in := statusInput{node: "n", bootID: "b", snapshot: nodefixture.SnapshotWith(), now: time.Unix(2, 0), bitstreams: []string{r.digest()}}
	for i := range 20 {
		in.kernelCaches = append(in.kernelCaches, v1alpha1.NodeCache{
			Name: fmt.Sprintf("c%02d", i), Digest: r.digest(), Phase: v1alpha1.NodeCacheExtracted, CompatibleDevices: 8,
		})
	}
	got := nodeStatus(in)
	if got.Rest != nil || !reflect.DeepEqual(got.KernelCaches, in.kernelCaches) || !reflect.DeepEqual(got.Bitstreams, in.bitstreams) {
		t.Errorf("got %+v", got)
	}
}

// TestCutTo counts bytes of JSON and never cuts within a character.
func TestCutTo(t *testing.T) {
	r := texts{rand.New(rand.NewPCG(1, 1))}
	for range 1000 {
		text, limit := r.text(60), 8+r.IntN(60)
		got := cutTo(text, limit)
		if size := sizeOf(got) - 2; size > limit || (got != text && !strings.HasSuffix(got, "…")) {
			t.Errorf("%q to %d: %q of %d", text, limit, got, size)
		}
	}
	if got := cutTo("\xff\xff\xff\xff", 12); sizeOf(got)-2 > 12 {
		t.Errorf("bytes that are no text: %q", got)
	}
}

// TestFormerSchema: where the CRD is of a version before, the status is written without what it does not know.
func TestFormerSchema(t *testing.T) {
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{nodeResource(): "AcceleratorNodeList"})
	tries := 0
	api.PrependReactor("patch", "acceleratornodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		patch, _ := a.(clienttesting.PatchAction)
		if strings.Contains(string(patch.GetPatch()), `"rest"`) {
			return true, nil, errors.New("failed to create typed patch object: .status.rest: field not declared in schema")
		}
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
	r := &Reporter{ReporterConfig: ReporterConfig{Node: "n", Retirement: retirement.New()}, client: api.Resource(nodeResource())}
	check.Must(t, r.write(t.Context(), v1alpha1.AcceleratorNodeStatus{Rest: &v1alpha1.NodeRest{PresetCount: 1}}))
	if tries != 2 {
		t.Errorf("tried %d times", tries)
	}
}

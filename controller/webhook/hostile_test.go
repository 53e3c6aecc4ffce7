// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// What the review of one object may cost. An object that the API server accepts has at most 3 MiB.
const (
	reviewMemory = 64 << 20 // beside 400 bytes for each of the object's
	readsOfOne   = 64       // of other objects, beside 2 for each claim that a pod names
)

// hostilePod names a claim, a template and an extended resource.
const hostilePod = `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","resources":{"limits":{"example.com/device":"1"}}}],
	"resourceClaims":[{"name":"a","resourceClaimName":"claim"},{"name":"b","resourceClaimTemplateName":"template"}]}}`

// mutate changes a JSON value somewhere: its kind, its size or its depth.
func mutate(random *rand.Rand, value any) any {
	if random.IntN(4) > 0 {
		switch v := value.(type) {
		case map[string]any:
			if len(v) > 0 {
				key := slices.Sorted(maps.Keys(v))[random.IntN(len(v))]
				v[key] = mutate(random, v[key])
				return v
			}
		case []any:
			if len(v) > 0 {
				i := random.IntN(len(v))
				v[i] = mutate(random, v[i])
				return v
			}
		}
	}
	switch random.IntN(12) {
	case 0:
		return nil
	case 1:
		return []any{1e300, -1, 0, 9007199254740993.0, 0.5}[random.IntN(5)]
	case 2:
		return strings.Repeat("a", random.IntN(200_000))
	case 3:
		return strings.Repeat("\u00e9\x00\u202e", random.IntN(1000))
	case 4: // deep
		for range random.IntN(3000) {
			value = map[string]any{"a": value}
		}
		return value
	case 5: // deep
		for range random.IntN(3000) {
			value = []any{value}
		}
		return value
	case 6, 7: // many
		return slices.Repeat([]any{value}, random.IntN(40))
	case 8:
		if list, ok := value.([]any); ok && len(list) > 0 {
			return slices.Repeat(list, random.IntN(40))
		}
		return true
	case 9:
		out := map[string]any{}
		for i := range random.IntN(40) {
			out[fmt.Sprint("f", i)] = value
		}
		return out
	case 10:
		if m, ok := value.(map[string]any); ok {
			m["unknown"] = "x"
			return m
		}
		return map[string]any{}
	}
	return []any{"fettle.dev", "NaN", "1e9999999", "((((((((", `device.attributes["fettle.dev"].uuid.matches("(a+)+$")`}[random.IntN(5)]
}

// reviewers are the handlers of the webhook, with a count of what they read.
func reviewers(t *testing.T) (handle map[string]func(context.Context, ctrladmission.Request) ctrladmission.Response, reads *int) {
	t.Helper()
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	p, _ := podsUnderTest(tainting())
	reads = new(int)
	counted := func(base client.WithWatch) client.Reader {
		return interceptor.NewClient(base, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				*reads++
				return c.Get(ctx, key, o, options...)
			},
		})
	}
	p.reader = counted(p.reader.(client.WithWatch))
	r := references{reader: counted(fake.NewClientBuilder().WithScheme(scheme).Build()), judge: &admission.Judge{}}
	h := Handler{Validate: admission.Validate, Refer: r.check}
	return map[string]func(context.Context, ctrladmission.Request) ctrladmission.Response{
		"objects": func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response { // no recover: a panic is a fault
			_, response := h.review(ctx, req)
			return response
		},
		"pods": func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
			if req.Kind.Kind != "Pod" {
				return ctrladmission.Allowed("")
			}
			_, response := p.review(ctx, req)
			return response
		},
	}, reads
}

// review has both handlers review an object, and checks what it costs and what they say.
func review(t *testing.T, kind metav1.GroupVersionKind, object []byte) {
	t.Helper()
	handle, reads := reviewers(t)
	req := request(kind.Kind, kind.Version, string(object), "")
	req.Kind, req.Namespace = kind, "ns"
	claims := 0
	var pod corev1.Pod
	if kind.Kind == "Pod" && json.Unmarshal(object, &pod) == nil {
		claims = len(pod.Spec.ResourceClaims)
	}
	names := regexp.MustCompile(`\b(spec|metadata)(\.|\[|:|\b)`)
	for name, review := range handle {
		*reads = 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		response := review(t.Context(), req)
		runtime.ReadMemStats(&after)
		if !response.Allowed && !names.MatchString(response.Result.Message) {
			t.Errorf("%s refuses a %s and names no field: %.300q\n%.300q", name, kind.Kind, response.Result.Message, object)
		}
		if limit := readsOfOne + 2*claims; *reads > limit {
			t.Errorf("%s reads %d objects for a %s with %d claims, want at most %d", name, *reads, kind.Kind, claims, limit)
		}
		used := after.TotalAlloc - before.TotalAlloc
		if limit := uint64(reviewMemory + 400*len(object)); used > limit {
			t.Errorf("%s uses %d bytes for a %s of %d bytes, want at most %d:\n%.300q", name, used, kind.Kind, len(object), limit, object)
		}
	}
}

// hostileSeeds are objects of each kind that is reviewed.
func hostileSeeds() map[metav1.GroupVersionKind][]string {
	claims := func(kind string, seeds ...string) (metav1.GroupVersionKind, []string) {
		return metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind}, seeds
	}
	out := map[metav1.GroupVersionKind][]string{
		{Version: "v1", Kind: "Pod"}: {hostilePod},
		{Group: v1alpha1.GroupName, Version: "v1alpha1", Kind: "PartitionPolicy"}:  {goodParts, badParts},
		{Group: v1alpha1.GroupName, Version: "v1alpha1", Kind: "AcceleratorStack"}: {goodStack, badStack},
	}
	const fpga = `{"metadata":{"name":"a"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"ours",
		"selectors":[{"cel":{"expression":"device.attributes[\"fettle.dev\"].uuid == \"a\""}}]}}],"config":[{"requests":["r"],"opaque":
		{"driver":"fettle.dev","parameters":{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":{"name":"b"}}}}]}}}`
	for _, add := range []func() (metav1.GroupVersionKind, []string){
		func() (metav1.GroupVersionKind, []string) {
			return claims("ResourceClaim", goodClaim, badClaim, foreign, fpga)
		},
		func() (metav1.GroupVersionKind, []string) {
			return claims("ResourceClaimTemplate", `{"metadata":{"name":"t"},"spec":`+fpga+`}`)
		},
		func() (metav1.GroupVersionKind, []string) { return claims("DeviceClass", badClass) },
	} {
		kind, seeds := add()
		out[kind] = seeds
	}
	return out
}

// TestHostileReviews: whatever is in an object, its review ends without a panic, reads few others, uses little memory, and a refusal names
// a field.
func TestHostileReviews(t *testing.T) { //nolint:paralleltest // it counts the memory of the process
	random := seed.New(t)
	seeds := hostileSeeds()
	kinds := slices.SortedFunc(maps.Keys(seeds), func(a, b metav1.GroupVersionKind) int { return strings.Compare(a.Kind, b.Kind) })
	for range 150 {
		kind := kinds[random.IntN(len(kinds))]
		var object any
		check.Must(t, json.Unmarshal([]byte(seeds[kind][random.IntN(len(seeds[kind]))]), &object))
		for range 1 + random.IntN(3) {
			object = mutate(random, object)
		}
		raw, err := json.Marshal(object)
		if err != nil || len(raw) > 3<<20 { // the API server takes no more
			continue
		}
		review(t, kind, raw)
		if t.Failed() {
			return
		}
	}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for i := range 1000 { // a dry run can have as many
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprint("c", i), ResourceClaimName: ptr.To(fmt.Sprint("claim", i)),
		})
	}
	raw, err := json.Marshal(pod)
	check.Must(t, err)
	review(t, metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, raw)
}

// FuzzReviews has the fuzzer change the texts of objects.
func FuzzReviews(f *testing.F) {
	for kind, seeds := range hostileSeeds() {
		for _, object := range seeds {
			f.Add(kind.Group, kind.Version, kind.Kind, []byte(object))
		}
	}
	f.Fuzz(func(t *testing.T, group, version, kind string, object []byte) {
		review(t, metav1.GroupVersionKind{Group: group, Version: version, Kind: kind}, object)
	})
}

// BenchmarkReview is one review of a pod with 1,000 claims: at most 100 ms.
func BenchmarkReview(b *testing.B) {
	p, _ := podsUnderTest(tainting())
	var pod corev1.Pod
	for i := range 1000 {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprint("c", i), ResourceClaimName: ptr.To("foreign"),
		})
	}
	raw, err := json.Marshal(pod)
	check.Must(b, err)
	req := request("Pod", "v1", string(raw), "")
	req.Kind.Group, req.Namespace = "", "ns"
	for b.Loop() {
		p.review(b.Context(), req)
	}
}

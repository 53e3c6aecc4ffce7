// SPDX-License-Identifier: Apache-2.0

package claimspec_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/pkg/claimspec"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestAPI makes claims with what people get wrong, and asks a real API server for each whether it takes it: exactly where Faults says that
// it does not, and by a field that Faults names.
func TestAPI(t *testing.T) {
	kube, err := kubernetes.NewForConfig(apitest.Start(t, nil))
	check.Must(t, err)
	random := seed.New(t)
	taken, refused := 0, 0
	for range 400 {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: requests(random)},
		}}
		faults := claimspec.Faults(&c.Spec.Devices, field.NewPath("spec", "devices"))
		_, err := kube.ResourceV1().ResourceClaims("default").Create(t.Context(), c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		text, _ := json.Marshal(c.Spec)
		switch {
		case err == nil && len(faults) == 0:
			taken++
		case err == nil:
			t.Errorf("the API server takes %s, of which Faults says %v", text, faults)
		case !apierrors.IsInvalid(err):
			t.Fatalf("%s: %v", text, err)
		case len(faults) == 0:
			t.Errorf("the API server refuses %s, which Faults takes: %v", text, err)
		default:
			refused++
			for _, fault := range faults {
				if !strings.Contains(err.Error(), fault.Field) {
					t.Errorf("the API server does not name %s of %s: %v", fault.Field, text, err)
				}
			}
		}
	}
	if taken < 50 || refused < 50 {
		t.Errorf("%d claims were taken and %d refused: the test says little", taken, refused)
	}
}

// of returns one of several values, mostly the first.
func of[T any](random *rand.Rand, values ...T) T {
	if random.IntN(12) > 0 {
		return values[0]
	}
	return values[random.IntN(len(values))]
}

func requests(random *rand.Rand) (out []resourceapi.DeviceRequest) {
	for i := range of(random, 1+random.IntN(2), 33) {
		own := "r" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		r := resourceapi.DeviceRequest{Name: of(random, own, "", "same", "A_b", strings.Repeat("a", 64))}
		kind := random.IntN(3)
		if kind == 0 || of(random, false, true) {
			for j := range of(random, 1+random.IntN(2), 9) {
				mode, count := amount(random)
				r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
					Name: of(random, "s"+string(rune('a'+j)), "", "same", "a/b"), DeviceClassName: class(random), AllocationMode: mode, Count: count,
					Selectors: selectors(random), Tolerations: tolerations(random),
				})
			}
		}
		if kind > 0 && !of(random, false, true) {
			mode, count := amount(random)
			r.Exactly = &resourceapi.ExactDeviceRequest{
				DeviceClassName: class(random), AllocationMode: mode, Count: count, Selectors: selectors(random), Tolerations: tolerations(random),
			}
		}
		out = append(out, r)
	}
	return out
}

func class(random *rand.Rand) string { return of(random, "gpu.example.com", "", "GPU", "a..b") }

func amount(random *rand.Rand) (resourceapi.DeviceAllocationMode, int64) {
	return of(random, "", resourceapi.DeviceAllocationModeExactCount, resourceapi.DeviceAllocationModeAll, "Some"),
		of(random, int64(0), 1, 2, -1)
}

func selectors(random *rand.Rand) (out []resourceapi.DeviceSelector) {
	for range of(random, random.IntN(2), 33) {
		out = append(out, resourceapi.DeviceSelector{CEL: of(random, &resourceapi.CELDeviceSelector{Expression: "true"}, nil)})
	}
	return out
}

func tolerations(random *rand.Rand) (out []resourceapi.DeviceToleration) {
	for range of(random, 0, 1, 2, 17) {
		out = append(out, resourceapi.DeviceToleration{
			Key:      of(random, "example.com/broken", "", "a b"),
			Operator: of(random, resourceapi.DeviceTolerationOpEqual, "", resourceapi.DeviceTolerationOpExists, "In"),
			Value:    of(random, "", "v", "a b"),
			Effect:   of(random, resourceapi.DeviceTaintEffectNoSchedule, "", "None", "Evict"),
		})
	}
	return out
}

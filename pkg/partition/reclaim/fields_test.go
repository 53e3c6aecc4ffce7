// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/reclaim"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestAnyField: whatever else a tenant writes into a waiting pod, no pod is evicted for it unless every field that is set is judged. The
// fields are those of the API, by reflection, and so new ones, too.
func TestAnyField(t *testing.T) {
	random := seed.New(t)
	q := (&world{}).node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").waits(1, "").question(t)
	q.Policies = []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
	waits, evicted := q.Pod, 0
	for range 200 {
		q.Pod = waits.DeepCopy()
		path := setAny(random, reflect.ValueOf(&q.Pod.Spec).Elem(), "spec")
		d, err := reclaim.Decide(t.Context(), q)
		if err != nil || d.Outcome != reclaim.Evict {
			continue // the API server refuses some of these pods
		}
		evicted++
		if unjudged := podspec.Unjudged(&q.Pod.Spec); len(unjudged) > 0 {
			t.Errorf("with %s a pod is evicted, though %q are not judged", path, unjudged)
		}
		if decides(path) {
			t.Errorf("with %s a pod is evicted, though it may keep the waiting pod from every node", path)
		}
	}
	if evicted == 0 {
		t.Error("no pod was evicted: the test shows nothing")
	}
}

// decides says whether a field with any value of another cluster keeps a pod from the node of the test. It is a list of its own, so that a
// field that is put into the wrong list of package podspec is found.
func decides(path string) bool {
	for _, one := range []string{
		"spec.schedulerName", "spec.schedulingGroup", "spec.schedulingGates", "spec.nodeSelector", "spec.overhead", "spec.ephemeralContainers",
		"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution", "spec.securityContext.sysctls", "spec.os",
		"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", "persistentVolumeClaim", "ephemeral", "csi", "iscsi", "rbd",
		"windowsOptions", "flexVolume",
	} {
		if strings.HasPrefix(path, one) || strings.Contains(path, "."+one) {
			return true
		}
	}
	return false
}

// setAny sets one random field below a value, and returns its path.
func setAny(random *rand.Rand, v reflect.Value, path string) string {
	if v.Type() == reflect.TypeFor[resource.Quantity]() {
		v.Set(reflect.ValueOf(resource.MustParse("100")))
		return path
	}
	switch v.Kind() { //nolint:exhaustive // the API has no others
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return setAny(random, v.Elem(), path)
	case reflect.Slice:
		if v.Len() == 0 || random.IntN(2) == 0 {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		}
		return setAny(random, v.Index(v.Len()-1), path+"[]")
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		path = setAny(random, value, path)
		key := reflect.New(v.Type().Key()).Elem()
		key.SetString([]string{"cpu", "example.com/other"}[random.IntN(2)])
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(key, value)
		return path + "[" + key.String() + "]"
	case reflect.Struct:
		f := v.Type().Field(random.IntN(v.NumField()))
		if !f.IsExported() {
			return path
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return setAny(random, v.FieldByIndex(f.Index), strings.TrimSuffix(path+"."+name, "."))
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(1 + random.IntN(100)))
	}
	return path
}

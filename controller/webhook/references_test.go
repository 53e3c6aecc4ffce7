// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/objects"
)

func naming(source string) *resourceapi.ResourceClaim {
	claim := objects.Claim("", "")
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config(v1alpha1.DriverName,
		fmt.Sprintf(`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":%s}`, source))}
	return claim
}

// TestReferences: a claim that names what is another namespace's is refused, one that names what is not there yet is warned.
func TestReferences(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := func(name string, namespaces ...string) client.Object {
		return &v1alpha1.ClusterFPGABitstream{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterFPGABitstreamSpec{Namespaces: namespaces},
		}
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		cluster("theirs", "team-b"), cluster("ours", "team-a"), cluster("everybodys", "*"),
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "mine"}},
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "private"}},
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "unsigned"}, Status: v1alpha1.FPGABitstreamStatus{
			Digest:       "sha256:1",
			Verification: &v1alpha1.ImageVerdict{Digest: "sha256:1", Result: v1alpha1.VerdictRefused, Message: "no signature by release"},
		}},
	).Build()
	const at = "spec.devices.config[0].opaque.parameters.bitstream.name: "
	for name, tt := range map[string]struct{ source, fault, warning string }{
		"another's":            {`{"kind":"ClusterFPGABitstream","name":"theirs"}`, at + "Forbidden: ClusterFPGABitstream theirs", ""},
		"of the list":          {`{"kind":"ClusterFPGABitstream","name":"ours"}`, "", ""},
		"for all":              {`{"kind":"ClusterFPGABitstream","name":"everybodys"}`, "", ""},
		"one's own":            {`{"name":"mine"}`, "", ""},
		"not there":            {`{"kind":"ClusterFPGABitstream","name":"late"}`, "", at + "ClusterFPGABitstream late does not exist"},
		"refused":              {`{"name":"unsigned"}`, "", at + "FPGABitstream unsigned is refused, so pods wait: no signature by release"},
		"in another namespace": {`{"name":"private"}`, "", at + "FPGABitstream private does not exist"},
		"by digest":            {`{"ref":"registry.example/x@sha256:` + strings.Repeat("1", 64) + `"}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			claim := naming(tt.source)
			for _, object := range []runtime.Object{
				claim, &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec}},
			} {
				faults, warnings := references{reader: objects, judge: &admission.Judge{}}.check(t.Context(), "team-a", object)
				path := strings.NewReplacer("spec.devices", "spec.devices")
				if _, template := object.(*resourceapi.ResourceClaimTemplate); template {
					path = strings.NewReplacer("spec.devices", "spec.spec.devices")
				}
				if got := text(faults.ToAggregate()); !strings.HasPrefix(got, path.Replace(tt.fault)) || (got == "") != (tt.fault == "") {
					t.Errorf("faults %q, want %q", got, tt.fault)
				}
				if got := strings.Join(warnings, "\n"); !strings.HasPrefix(got, path.Replace(tt.warning)) || (got == "") != (tt.warning == "") {
					t.Errorf("warnings %q, want %q", got, tt.warning)
				}
			}
		})
	}
	t.Run("the API server fails", func(t *testing.T) {
		broken := interceptor.NewClient(objects, interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return errors.New("away")
			},
		})
		faults, warnings := references{reader: broken, judge: &admission.Judge{}}.check(t.Context(), "team-a", naming(`{"name":"mine"}`))
		if len(faults)+len(warnings) != 0 {
			t.Errorf("faults %v, warnings %v", faults, warnings)
		}
	})
}

// using returns a claim of one device of a class, with a configuration.
func using(class, driver, parameters string, expressions ...string) *resourceapi.ResourceClaim {
	claim := objects.Claim("", "", objects.Request("main", class, expressions...))
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{objects.Config(driver, parameters)}
	return claim
}

func classOf(name, kind, parameters string) *resourceapi.DeviceClass {
	class := objects.Class(name, `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "`+kind+`"`)
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: objects.Opaque(v1alpha1.DriverName, parameters)}}
	return class
}

// TestJudgedByOthers: a claim is judged by its classes, and by the kernel caches that it names.
func TestJudgedByOthers(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const gpu, fpga = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"`, `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"`
	refused := v1alpha1.GPUKernelCacheStatus{
		ResolvedDigest: "sha256:1",
		Verification:   &v1alpha1.ImageVerdict{Digest: "sha256:1", Result: v1alpha1.VerdictRefused, Message: "no signature by release"},
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		classOf("gpu.nvidia.com", "gpu", gpu+`}`), classOf("fpga", "fpga", fpga+`}`),
		classOf("cached", "gpu", gpu+`,"kernelCaches":[{"name":"stale"}]}`),
		&v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "stale"}, Status: refused},
		&v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "good"}},
		&v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Spec: v1alpha1.ClusterGPUKernelCacheSpec{
			WorkloadNamespaces: []string{"team-b"},
		}},
	).Build()
	check := references{reader: objects, judge: &admission.Judge{}}.check
	cache := func(text string) string { return gpu + `,"kernelCaches":[` + text + `]}` }
	const names = "spec.devices.config[0].opaque.parameters.kernelCaches[0].name: "
	for name, tt := range map[string]struct {
		object         runtime.Object
		fault, warning string
	}{
		"another driver's": {
			using("gpu.nvidia.com", "gpu.nvidia.com", `{"kind":"GpuConfig","sharing":{"strategy":"MPS"}}`), "",
			"spec.devices.config[0].opaque: the parameters for driver gpu.nvidia.com (GpuConfig: sharing.strategy) have no effect",
		},
		"misspelt": {
			using("gpu.nvidia.com", v1alpha1.DriverName, gpu+`}`, `device.attributes["fettle.dev"].vender == "amd"`), "",
			"spec.devices.requests[0].exactly.selectors[0].cel.expression: no device of fettle.dev has vender",
		},
		"forbidden": {using("fpga", v1alpha1.DriverName, fpga+`,"onRelease":"Keep"}`), "no class of request main has policy.allowKeep", ""},
		"no class":  {using("absent", v1alpha1.DriverName, fpga+`,"onRelease":"Keep"}`), "", ""},
		"refused cache": {
			using("gpu.nvidia.com", v1alpha1.DriverName, cache(`{"name":"stale"}`)), "",
			names + "GPUKernelCache stale is refused, so pods wait: no signature by release",
		},
		"refused, optional": {
			using("gpu.nvidia.com", v1alpha1.DriverName, cache(`{"name":"stale","optional":true}`)), "",
			names + "GPUKernelCache stale is refused, so pods start without it: no signature by release",
		},
		"absent cache": {
			using("gpu.nvidia.com", v1alpha1.DriverName, cache(`{"name":"late"}`)), "", names + "GPUKernelCache late does not exist: pods wait",
		},
		"another namespace's cache": {
			using("gpu.nvidia.com", v1alpha1.DriverName, cache(`{"name":"theirs","kind":"ClusterGPUKernelCache"}`)), "",
			names + "ClusterGPUKernelCache theirs is not for namespace team-a, so pods wait",
		},
		"good cache": {using("gpu.nvidia.com", v1alpha1.DriverName, cache(`{"name":"good"}`)), "", ""},
		"of the class": {
			using("cached", v1alpha1.DriverName, gpu+`}`), "",
			"DeviceClass[cached].spec.config[0].opaque.parameters.kernelCaches[0].name: GPUKernelCache stale is refused",
		},
		"of any namespace": {classOf("new", "gpu", cache(`{"name":"theirs","kind":"ClusterGPUKernelCache"}`)), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults, warnings := check(t.Context(), namespaceOf(tt.object), tt.object)
			if got := text(faults.ToAggregate()); !strings.Contains(got, tt.fault) || (got == "") != (tt.fault == "") {
				t.Errorf("faults %q, want %q", got, tt.fault)
			}
			if got := strings.Join(warnings, "\n"); !strings.HasPrefix(got, tt.warning) || (got == "") != (tt.warning == "") {
				t.Errorf("warnings %q, want %q", got, tt.warning)
			}
		})
	}
}

// TestPods: a pod is warned of what its claims and templates would be told now, and never refused. A claim in use is left alone.
func TestPods(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const fpga = `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"`
	keeps := func(name string) *resourceapi.ResourceClaim {
		claim := using("fpga", v1alpha1.DriverName, fpga+`,"onRelease":"Keep"}`)
		claim.Namespace, claim.Name = "team-a", name
		return claim
	}
	used := keeps("used")
	used.Status.ReservedFor = objects.ReservedFor("first", "1")
	cached := using("fpga", v1alpha1.DriverName, fpga+`,"bitstream":{"name":"late"}}`)
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		classOf("fpga", "fpga", fpga+`}`), keeps("new"), used,
		&resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "late"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: cached.Spec},
		},
	).Build()
	pod := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
		{Name: "a", ResourceClaimName: new("new")},
		{Name: "b", ResourceClaimName: new("used")},
		{Name: "c", ResourceClaimTemplateName: new("late")},
		{Name: "d", ResourceClaimName: new("absent")},
		{Name: "e"},
	}}}
	faults, warnings := references{reader: objects, judge: &admission.Judge{}}.check(t.Context(), "team-a", pod)
	if len(faults) > 0 {
		t.Errorf("faults %v", faults)
	}
	want := []string{
		"spec.resourceClaims[0]: ResourceClaim new: pods wait: spec.devices.config[0].opaque.parameters.onRelease: Forbidden: no class",
		"spec.resourceClaims[2]: ResourceClaimTemplate late: spec.spec.devices.config[0].opaque.parameters.bitstream.name: FPGABitstream late",
	}
	if len(warnings) != len(want) {
		t.Fatalf("warnings %q, want %d", warnings, len(want))
	}
	for i := range want {
		if !strings.HasPrefix(warnings[i], want[i]) {
			t.Errorf("warning %q, want %q", warnings[i], want[i])
		}
	}
}

// namespaceOf is that of the review: none for a class.
func namespaceOf(object runtime.Object) string {
	if _, ok := object.(*resourceapi.DeviceClass); ok {
		return ""
	}
	return "team-a"
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestStackReferences: a stack that names a class that does not exist is let in with a warning; one that could not be read is no warning.
func TestStackReferences(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	stack := &v1alpha1.AcceleratorStack{}
	stack.Spec.Check = &v1alpha1.StackCheck{DeviceClassNames: []string{"gpu.fettle.dev", "late"}}
	there := fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.fettle.dev"}}).Build()
	broken := interceptor.Funcs{Get: func(
		context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption,
	) error {
		return errors.New("no answer")
	}}
	for name, tt := range map[string]struct {
		reader client.Reader
		want   string
	}{
		"one is missing": {
			there, "spec.check.deviceClassNames[1]: DeviceClass late does not exist: no claim of it can be checked until it does",
		},
		"not known": {interceptor.NewClient(there, broken), ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults, warnings := references{reader: tt.reader, judge: &admission.Judge{}}.check(t.Context(), "", stack)
			if got := strings.Join(warnings, "\n"); got != tt.want || len(faults) > 0 {
				t.Errorf("faults %v, warnings %q, want %q", faults, got, tt.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/objects"
)

// presetWorld is a cluster with presets, and a node with files.
type presetWorld struct {
	*Feature
	t *testing.T
	// root is the node's tree, files looks for files in it.
	root  string
	files *hostfiles.Finder
	kube  *kubefake.Clientset
	told  []string
}

// newPresetWorld has what the objects are, and a node with two GPUs.
func newPresetWorld(t *testing.T, objects ...runtime.Object) *presetWorld {
	t.Helper()
	scheme := runtime.NewScheme()
	check.Must(t, v1alpha1.AddToScheme(scheme))
	var core, own []runtime.Object
	for _, object := range objects {
		switch object.(type) {
		case *v1alpha1.DevicePreset, *v1alpha1.ClusterDevicePreset:
			own = append(own, object)
		default:
			core = append(core, object)
		}
	}
	w := &presetWorld{t: t, root: t.TempDir(), kube: kubefake.NewClientset(core...)}
	records, err := record.Open(disk.OS{}, t.TempDir())
	check.Must(t, err)
	w.files = &hostfiles.Finder{Root: w.root, Hook: func() (string, error) { return "/var/lib/fettle/hooks/fettle-hook-1", nil }}
	w.Feature, err = New(Config{
		Records: records,
		Kube:    w.kube, Dynamic: dynamicfake.NewSimpleDynamicClient(scheme, own...), Holder: inventory.NewHolder(), Namespace: "fettle-system",
		Find: func(claim string, r preset.Request, writable []string) (hostfiles.Found, error) {
			return w.files.FindBeside(claim, r, writable)
		},
		Event: func(_ *resourceapi.ResourceClaim, _, _, reason, note string) {
			w.told = append(w.told, reason+": "+note)
		},
	})
	check.Must(t, err)
	first := nodefixture.GPU("gpu0", 0)
	first.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{device.AttributeVendor: {StringValue: new("nvidia")}}
	w.Holder.Set(nodefixture.SnapshotWith(first, nodefixture.GPU("gpu1", 1)))
	return w
}

// file is one of the node's.
func (w *presetWorld) file(name string, content []byte, mode os.FileMode) {
	w.t.Helper()
	at := filepath.Join(w.root, name)
	check.Must(w.t, os.MkdirAll(filepath.Dir(at), 0o755))
	check.Must(w.t, os.WriteFile(at, content, mode))
}

// plan is what a claim gets that is prepared for the first time.
func (w *presetWorld) plan(c *resourceapi.ResourceClaim) (prepare.Contribution, error) {
	w.t.Helper()
	return w.Plan(w.t.Context(), prepare.Request{Claim: c})
}

// gives is plan where that does not fail.
func (w *presetWorld) gives(c *resourceapi.ResourceClaim) prepare.Contribution {
	w.t.Helper()
	given, err := w.plan(c)
	check.Must(w.t, err)
	return given
}

// again is what a claim gets in a later boot by what was decided for it.
func (w *presetWorld) again(c *resourceapi.ResourceClaim, decision json.RawMessage) (prepare.Contribution, error) {
	w.t.Helper()
	return w.Plan(w.t.Context(), prepare.Request{Claim: c, AfterReboot: true, Decision: decision})
}

// asked are the resources of core that were read.
func (w *presetWorld) asked() []string {
	var out []string
	for _, action := range w.kube.Actions() {
		out = append(out, action.GetVerb()+" "+action.GetResource().Resource)
	}
	return out
}

// clusterPreset is for all claims of class gpu.
func clusterPreset(name string, change func(*v1alpha1.ClusterDevicePresetSpec)) *v1alpha1.ClusterDevicePreset {
	p := &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 7}}
	p.APIVersion, p.Kind = v1alpha1.GroupVersion.String(), v1alpha1.KindClusterDevicePreset
	p.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{"gpu"}}
	change(&p.Spec)
	return p
}

// thePod uses its claims in one container, and owns each.
func thePod(claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pod", UID: "pod-uid"}}
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	for _, c := range claims {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: c.Name, ResourceClaimTemplateName: new("template"),
		})
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
			Name: c.Name, ResourceClaimName: new(c.Name),
		})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c.Name})
	}
	return pod
}

// claimOfClass is an allocated claim whose requests are of class gpu.
func claimOfClass(uid string, results ...nodefixture.APIResult) *resourceapi.ResourceClaim {
	c := nodefixture.Allocated(uid, results...)
	objects.Asked(c, "gpu")
	return c
}

// ofGPU is an allocated GPU for a request.
func ofGPU(request, name string) nodefixture.APIResult {
	return nodefixture.Result(request, device.KindGPU, name)
}

// TestNoPresets: where there are none, a Prepare reads nothing more than before.
func TestNoPresets(t *testing.T) {
	w := newPresetWorld(t)
	given := w.gives(claimOfClass("u1", ofGPU("main", "gpu0")))
	if len(given.Edits) > 0 || len(given.Steps) > 0 || given.Decision != nil || len(w.asked()) > 0 {
		t.Errorf("got %v, asked %v", given, w.asked())
	}
}

// TestPresetEdits: the whole way from a preset to what a container gets of this node, and again after a reboot with another driver.
func TestPresetEdits(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("nvidia", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.DeviceSelector.CEL = `device.attributes["fettle.dev"].?vendor.orValue("") == "nvidia"`
		s.Env = []v1alpha1.PresetEnv{
			{Name: "CUDA_CACHE_MAXSIZE", Value: new("4294967296")},
			{Name: v1alpha1.EnvLibraryPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/extra")},
			{Name: v1alpha1.EnvPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/extra/bin")},
		}
		s.Mounts = []v1alpha1.PresetMount{
			{HostPath: "/opt/current", ContainerPath: "/opt/extra"},
			{HostPath: "/opt/absent", ContainerPath: "/opt/absent", Optional: true},
		}
		s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libcuda.so.1"}, Root: "/run/driver"}}
		s.Tools = []v1alpha1.PresetFiles{{Names: []string{"nvidia-smi"}, Root: "/run/driver"}}
	}))
	cuda := elffile.File{Soname: "libcuda.so.1"}.Bytes()
	w.file("run/driver/usr/lib64/libcuda.so.550.54", cuda, 0o644)
	check.Must(t, os.Symlink("libcuda.so.550.54", filepath.Join(w.root, "run/driver/usr/lib64/libcuda.so.1")))
	w.file("run/driver/usr/bin/nvidia-smi", elffile.File{}.Bytes(), 0o755)
	w.file("opt/v1/bin/debug", nil, 0o755)
	w.file("opt/v1/bin/readme", nil, 0o644)
	check.Must(t, os.Symlink("/opt/v1", filepath.Join(w.root, "opt/current")))
	c := claimOfClass("u1", ofGPU("main", "gpu0"), ofGPU("other", "gpu1"))
	given := w.gives(c)
	edits := func(version string) container.Edits {
		return container.Edits{
			Env: []string{"CUDA_CACHE_MAXSIZE=4294967296"},
			Mounts: []container.Mount{
				{HostPath: "/opt/v1", ContainerPath: "/opt/extra", ReadOnly: true, NonRecursive: true},
				{
					HostPath:      "/run/driver/usr/lib64/libcuda.so." + version,
					ContainerPath: "/usr/local/fettle/lib/libcuda.so." + version, ReadOnly: true, NonRecursive: true,
				},
				{HostPath: "/run/driver/usr/bin/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi", ReadOnly: true, NonRecursive: true},
			},
			Hooks: []container.Hook{
				{Path: "/var/lib/fettle/hooks/fettle-hook-1", Args: []string{
					"fettle-hook-1", "links", "--link", "libcuda.so." + version + "::/usr/local/fettle/lib/libcuda.so.1",
					"--yielding-link", "/opt/extra/bin/debug::/usr/bin/debug",
				}},
				{Path: "/var/lib/fettle/hooks/fettle-hook-1", Args: []string{
					"fettle-hook-1", "ldconfig", "--dir", "/usr/local/fettle/lib", "--dir", "/opt/extra",
				}},
			},
		}
	}
	if diff := cmp.Diff(edits("550.54"), given.Edits["main"].Shared); diff != "" || len(given.Edits) != 1 {
		t.Errorf("for %v (-want +got):\n%s", slices.Sorted(maps.Keys(given.Edits)), diff)
	}
	check.Must(t, os.RemoveAll(filepath.Join(w.root, "run/driver/usr/lib64")))
	w.file("run/driver/usr/lib64/libcuda.so.580.12", cuda, 0o644)
	check.Must(t, os.Symlink("libcuda.so.580.12", filepath.Join(w.root, "run/driver/usr/lib64/libcuda.so.1")))
	later, err := w.again(c, given.Decision)
	check.Must(t, err)
	if diff := cmp.Diff(edits("580.12"), later.Edits["main"].Shared); diff != "" {
		t.Errorf("with another driver (-want +got):\n%s", diff)
	}
}

// TestPresetUnmet: what a preset needs and is not there keeps the claim, and says which preset, what and where.
func TestPresetUnmet(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ClusterDevicePresetSpec)
		says   []string
	}{
		"mount": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Mounts = []v1alpha1.PresetMount{{HostPath: "/opt/absent", ContainerPath: "/opt/x"}}
		}, []string{"mount /opt/x", "/opt/absent is not on this node", "optional"}},
		"library": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libabsent.so.1"}}}
		}, []string{"libraries", "libabsent.so.1", "/etc/ld.so.cache"}},
		"tool": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Tools = []v1alpha1.PresetFiles{{Names: []string{"absent"}}}
		}, []string{"tools", "absent", "/usr/bin"}},
		"device node": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.DeviceNodes = []v1alpha1.PresetDeviceNode{{Path: "/dev/absent"}}
		}, []string{"device node /dev/absent", "load its driver"}},
		"PATH without a mount": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Env = []v1alpha1.PresetEnv{{Name: v1alpha1.EnvPath, Mode: v1alpha1.EnvAppend, Value: new("/opt/bin")}}
		}, []string{"PATH /opt/bin", "below no mount", "as tools"}},
		"not a device": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.DeviceNodes = []v1alpha1.PresetDeviceNode{{Path: "/dev/file"}}
		}, []string{"device node /dev/file", "want a character device"}},
		"root": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libx.so.1"}, Root: "/run/absent"}}
		}, []string{"libraries", "the root /run/absent is not on this node", "optional"}},
		"ConfigMap": {func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.EnvFrom = []v1alpha1.PresetEnvFrom{{ConfigMapRef: v1alpha1.PresetConfigMap{Name: "absent"}}}
		}, []string{"spec.envFrom[0]", "fettle-system/absent"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPresetWorld(t, clusterPreset("needs", tc.change))
			w.file("dev/file", nil, 0o644)
			_, err := w.plan(claimOfClass("u1", ofGPU("main", "gpu0")))
			if !errors.Is(err, errUnmet) {
				t.Fatalf("got %v, want that a preset is unmet", err)
			}
			for _, words := range append(tc.says, "ClusterDevicePreset needs") {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
		})
	}
}

// TestPresetConfigMapForbidden: a ConfigMap that the node may not read is the preset's affair, also where it is optional: it may be there.
func TestPresetConfigMapForbidden(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("needs", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.EnvFrom = []v1alpha1.PresetEnvFrom{{ConfigMapRef: v1alpha1.PresetConfigMap{Name: "closed", Optional: true}}}
	}))
	w.kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "closed", errors.New("no Role"))
	})
	_, err := w.plan(claimOfClass("u1", ofGPU("main", "gpu0")))
	reason, _ := (&Feature{}).Reason(err)
	if reason != "PresetUnmet" || !strings.Contains(err.Error(), "may not read ConfigMap fettle-system/closed") {
		t.Errorf("%s: %v, want that the preset is unmet", reason, err)
	}
}

// TestPresetOptional: what need not be there keeps no claim, nor what depends on it, also where it went with a reboot.
func TestPresetOptional(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("optional", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Mounts = []v1alpha1.PresetMount{{HostPath: "/opt/site", ContainerPath: "/site", Optional: true}}
		s.Env = []v1alpha1.PresetEnv{{Name: v1alpha1.EnvPath, Mode: v1alpha1.EnvAppend, Value: new("/site/bin")}}
		s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libx.so.1"}, Root: "/run/driver", Optional: true}}
		s.Tools = []v1alpha1.PresetFiles{{Names: []string{"smi"}, Root: "/run/driver", Optional: true}}
	}))
	c := claimOfClass("u1", ofGPU("main", "gpu0"))
	if given := w.gives(c); len(given.Edits) > 0 || given.Decision != nil {
		t.Errorf("of nothing %v was made", given)
	}
	w.file("opt/site/bin/tool", nil, 0o755)
	w.file("opt/site/bin/odd::name", nil, 0o755)
	w.file("opt/site/bin/odd\nname", nil, 0o755)
	given := w.gives(c)
	want := []string{"fettle-hook-1", "links", "--yielding-link", "/site/bin/tool::/usr/bin/tool"}
	if hooks := given.Edits["main"].Shared.Hooks; len(hooks) != 1 || !slices.Equal(hooks[0].Args, want) {
		t.Errorf("hooks %v, want one of %v", hooks, want)
	}
	check.Must(t, os.RemoveAll(filepath.Join(w.root, "opt/site")))
	later, err := w.again(c, given.Decision)
	if err != nil || len(later.Edits) > 0 {
		t.Errorf("after a reboot without it: %v, %v", later, err)
	}
}

// TestDamagedDecision: a record that cannot be read keeps the claim: without it a pod would start that lacks what presets give.
func TestDamagedDecision(t *testing.T) {
	w := newPresetWorld(t)
	for _, broken := range []string{`"what?"`, `{"main": "what?"}`} {
		if given, err := w.again(claimOfClass("u1"), json.RawMessage(broken)); err == nil || !strings.Contains(err.Error(), "as recorded") {
			t.Errorf("%s: %v, %v", broken, given, err)
		}
	}
	if given, err := w.again(claimOfClass("u1"), nil); err != nil || len(given.Edits) > 0 || len(w.asked()) > 0 {
		t.Errorf("where nothing was decided: %v, %v, asked %v", given, err, w.asked())
	}
}

// TestPresetRootBehindLink: a driver's root that is a link of the host leads to the host's directory, by which it is mounted.
func TestPresetRootBehindLink(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("linked", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Tools = []v1alpha1.PresetFiles{{Names: []string{"smi"}, Root: "/run/driver"}}
	}))
	w.file("opt/v550/usr/bin/smi", elffile.File{}.Bytes(), 0o755)
	check.Must(t, os.MkdirAll(filepath.Join(w.root, "run"), 0o755))
	check.Must(t, os.Symlink("/opt/v550", filepath.Join(w.root, "run/driver")))
	want := []container.Mount{{HostPath: "/opt/v550/usr/bin/smi", ContainerPath: "/usr/bin/smi", ReadOnly: true, NonRecursive: true}}
	if diff := cmp.Diff(want, w.gives(claimOfClass("u1", ofGPU("main", "gpu0"))).Edits["main"].Shared.Mounts); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPresetLinks: of two links at one path the later preset's is made; the hook would refuse the second.
func TestPresetLinks(t *testing.T) {
	of := func(name string, priority int32, target string) *v1alpha1.ClusterDevicePreset {
		return clusterPreset(name, func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Priority = priority
			s.Hooks = []v1alpha1.PresetHook{{Name: v1alpha1.HookLinks, Links: []v1alpha1.PresetLink{{Path: "/opt/x", Target: target}}}}
		})
	}
	w := newPresetWorld(t, of("later", 2, "/b"), of("earlier", 1, "/a"))
	want := []string{"fettle-hook-1", "links", "--link", "/b::/opt/x"}
	if got := w.gives(claimOfClass("u1", ofGPU("main", "gpu0"))).Edits["main"].Shared.Hooks; !slices.Equal(got[0].Args, want) {
		t.Errorf("hooks %v, want %v", got, want)
	}
}

// TestPresetOfPod: what depends on the pod is read from the one that owns the claim, with its other claims.
func TestPresetOfPod(t *testing.T) {
	first, second := claimOfClass("u1", ofGPU("main", "gpu0")), claimOfClass("u2", ofGPU("main", "gpu1"))
	pod := thePod(first, second)
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OWN", Value: "of the pod"}}
	of := func(name, value, cel string) *v1alpha1.ClusterDevicePreset {
		return clusterPreset(name, func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.DeviceSelector.CEL = cel
			s.Env = []v1alpha1.PresetEnv{
				{Name: "LIST", Mode: v1alpha1.EnvAppend, Value: &value}, {Name: "OWN", Mode: v1alpha1.EnvDefault, Value: &value},
			}
		})
	}
	w := newPresetWorld(t, pod, first, second,
		of("a", "nvidia's", `device.attributes["fettle.dev"].?vendor.orValue("") == "nvidia"`),
		of("b", "others'", `device.attributes["fettle.dev"].?vendor.orValue("") != "nvidia"`))
	for _, c := range []*resourceapi.ResourceClaim{first, second} {
		if diff := cmp.Diff([]string{"LIST=nvidia's:others'"}, w.gives(c).Edits["main"].Shared.Env); diff != "" {
			t.Errorf("claim %s (-want +got):\n%s", c.Name, diff)
		}
	}
	other := pod.DeepCopy()
	other.UID = types.UID("another pod of the name")
	w = newPresetWorld(t, other, first, second, of("a", "value", "true"))
	if _, err := w.plan(first); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("claim of a pod that is gone: %v", err)
	}
}

// TestPresetOfSeveralClaims: the classes of a preset may be asked for by several claims of the pod, its own and one that it shares.
func TestPresetOfSeveralClaims(t *testing.T) {
	both := clusterPreset("both", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.DeviceSelector.DeviceClassNames = []string{"gpu", "other"}
		s.Env = []v1alpha1.PresetEnv{{Name: "BOTH", Value: new("yes")}}
	})
	for name, test := range map[string]struct {
		second, shared bool
		want           []string
	}{
		"one claim":          {},
		"two":                {second: true, want: []string{"BOTH=yes"}},
		"one of them shared": {second: true, shared: true, want: []string{"BOTH=yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := claimOfClass("u1", ofGPU("main", "gpu0")), nodefixture.Allocated("u2", ofGPU("main", "gpu1"))
			objects.Asked(second, "other")
			pod := thePod(first)
			if test.second {
				pod = thePod(first, second)
			}
			if test.shared {
				second.OwnerReferences = nil
			}
			w := newPresetWorld(t, pod, first, second, both)
			if diff := cmp.Diff(test.want, w.gives(first).Edits["main"].Shared.Env); diff != "" {
				t.Errorf("given (-want +got):\n%s", diff)
			}
			if given := w.gives(second).Edits["main"].Shared.Env; test.shared && given != nil {
				t.Errorf("the shared claim, which counts alone, is given %v", given)
			}
		})
	}
}

// TestPresetOverridden: what a later preset, or any, takes from others is told of.
func TestPresetOverridden(t *testing.T) {
	first := claimOfClass("u1", ofGPU("main", "gpu0"))
	pod := thePod(first)
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "B", Value: "of the pod"}}
	sets := func(priority int32, value string) func(*v1alpha1.ClusterDevicePresetSpec) {
		return func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Priority = priority
			s.Env = []v1alpha1.PresetEnv{{Name: "A", Value: &value}, {Name: "B", Value: new("same")}}
		}
	}
	w := newPresetWorld(t, pod, first, clusterPreset("later", sets(2, "2")), clusterPreset("earlier", sets(1, "1")))
	if diff := cmp.Diff([]string{"A=2", "B=same"}, w.gives(first).Edits["main"].Shared.Env); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want := []string{"PresetOverridden: request main: " +
		"variable A of ClusterDevicePreset later overrides that of ClusterDevicePreset earlier; " +
		"variable B of ClusterDevicePreset later overrides the pod's"}
	if diff := cmp.Diff(want, w.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestPresetOverriddenFiles: what only the node knows, which library loses, is in the same Event, since Events of one reason are merged.
func TestPresetOverriddenFiles(t *testing.T) {
	of := func(name string, priority int32) *v1alpha1.ClusterDevicePreset {
		return clusterPreset(name, func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.Priority = priority
			s.Env = []v1alpha1.PresetEnv{{Name: "A", Value: &name}}
			s.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libfoo.so.*"}, Root: "/opt/" + name}}
		})
	}
	w := newPresetWorld(t, of("later", 2), of("earlier", 1))
	w.file("opt/later/usr/lib64/libfoo.so.1.1", elffile.File{Soname: "libfoo.so.1"}.Bytes(), 0o644)
	w.file("opt/earlier/usr/lib64/libfoo.so.1.2", elffile.File{Soname: "libfoo.so.1"}.Bytes(), 0o644)
	c := claimOfClass("u1", ofGPU("main", "gpu0"))
	given := w.gives(c)
	want := []string{"PresetOverridden: request main: " +
		"variable A of ClusterDevicePreset later overrides that of ClusterDevicePreset earlier; " +
		"/usr/local/fettle/lib/libfoo.so.1 of ClusterDevicePreset later overrides that of ClusterDevicePreset earlier"}
	if diff := cmp.Diff(want, w.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	w.told = nil
	if _, err := w.again(c, given.Decision); err != nil || len(w.told) > 0 {
		t.Errorf("after a reboot: %v, told %q", err, w.told)
	}
}

// TestPresetAmbiguous: what a container has otherwise by a claim that pods share is told of on its own claim.
func TestPresetAmbiguous(t *testing.T) {
	own, shared := claimOfClass("u1", ofGPU("main", "gpu0")), claimOfClass("u2", ofGPU("main", "gpu1"))
	pod := thePod(own)
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "too", ResourceClaimName: &shared.Name})
	pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "too"})
	of := func(name, cel string) *v1alpha1.ClusterDevicePreset {
		return clusterPreset(name, func(s *v1alpha1.ClusterDevicePresetSpec) {
			s.DeviceSelector.CEL = cel
			s.Env = []v1alpha1.PresetEnv{{Name: "A", Value: &name}}
		})
	}
	w := newPresetWorld(t, pod, own, shared, of("nvidias", `device.attributes["fettle.dev"].?vendor.orValue("") == "nvidia"`),
		of("others", `device.attributes["fettle.dev"].?vendor.orValue("") != "nvidia"`))
	if diff := cmp.Diff([]string{"A=nvidias"}, w.gives(own).Edits["main"].Shared.Env); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(w.told) != 1 || !strings.HasPrefix(w.told[0], "PresetAmbiguous: request main: variable A is of ClusterDevicePreset nvidias here") {
		t.Errorf("told %q, want that A is ambiguous", w.told)
	}
	w.told = nil
	if diff := cmp.Diff([]string{"A=others"}, w.gives(shared).Edits["main"].Shared.Env); diff != "" || len(w.told) > 0 {
		t.Errorf("of the shared claim -want +got:\n%s\ntold %q", diff, w.told)
	}
}

// TestPresetRefused: on a claim that pods share, what depends on the pod is left out and told of; the rest is given.
func TestPresetRefused(t *testing.T) {
	w := newPresetWorld(t, clusterPreset("a", func(s *v1alpha1.ClusterDevicePresetSpec) {
		s.Env = []v1alpha1.PresetEnv{{Name: "A", Mode: v1alpha1.EnvDefault, Value: new("x")}, {Name: "B", Value: new("y")}}
	}))
	given := w.gives(claimOfClass("u1", ofGPU("main", "gpu0")))
	if diff := cmp.Diff([]string{"B=y"}, given.Edits["main"].Shared.Env); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(w.told) != 1 || !strings.HasPrefix(w.told[0], "PresetRefused: ClusterDevicePreset a, spec.env[0]: ") {
		t.Errorf("told %q, want that env[0] is refused", w.told)
	}
}

// TestPresetToldOnce: one Event has all that was refused. Events that differ in their text alone would become one with the first's text.
func TestPresetToldOnce(t *testing.T) {
	var env []v1alpha1.PresetEnv
	for _, name := range []string{"A", "B", "C", "D", "E", "F", "G", "H", "I"} {
		env = append(env, v1alpha1.PresetEnv{Name: name, Mode: v1alpha1.EnvDefault, Value: new("x")})
	}
	for _, tc := range []struct {
		env  []v1alpha1.PresetEnv
		more string
	}{{env[:2], ""}, {env, "; and 3 more: fettle preset explain -n team-a claim/claim-u1"}} {
		w := newPresetWorld(t, clusterPreset("a", func(s *v1alpha1.ClusterDevicePresetSpec) { s.Env = tc.env }))
		w.gives(claimOfClass("u1", ofGPU("main", "gpu0")))
		if len(w.told) != 1 {
			t.Fatalf("told %q, want one Event", w.told)
		}
		_, note, _ := strings.Cut(w.told[0], ": ")
		if !strings.Contains(note, "spec.env[0]: A:") || !strings.Contains(note, "spec.env[1]: B:") || !strings.HasSuffix(note, tc.more) ||
			strings.Contains(note, "more") != (tc.more != "") || len(note) > message.MaxEventNote {
			t.Errorf("%d bytes: %s\nwant A and B, and at the end %q", len(note), note, tc.more)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	driver = v1alpha1.DriverName
	team   = "team"
)

// claim holds a device of class gpu for request main, and one of another driver.
func claim(name string, owner types.UID) *resourceapi.ResourceClaim {
	c := objects.Claim(team, name)
	if owner != "" {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: owner, Controller: new(true)}}
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{
		objects.Request("main", "gpu"),
		objects.Request("nic", "nic"),
	}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "main", Driver: driver, Pool: "node/gpu", Device: "gpu-of-" + name},
		{Request: "nic", Driver: "nic.example.com", Pool: "node", Device: "nic"},
	}
	return c
}

// podWith uses the claims in one container.
func podWith(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "pod", UID: "1"}}
	pod.Spec.Containers = []corev1.Container{{Name: "work"}}
	for _, name := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: new("t")})
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: new(name)})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
	}
	return pod
}

// clusterPreset is from its spec in YAML.
func clusterPreset(t *testing.T, name, spec string) preset.Preset {
	t.Helper()
	p := v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return preset.Of(p.Common())
}

// cluster has a preset that selects by what a device is.
func cluster(t *testing.T, claims ...*resourceapi.ResourceClaim) explain.Objects {
	t.Helper()
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, Pool: resourceapi.ResourcePool{Name: "node/gpu"}}}
	for _, c := range claims {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: "gpu-of-" + c.Name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"of": {StringValue: &c.Name}},
		})
	}
	one := func(name string) preset.Preset {
		return clusterPreset(t, "of-"+name, `deviceSelector: {cel: 'device.attributes["fettle.dev"].of == "`+name+`"'}
env: [{name: LIST, mode: append, value: `+name+`}, {name: OWN, mode: default, value: x}]`)
	}
	return explain.Objects{
		Driver: driver, Claims: claims, Slices: []*resourceapi.ResourceSlice{slice},
		Presets: []preset.Preset{one("a"), one("b"), clusterPreset(t, "none", "deviceSelector: {deviceClassNames: [fpga]}")},
	}
}

func all(*resourceapi.ResourceClaim) bool { return true }

// text is the answer for people.
func text(t *testing.T, o explain.Objects, wanted func(*resourceapi.ResourceClaim) bool) string {
	t.Helper()
	e, err := explain.Explain(t.Context(), o, wanted)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := e.Text(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestTogether: claims of one pod are resolved together, also where only one is wanted; one that pods share is resolved alone.
func TestTogether(t *testing.T) {
	o := cluster(t, claim("b", "1"), claim("a", "1"))
	o.Pods = []*corev1.Pod{podWith("a", "b")}
	got := text(t, o, func(c *resourceapi.ResourceClaim) bool { return c.Name == "b" })
	if diff := cmp.Diff(`claim team/b, of pod pod alone
  request main: node/gpu/gpu-of-b; containers work
    presets, the later wins: ClusterDevicePreset of-b (generation 1)
    env LIST=a:b
      from ClusterDevicePreset of-a (generation 1), ClusterDevicePreset of-b (generation 1)
    env OWN=x
      from ClusterDevicePreset of-a (generation 1)
  not needed: request main, ClusterDevicePreset of-b (generation 1), spec.env[1]: OWN: a preset before gave it a value
  not for it: ClusterDevicePreset none (generation 1)
  not for it: ClusterDevicePreset of-a (generation 1)
`, got); diff != "" {
		t.Errorf("of one pod (-want +got):\n%s", diff)
	}
	got = text(t, cluster(t, claim("b", ""), claim("a", "")), all)
	for _, want := range []string{"claim team/a, which pods may share\n", "    env LIST=a\n", "    env LIST=b\n", "  refused: request"} {
		if !strings.Contains(got, want) {
			t.Errorf("shared: want %q in\n%s", want, got)
		}
	}
}

// TestRemarks: what the answer does not know, it says.
func TestRemarks(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*explain.Objects)
		want   string
	}{
		"no slices": {func(o *explain.Objects) { o.Slices = nil }, "CEL sees no attributes of node/gpu/gpu-of-a"},
		"labels": {func(o *explain.Objects) {
			o.Presets[2].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"stage": "dev"}}
		}, "the labels of namespace team are not known"},
		"other's devices": {func(o *explain.Objects) {
			o.Claims[0].Status.Allocation.Devices.Results = o.Claims[0].Status.Allocation.Devices.Results[1:]
		}, "it holds no device of fettle.dev"},
		"opted out": {func(o *explain.Objects) {
			o.Pods[0].Annotations = map[string]string{v1alpha1.ExcludePresetsAnnotation: "true"}
		}, "pod pod has the annotation fettle.dev/exclude-presets, which keeps every preset away"},
		"no status": {func(o *explain.Objects) { o.Pods[0].Status.ResourceClaimStatuses = nil }, "the status of pod pod does not say"},
		"sibling":   {func(o *explain.Objects) { o.Pods[0] = podWith("a", "b") }, "claim b, which pod pod has too, is not known"},
		"shared": {func(o *explain.Objects) {
			o.Claims[0].OwnerReferences = nil
		}, "pod pod uses the claim and does not own it"},
	} {
		t.Run(name, func(t *testing.T) {
			o := cluster(t, claim("a", "1"))
			o.Pods = []*corev1.Pod{podWith("a")}
			if got := text(t, o, all); strings.Contains(got, "note: ") {
				t.Errorf("got a note before the change:\n%s", got)
			}
			test.change(&o)
			if got := text(t, o, all); !strings.Contains(got, "  note: "+test.want) {
				t.Errorf("want a note %q in\n%s", test.want, got)
			}
		})
	}
}

// TestUnexplained: what must be there says so, for every claim.
func TestUnexplained(t *testing.T) {
	pending := claim("pending", "")
	pending.Status.Allocation = nil
	o := cluster(t, pending, claim("a", "1"), claim("b", "2"))
	o.Pods = []*corev1.Pod{podWith("b")}
	o.Claims[1].OwnerReferences[0].Name = "gone"
	_, err := explain.Explain(t.Context(), o, all)
	for _, want := range []string{
		"claim team/pending: is not allocated", "claim team/a: was made for pod gone", `claim team/b: pod pod has uid "1", and the claim`,
	} {
		check.WantErr(t, err, nil, want)
	}
}

// TestEverything shows each kind of thing that a preset gives, and what a node makes of it.
func TestEverything(t *testing.T) {
	o := cluster(t, claim("a", ""))
	o.Presets = []preset.Preset{clusterPreset(t, "early", "priority: -1\n"+everything), clusterPreset(t, "late", everything+`
- {hostPath: /opt/late, containerPath: /opt/x, readOnly: false, optional: true, recursive: true, propagation: HostToContainer}`)}
	o.Presets[0].Rules.Mounts = append(o.Presets[0].Rules.Mounts, v1alpha1.PresetMount{HostPath: "/opt/early", ContainerPath: "/opt/x"})
	o.Edits = func(preset.Request) (container.Edits, error) {
		return container.Edits{
			Mounts: []container.Mount{{HostPath: "/opt/v1", ContainerPath: "/opt/x", HostToContainer: true}},
			Nodes:  []container.Node{{Path: "/dev/kfd", Major: 10, Minor: 1, Permissions: "rw"}},
			Hooks:  []container.Hook{{Path: "fettle-hook", Args: []string{"fettle-hook", "links"}}},
		}, errors.Join(errors.New("no libx.so"), errors.New("no liby.so"))
	}
	got := text(t, o, all)
	for _, want := range []string{
		"    env A=\"x\\ny\"\n", "    directory for libraries /opt/lib\n", "    directory for programs /opt/bin\n",
		"    mount /scratch: a scratch directory of 1Gi in memory\n",
		"    mount /opt/x: /opt/late of the host, writable, optional, with what is mounted below it, also later\n" +
			"      from ClusterDevicePreset late (generation 1); overrode ClusterDevicePreset early (generation 1)\n",
		"    libraries libx.so.* of /run/driver, optional\n", "    programs smi of /\n", "    device node /dev/kfd, to read\n",
		"    hook ldconfig /opt/y\n", "    hook links /opt/l -> target\n", "    on this host:\n",
		"      mount /opt/v1 at /opt/x, writable, with what is mounted below it, also later\n",
		"      device node /dev/kfd, character 10:1, rw\n", "      run fettle-hook links\n",
		"      lacking, so that the claim would wait: no libx.so\n", "      lacking, so that the claim would wait: no liby.so\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

const everything = `deviceSelector: {deviceClassNames: [gpu]}
deviceNodes: [{path: /dev/kfd, readOnly: true}]
libraries: [{names: [libx.so.*], root: /run/driver, optional: true}]
tools: [{names: [smi]}]
hooks: [{name: ldconfig, directories: [/opt/y]}, {name: links, links: [{path: /opt/l, target: target}]}]
env:
- {name: A, value: "x\ny"}
- {name: LD_LIBRARY_PATH, mode: append, value: /opt/lib}
- {name: PATH, mode: append, value: /opt/bin}
mounts:
- {containerPath: /scratch, scratch: {sizeLimit: 1Gi}}`

// TestDriverOfVendor: whose list names the files is told, since no node is asked.
func TestDriverOfVendor(t *testing.T) {
	o := cluster(t, claim("a", ""))
	const gpus = "deviceSelector: {deviceClassNames: [gpu]}\n"
	o.Presets = []preset.Preset{
		clusterPreset(t, "nvidia.fettle.dev", gpus+"driver: {vendor: NVIDIA}"),
		clusterPreset(t, "site", gpus+"priority: 1\ndriver: {vendor: NVIDIA, root: /opt/nv, optional: true}"),
	}
	got := text(t, o, all)
	want := "    the driver of NVIDIA in /opt/nv, optional: its files are looked up on the node, by the vendor's own list\n" +
		"      from ClusterDevicePreset site (generation 1); overrode ClusterDevicePreset nvidia.fettle.dev (generation 1)\n"
	if !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant in it\n%s", got, want)
	}
}

// TestRunning: what a container that runs was not given is marked, by the presets that its claim was prepared with.
func TestRunning(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*explain.Objects)
		want   []string // parts of the text
		not    string
	}{
		"prepared as it is now": {func(o *explain.Objects) { prepare(o, `{"presets":[{"name":"of-a","generation":1}]}`) }, nil, "running"},
		"another generation": {
			func(o *explain.Objects) { prepare(o, `{"presets":[{"name":"of-a","generation":7}]}`) },
			[]string{"    env LIST=a\n      from ClusterDevicePreset of-a (generation 1)\n      not in running work, prepared with generation 7 " +
				"of ClusterDevicePreset of-a: delete the pod to have it\n"},
			"still have",
		},
		"another preset": {
			func(o *explain.Objects) { prepare(o, `{"presets":[{"name":"gone","generation":2}]}`) },
			[]string{
				"      not in running work, prepared without ClusterDevicePreset of-a: delete the pod to have it\n",
				"    running work still have what was given by ClusterDevicePreset gone (generation 2)\n",
			},
			"",
		},
		"no preset":    {func(o *explain.Objects) { prepare(o, "") }, []string{"prepared without ClusterDevicePreset of-a"}, "still have"},
		"does not run": {func(o *explain.Objects) { o.Pods[0].Status.ContainerStatuses = nil }, nil, "running"},
		"of another file": {func(o *explain.Objects) {
			o.Presets[0].Generation = 0
			prepare(o, `{"presets":[{"name":"of-a","generation":7}]}`)
		}, nil, "running"},
		"shared": {
			func(o *explain.Objects) {
				o.Claims[0].OwnerReferences = nil
				o.Pods[0].Spec.ResourceClaims[0].ResourceClaimName = new("a")
			},
			[]string{"not in running pod/work, prepared without ClusterDevicePreset of-a"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := cluster(t, claim("a", "1"))
			o.Pods = []*corev1.Pod{podWith("a")}
			o.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "work", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}
			test.change(&o)
			got := text(t, o, all)
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("want %q in\n%s", want, got)
				}
			}
			if test.not != "" && strings.Contains(got, test.not) {
				t.Errorf("did not want %q in\n%s", test.not, got)
			}
		})
	}
}

// prepare writes what the plugin says of a claim's device.
func prepare(o *explain.Objects, data string) {
	entry := resourceapi.AllocatedDeviceStatus{Driver: driver, Pool: "node/gpu", Device: "gpu-of-a"}
	if data != "" {
		entry.Data = &runtime.RawExtension{Raw: []byte(data)}
	}
	o.Claims[0].Status.Devices = []resourceapi.AllocatedDeviceStatus{entry}
}

// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// ofSpec is a PodPreset.
func ofSpec(spec string) []byte {
	return []byte("apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {name: p, namespace: ns}\nspec: {" + spec + "}\n")
}

// mountOf is a PodPreset that mounts one volume.
func mountOf(volume, mount string) string {
	return "selector: {}, volumes: [{name: v, " + volume + "}], volumeMounts: [{name: v, mountPath: /data" + mount + "}]"
}

// TestPresetOfConvertedPods: a preset is for the classes that pods get for its resources.
func TestPresetOfConvertedPods(t *testing.T) {
	const region = "fpga.intel.com/region-d8424dc4a4a3c413f89e433683f9040b"
	mapped := map[string]string{"localssd": "host.fettle.dev"}
	for _, c := range []struct {
		resources []string
		options   Options
	}{
		{[]string{"nvidia.com/gpu", "localssd"}, Options{Classes: mapped}},
		{[]string{"nvidia.com/gpu", "localssd"}, Options{Classes: mapped, GPUClass: "team.example.com"}},
		{[]string{region}, Options{}},
		{[]string{region}, Options{Class: "team.example.com"}},
	} {
		in := slices.Concat(ofSpec("resourceSelector: ["+strings.Join(c.resources, ", ")+"], env: [{name: A, value: x}]"), []byte(`
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i, resources: {limits: {`+strings.Join(c.resources, ": 1, ")+`: 1}}}]}
`))
		got, err := IntelFPGA(in, "in.yaml", c.options)
		check.Must(t, err)
		var template resourceapi.ResourceClaimTemplate
		var made v1alpha1.DevicePreset
		for text := range strings.SplitSeq(string(got.YAML), "\n---\n") {
			if strings.Contains(text, "kind: ResourceClaimTemplate") {
				check.Must(t, yaml.Unmarshal([]byte(text), &template))
			} else if strings.Contains(text, "kind: DevicePreset") {
				check.Must(t, yaml.Unmarshal([]byte(text), &made))
			}
		}
		var asked []string
		for _, r := range template.Spec.Spec.Devices.Requests {
			asked = append(asked, r.Exactly.DeviceClassName)
		}
		want := slices.Sorted(slices.Values(made.Spec.DeviceSelector.DeviceClassNames))
		if diff := cmp.Diff(want, slices.Sorted(slices.Values(asked))); diff != "" || len(want) == 0 {
			t.Errorf("%v: the pod asks for other classes than the preset wants (-preset +pod):\n%s", c, diff)
		}
	}
}

// TestPresetOfOfferedResource: a preset for a resource that a class of the input offers is for that class, which its pods get.
func TestPresetOfOfferedResource(t *testing.T) {
	in := slices.Concat(ofSpec("resourceSelector: [nvidia.com/gpu, localssd], env: [{name: A, value: x}]"), []byte(`
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: large.example.com}
spec: {extendedResourceName: nvidia.com/gpu}
`))
	got, err := IntelFPGA(in, "in.yaml", Options{Classes: map[string]string{"localssd": "host.fettle.dev"}})
	check.Must(t, err)
	if text := string(got.YAML); !strings.Contains(text, "- large.example.com\n") || strings.Contains(text, "- nvidia.gpu.fettle.dev") {
		t.Errorf("the preset is for another class:\n%s", text)
	}
}

// TestMIGResources: the profile in the name of a resource is that of the instances.
func TestMIGResources(t *testing.T) {
	for name, want := range map[string]string{
		"nvidia.com/mig-1g.10gb": "1g.10gb", "nvidia.com/mig-1g.10gb.me": "1g.10gb+me", "nvidia.com/mig-1g.24gb.me.all": "1g.24gb+me.all",
		"nvidia.com/mig-7g.141gb": "7g.141gb",
	} {
		r := known(name)
		if r == nil || r.class() != "mig.gpu.fettle.dev" || r.attribute != "profile" || r.value != want {
			t.Errorf("%s is %+v, want profile %s", name, r, want)
		}
	}
	if r := known("nvidia.com/mig-small"); r == nil || r.class() != "mig.gpu.fettle.dev" || r.attribute != "vendor" {
		t.Errorf("a renamed resource is %+v", r)
	}
	if r := known("nvidia.com/gpu"); r.class() != DefaultGPUClass || r.value != "nvidia" {
		t.Errorf("a whole GPU is %+v", r)
	}
	got, err := IntelFPGA(ofSpec("resourceSelector: [nvidia.com/mig-1g.10gb], env: [{name: A, value: x}]"), "in.yaml", Options{})
	if err != nil || !strings.Contains(string(got.YAML), "- mig.gpu.fettle.dev") ||
		!strings.Contains(string(got.YAML), `.?profile.orValue("") == "1g.10gb"`) {
		t.Errorf("%v\n%s", err, got.YAML)
	}
}

// TestPodPresetFaults: what a preset cannot do is an error that says where it is and what to do.
func TestPodPresetFaults(t *testing.T) {
	for name, test := range map[string]struct{ spec, want string }{
		"nothing selected":  {"env: []", "spec: expected a selector or a resourceSelector"},
		"unknown field":     {"selector: {}, volumeMount: []", `unknown field "spec.volumeMount"`},
		"wrong type":        {"selector: {}, env: 1", "a field has a value of the wrong type"},
		"unknown resource":  {"resourceSelector: [example.com/nic]", `resource "example.com/nic": no DeviceClass is known for it`},
		"two of one class":  {"resourceSelector: [nvidia.com/gpu, amd.com/gpu]", "nvidia.com/gpu and amd.com/gpu are of one class: make two"},
		"two profiles":      {"resourceSelector: [nvidia.com/mig-1g.10gb, nvidia.com/mig-2g.20gb]", "are of one class: make two"},
		"secret":            {"selector: {}, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", `"A" is from a Secret`},
		"field":             {"selector: {}, env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]", `"A" is from a field`},
		"reference":         {"selector: {}, env: [{name: A, value: x$(B)}]", `"A" refers to other variables, which a preset's value does not`},
		"reference behind":  {"selector: {}, env: [{name: A, value: x$$$(B)}]", `"A" refers to other variables`},
		"twice":             {"selector: {}, env: [{name: A, value: x}, {name: A, value: y}]", `spec.env[1]: "A" is there twice`},
		"name":              {"selector: {}, env: [{name: a.b, value: x}]", "spec.env[0].name"},
		"relative PATH":     {"selector: {}, env: [{name: PATH, value: bin}]", "spec.env[0].value"},
		"PATH of ConfigMap": {"selector: {}, env: [{name: PATH, valueFrom: {configMapKeyRef: {name: m, key: k}}}]", "spec.env[0]"},
		"all of a Secret":   {"selector: {}, envFrom: [{secretRef: {name: s}}]", `spec.envFrom[0]: Secret "s": a preset never reads Secrets`},
		"all of nothing":    {"selector: {}, envFrom: [{prefix: A}]", "spec.envFrom[0]: expected configMapRef"},
		"no volume":         {"selector: {}, volumeMounts: [{name: v, mountPath: /data}]", "volumeMounts[0] v: there is no volume"},
		"another volume":    {mountOf("nfs: {server: s, path: /p}", ""), "a volume of kind nfs is not of the node: leave it in the pod"},
		"volume of nothing": {mountOf("", ""), "a volume of kind none"},
		"relative":          {mountOf("hostPath: {path: data}", ""), "expected an absolute path"},
		"up":                {mountOf("hostPath: {path: /data/../etc}", ""), "expected an absolute path without .."},
		"up by subPath":     {mountOf("hostPath: {path: /data}", ", subPath: ../etc"), "expected an absolute path without .."},
		"device":            {mountOf("hostPath: {path: /dev/kfd, type: CharDevice}", ""), "list the device in deviceNodes"},
		"bidirectional":     {mountOf("hostPath: {path: /data}", ", mountPropagation: Bidirectional"), "leave the volume in the pod"},
		"expression":        {mountOf("hostPath: {path: /data}", ", subPathExpr: $(A)"), "subPathExpr: a preset knows no variables"},
		"all read-only":     {mountOf("hostPath: {path: /data}", ", readOnly: true, recursiveReadOnly: Enabled"), "recursiveReadOnly"},
		"endless":           {mountOf("emptyDir: {}", ""), "needs an end: give it a sizeLimit"},
		"huge pages":        {mountOf("emptyDir: {sizeLimit: 1Gi, medium: HugePages}", ""), `medium "HugePages"`},
		"scratch read-only": {mountOf("emptyDir: {sizeLimit: 1Gi}", ", readOnly: true"), "readOnly and subPath"},
		"container's /sys":  {strings.Replace(mountOf("hostPath: {path: /x}", ""), "/data", "/sys/x", 1), "must not cover or lie in /sys"},
		"scratch twice": {
			"selector: {}, volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}], volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /b}]",
			"mounted twice",
		},
		"volume twice": {"selector: {}, volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]", `name "v" is there twice`},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := IntelFPGA(ofSpec(test.spec), "in.yaml", Options{})
			if err == nil {
				t.Fatalf("got\n%s\nwant an error", result.YAML)
			}
			if got := err.Error(); !strings.HasPrefix(got, "in.yaml:1: PodPreset ns/p: ") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	_, err := IntelFPGA([]byte("{apiVersion: settings.k8s.io/v1beta1, kind: PodPreset, metadata: {name: p}}"), "in.yaml", Options{})
	check.WantErr(t, err, nil, `apiVersion "settings.k8s.io/v1beta1": expected settings.k8s.io/v1alpha1`)
}

// TestPodPresetKind: files of the host make a preset of the cluster, unless somebody says otherwise.
func TestPodPresetKind(t *testing.T) {
	mounts := mountOf("hostPath: {path: /data}", "")
	for name, test := range map[string]struct {
		spec    string
		cluster *bool
		want    string
	}{
		"no files":            {"selector: {}", nil, "\nkind: DevicePreset\nmetadata:\n  name: p\n  namespace: ns\n"},
		"files":               {mounts, nil, "\nkind: ClusterDevicePreset\nmetadata:\n  name: ns-p\n"},
		"files of namespaces": {mounts, new(false), "\nkind: DevicePreset\n"},
		"all of the cluster":  {"selector: {}", new(true), "\nkind: ClusterDevicePreset\n"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := IntelFPGA(ofSpec(test.spec), "in.yaml", Options{ClusterPresets: test.cluster})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(result.YAML), test.want) {
				t.Errorf("got\n%s\nwant %q", result.YAML, test.want)
			}
			checkOutput(t, result.YAML, Options{})
		})
	}
}

// TestParseClass tells the names of classes from ids.
func TestParseClass(t *testing.T) {
	for text, want := range map[string]bool{
		"gpu.fettle.dev": true, "nic": true, "b": false, "9346116d-a52d-5ca8-b06a-a9a389ef7c8d": false, "a/b": false, "": false, "A.b": false,
	} {
		if got, ok := ParseClass(text); ok != want || ok && got != text {
			t.Errorf("%q: got %q, %t", text, got, ok)
		}
	}
}

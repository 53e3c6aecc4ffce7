// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// plainPod is a pod that asks for a GPU, with more fields of its container.
func plainPod(name, more string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"i",` +
		`"resources":{"limits":{"nvidia.com/gpu":1}}` + more + `}]}}`
}

// TestStreams: every document of a stream comes out, however the documents are put one after the other.
func TestStreams(t *testing.T) {
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"}}`
	utf16 := "\xff\xfe"
	for _, r := range plainPod("a", "") + "\n---\n" + plainPod("b", "") + "\n---\n" + service {
		utf16 += string([]byte{byte(r), 0})
	}
	for name, in := range map[string]string{
		"JSON, a line each": plainPod("a", "") + "\n" + plainPod("b", "") + "\n" + service + "\n",
		"JSON on one line":  plainPod("a", "") + plainPod("b", "") + service,
		"UTF-16":            utf16,
		"with a mark":       "\xef\xbb\xbf---\n" + plainPod("a", "") + "\n---\n" + plainPod("b", "") + "\n---\n" + service,
	} {
		got, err := IntelFPGA([]byte(in), "in", Options{})
		check.Must(t, err)
		for _, want := range []string{"name: a-gpu\n", "name: b-gpu\n", `"kind":"Service"`} {
			if !strings.Contains(string(got.YAML), want) {
				t.Errorf("%s: no %q in\n%s", name, want, got.YAML)
			}
		}
		checkOutput(t, got.YAML, Options{})
	}
	_, err := IntelFPGA([]byte("{apiVersion: v1, kind: Pod}\n{apiVersion: v1, kind: Service}\n"), "in", Options{})
	check.WantErr(t, err, nil, "in:1: ", "write --- between two")
}

// TestAnchorsKeepTexts: writing an alias out changes no value: what was in quotes stays a text, and what was not stays what the API
// server's clients read.
func TestAnchorsKeepTexts(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: &labels {a: "y", b: "off", c: "12:30", d: "1e3", e: "0x1F", f: "null", g: !!str 5}
spec:
  hostNetwork: yes
  nodeSelector: *labels
  containers:
  - &container
    name: a # the first
    image: i
    resources: {limits: {nvidia.com/gpu: 1}}
  - <<: *container
    name: b
  - name: hidden
    <<: [{name: c}, *container]
`
	got, err := IntelFPGA([]byte(pod), "in", Options{})
	check.Must(t, err)
	checkOutput(t, got.YAML, Options{})
	for _, want := range []string{
		`{a: "y", b: "off", c: "12:30", d: "1e3", e: "0x1F", f: "null", g: "5"}`, "hostNetwork: yes\n", "- name: a # the first\n", "- name: b\n",
		"- name: c\n",
	} {
		if !strings.Contains(string(got.YAML), want) {
			t.Errorf("no %q in\n%s", want, got.YAML)
		}
	}
	_, err = IntelFPGA([]byte(strings.Replace(pod, "    name: b", "    name: b\n    name: d", 1)), "in", Options{})
	check.WantErr(t, err, nil, "in:1: expected YAML with each key once")
	const numbers = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, labels: &x {a: b}, annotations: *x}\ndata: {8080: nvidia.com/gpu}\n"
	got, err = IntelFPGA([]byte(numbers), "in", Options{})
	if err != nil || string(got.YAML) != numbers {
		t.Errorf("keys that are numbers: %v\n%s", err, got.YAML)
	}
}

// TestOlderBooleans: y, on and the like in quotes are texts, also where they are written anew, and without quotes true or false where a
// field is that.
func TestOlderBooleans(t *testing.T) {
	in := strings.Replace(plainPod("p", `,"env":{"A":"on","B":"y"}`), "nvidia.com/gpu", ce48, 1)
	got, err := IntelFPGA([]byte(in), "in", Options{})
	check.Must(t, err)
	checkOutput(t, got.YAML, Options{})
	const preset = `apiVersion: settings.k8s.io/v1alpha1
kind: PodPreset
metadata: {name: p}
spec:
  selector: {matchLabels: {tier: yes}}
  env:
  - {name: FROM, valueFrom: {configMapKeyRef: {name: m, key: k, optional: on}}}
  volumes: [{name: v, hostPath: {path: /opt/tools}}]
  volumeMounts: [{name: v, mountPath: /tools, readOnly: yes}]
`
	got, err = IntelFPGA([]byte(preset), "in", Options{})
	check.Must(t, err)
	checkOutput(t, got.YAML, Options{})
	for _, want := range []string{"readOnly: true\n", "optional: true\n", `tier: "yes"`} {
		if !strings.Contains(string(got.YAML), want) {
			t.Errorf("no %q in\n%s", want, got.YAML)
		}
	}
}

// TestWrongTypesInWords: whatever field has a value of the wrong type, the message says what it has and what it wants, without the words of
// Go.
func TestWrongTypesInWords(t *testing.T) {
	goWords := regexp.MustCompile(`Go (struct|value)|cannot unmarshal|int32|interface|\[\]v1|<nil>|map\[`)
	pods := func(in string) error {
		_, err := IntelFPGA([]byte(in), "in", Options{})
		return err
	}
	plugin := func(in string) error {
		_, err := DevicePlugin([]byte(in), "in", PolicyOptions{})
		return err
	}
	parted := func(in string) error {
		_, err := MigParted([]byte(in), "in", PolicyOptions{})
		return err
	}
	amd := func(in string) error {
		_, err := AMDProfiles([]byte(in), "in", PolicyOptions{})
		return err
	}
	const claim = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {requests: [{name: r, ` +
		`exactly: {deviceClassName: gpu.nvidia.com}}], config: [{opaque: {driver: gpu.nvidia.com, parameters: ` +
		`{kind: GpuConfig, sharing: SHARING}}}]}}}`
	for _, tc := range []struct {
		name, in string
		convert  func(string) error
		want     string
	}{
		{
			"label", strings.Replace(plainPod("p", ""), `"name":"p"`, `"name":"p","labels":{"a":true}`, 1), pods,
			"metadata.labels: got true or false",
		},
		{"port", plainPod("p", `,"ports":[{"containerPort":"80"}]`), pods, "spec.containers.ports.containerPort: got text, want a number"},
		{"ports", plainPod("p", `,"ports":{}`), pods, "spec.containers.ports: got an object, want a list"},
		{"preset", "{apiVersion: settings.k8s.io/v1alpha1, kind: PodPreset, metadata: {name: p}, spec: {env: 1}}", pods, "spec.env: got a"},
		{"cache", "{apiVersion: gkm.io/v1alpha1, kind: GKMCache, metadata: {name: c}, spec: {image: [i]}}", pods, "spec.image: got a list"},
		{
			"claim", strings.Replace(claim, "SHARING", `{strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: "50"}}`, 1), pods,
			"sharing.mpsConfig.defaultActiveThreadPercentage: got text, want a number",
		},
		{"replicas", sliced("replicas: four"), plugin, "replicas: got text, want a number"},
		{"no devices", sliced("replicas: 2}, {name: nvidia.com/gpu, replicas: 3"), plugin, "timeSlicing.resources[0].devices: all: another"},
		{"count", strings.Replace(migPartedFile, "7\n", "seven\n", 1), parted, "got text, want a number"},
		{"GPUs", strings.Replace(amdFile, `"numGPUsAssigned": 6`, `"numGPUsAssigned": "6"`, 1), amd, "numGPUsAssigned: got text, want a number"},
	} {
		err := tc.convert(tc.in)
		check.WantErr(t, err, nil, tc.want)
		if err != nil && goWords.MatchString(err.Error()) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// gpusOf converts an input and returns the requests of its claims, in order, with all notes in one text.
func gpusOf(t *testing.T, in string, o Options) (requests []string, notes string) {
	t.Helper()
	got, err := IntelFPGA([]byte(in), "in", o)
	check.Must(t, err)
	checkOutput(t, got.YAML, o)
	for _, d := range split(Input{Data: got.YAML}) {
		var template resourceapi.ResourceClaimTemplate
		check.Must(t, yaml.Unmarshal(d.text, &template))
		for _, r := range template.Spec.Spec.Devices.Requests {
			memory := "all"
			if r.Exactly.Capacity != nil {
				q := r.Exactly.Capacity.Requests["memory"]
				memory = q.String()
			}
			requests = append(requests, fmt.Sprintf("%d of %s with %s", max(r.Exactly.Count, 1), r.Exactly.DeviceClassName, memory))
		}
	}
	return requests, strings.Join(got.Notes, "\n")
}

// TestSharesOfRenamedResources: the sizes of shares are of the GPUs that the administrator gave another name, and ask for no GPU beside
// these.
func TestSharesOfRenamedResources(t *testing.T) {
	options := Options{Classes: map[string]string{"nvidia.com/vgpu": "shares.example.com", "example.com/nic": "nic.example.com"}}
	const own = "1 of nvidia.gpu.fettle.dev with 3000Mi"
	for limits, want := range map[string]string{
		`"nvidia.com/vgpu":2,"nvidia.com/gpumem":3000`:                     "2 of shares.example.com with 3000Mi",
		`"nvidia.com/gpumem":3000,"example.com/nic":1`:                     "1 of nic.example.com with all, " + own,
		`"nvidia.com/gpu":1,"nvidia.com/gpumem":3000,"nvidia.com/vgpu":2`:  own + ", 2 of shares.example.com with all",
		`"nvidia.com/vgpu":"2","nvidia.com/gpumem":1000,"example.com/x":1`: "2 of shares.example.com with 1000Mi",
	} {
		requests, notes := gpusOf(t, strings.Replace(plainPod("p", ""), `"nvidia.com/gpu":1`, limits, 1), options)
		if got := strings.Join(requests, ", "); got != want {
			t.Errorf("%s: got %s, want %s\n%s", limits, got, want, notes)
		}
	}
}

// TestSizesOfNothing: what says how large the shares of no GPU are is named when it goes.
func TestSizesOfNothing(t *testing.T) {
	limits := `"nvidia.com/gpu":0,"nvidia.com/gpumem":3000,"nvidia.com/gpucores":30`
	requests, notes := gpusOf(t, strings.Replace(plainPod("p", ""), `"nvidia.com/gpu":1`, limits, 1), Options{})
	for _, name := range []string{"nvidia.com/gpu: 0 is left out", "nvidia.com/gpumem is left out", "nvidia.com/gpucores: 30 is left out"} {
		if !strings.Contains(notes, name) {
			t.Errorf("no note says %q: %s", name, notes)
		}
	}
	if len(requests) > 0 {
		t.Errorf("got %q, want no request", requests)
	}
}

// TestSameAmounts: limits and requests that are equal may be written in several ways, as the API server has it.
func TestSameAmounts(t *testing.T) {
	for _, of := range []string{"nvidia.com/gpu", ce48} {
		for _, amount := range []string{`"1"`, `1.0`, `"1000m"`, `"1e0"`} {
			both := `{"limits":{"` + of + `":1},"requests":{"` + of + `":` + amount + `}}`
			in := strings.Replace(plainPod("p", ""), `{"limits":{"nvidia.com/gpu":1}}`, both, 1)
			if requests, _ := gpusOf(t, in, Options{}); len(requests) != 1 {
				t.Errorf("%s of %s: got %q, want a request", amount, of, requests)
			}
		}
	}
}

// TestShareOfCaches: a pod that asks for a share by annotations, and mounts a cache of kernels, gets one GPU: the cache is for the share.
func TestShareOfCaches(t *testing.T) {
	const cache = `{"apiVersion":"gkm.io/v1alpha1","kind":"GKMCache","metadata":{"name":"k"},"spec":{"image":"registry.example/k:1"}}`
	pod := func(containers string) string {
		return cache + "\n---\n" + `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{"gpu-memory":"2000",` +
			`"gpu-fraction-num-devices":"2"}},` +
			`"spec":{"containers":[` + containers + `],"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"k"}}]}}`
	}
	const mounts = `{"name":"a","image":"i","volumeMounts":[{"name":"v","mountPath":"/cache"}]}`
	const plain, gpu = `{"name":"b","image":"i"}`, `{"name":"c","image":"i","resources":{"limits":{"nvidia.com/gpu":1}}}`
	for containers, want := range map[string]string{
		mounts:               "2 of nvidia.gpu.fettle.dev with 2000Mi",
		mounts + "," + plain: "2 of nvidia.gpu.fettle.dev with 2000Mi",
		plain + "," + mounts: "1 of gpu.fettle.dev with all, 2 of nvidia.gpu.fettle.dev with 2000Mi",
		mounts + "," + gpu:   "1 of gpu.fettle.dev with all, 1 of nvidia.gpu.fettle.dev with all",
	} {
		requests, notes := gpusOf(t, pod(containers), Options{})
		if got := strings.Join(requests, ", "); got != want {
			t.Errorf("%s: got %s, want %s\n%s", containers, got, want, notes)
		}
		if !strings.Contains(notes, "gpu-memory") || !strings.Contains(notes, "gpu-fraction-num-devices") {
			t.Errorf("%s: the notes do not name the annotations: %s", containers, notes)
		}
	}
}

// TestOthersAreNamed: an object that is left as it is, and that asks for GPUs or limits them, is named with what it has, wherever that is.
func TestOthersAreNamed(t *testing.T) {
	const metadata = "metadata: {name: o}, "
	for in, want := range map[string]string{
		"v1, kind: LimitRange, " + metadata + "spec: {limits: [{type: Container, max: {nvidia.com/gpu: 4}}]}}": "nvidia.com/gpu",
		"v1, kind: LimitRange, " + metadata + "spec: {limits: [{default: {amd.com/gpu: 1}}]}}":                 "amd.com/gpu",
		"v1, kind: ResourceQuota, " + metadata + "spec: {hard: {requests.nvidia.com/gpu: 4}}}":                 "nvidia.com/gpu",
		"kueue.x-k8s.io/v1beta1, kind: ClusterQueue, " + metadata + "spec: {resourceGroups: [{coveredResources: [cpu, nvidia.com/gpu]}]}}"://
		"nvidia.com/gpu",
		"scheduling.volcano.sh/v1beta1, kind: Queue, " + metadata + "spec: {capability: {volcano.sh/vgpu-number: 8}, " +
			"guarantee: {resource: {nvidia.com/gpu: 1}}}}": "nvidia.com/gpu, volcano.sh/vgpu-number",
		"kubevirt.io/v1, kind: VirtualMachine, " + metadata + "spec: {template: {spec: {domain: {devices: {gpus: [{name: g, " +
			"deviceName: nvidia.com/TU104GL_Tesla_T4}]}}}}}}": "nvidia.com/TU104GL_Tesla_T4",
		"ray.io/v1, kind: RayCluster, " + metadata + "spec: {headGroupSpec: {template: {metadata: {annotations: " +
			"{gpu-fraction: '0.5'}}}}}}": "gpu-fraction",
		"example.com/v1, kind: Devices, " + metadata + "data: {deviceSplitCount: 10, gpu: nvidia.com/gpu}}": "deviceSplitCount 10",
	} {
		got, err := IntelFPGA([]byte("{apiVersion: "+in), "in", Options{})
		check.Must(t, err)
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, " o names "+want+" and is left as it is") &&
			!strings.Contains(notes, " o: "+want) {
			t.Errorf("no note names %s: %q of\n%s", want, got.Notes, in)
		}
	}
}

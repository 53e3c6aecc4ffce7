// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"strings"
	"testing"

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

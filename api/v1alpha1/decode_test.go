// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	gpuHead  = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"`
	hostHead = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig"`
)

func gpuType() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "fettle.dev/v1alpha1", Kind: KindGPUConfig}
}

func TestDecodeConfig(t *testing.T) {
	limit := resource.MustParse("512Mi")
	for _, tc := range []struct {
		name, raw string
		want      Config
	}{
		{name: "only a kind", raw: gpuHead + `}`, want: &GPUConfig{TypeMeta: gpuType()}},
		{
			name: "every GPU field",
			raw: gpuHead + `,"sharing":{"strategy":"MPS","timeSlicing":{"interval":"Long"},` +
				`"mps":{"activeThreadPercentage":50,"pinnedMemoryLimit":"512Mi"}},"policy":{"allowedNamespaces":["a","b"],"allowPassthrough":true}}`,
			want: &GPUConfig{
				TypeMeta: gpuType(),
				Sharing: &GPUSharing{
					Strategy:    SharingMPS,
					TimeSlicing: &TimeSlicing{Interval: IntervalLong},
					MPS:         &MPS{ActiveThreadPercentage: new(int32(50)), PinnedMemoryLimit: &limit},
				},
				Policy: &GPUPolicy{Policy: Policy{AllowedNamespaces: []string{"a", "b"}}, AllowPassthrough: true},
			},
		},
		{
			name: "every host field",
			raw:  hostHead + `,"mountPath":"/data","policy":{"allowedNamespaces":["a"],"onRelease":"Keep"}}`,
			want: &HostConfig{
				TypeMeta:  metav1.TypeMeta{APIVersion: "fettle.dev/v1alpha1", Kind: KindHostConfig},
				MountPath: "/data",
				Policy:    &HostPolicy{Policy: Policy{AllowedNamespaces: []string{"a"}}, OnRelease: OnReleaseKeep},
			},
		},
		{name: "space around", raw: " \n" + gpuHead + "}\n", want: &GPUConfig{TypeMeta: gpuType()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, faults := DecodeConfig([]byte(tc.raw), field.NewPath("parameters"))
			if len(faults) > 0 {
				t.Fatalf("refused: %v", faults.ToAggregate())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecodeConfigRefuses pins that decoding is strict: each input is one that a lenient decoder takes without a word.
func TestDecodeConfigRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		want      []string
	}{
		{
			name: "unknown field at the top", raw: gpuHead + `,"share":{}}`,
			want: []string{`parameters.share: Invalid value: unknown field: use one of apiVersion, kernelCaches, kind, policy, sharing`},
		},
		{
			name: "unknown nested field", raw: gpuHead + `,"sharing":{"mps":{"threads":3}}}`,
			want: []string{`parameters.sharing.mps.threads: Invalid value: unknown field: ` +
				`use one of activeThreadPercentage, multiUser, pinnedMemoryLimit`},
		},
		{
			name: "case difference", raw: gpuHead + `,"sharing":{"Strategy":"MPS"}}`,
			want: []string{`parameters.sharing.Strategy: Invalid value: unknown field: its case is wrong, write strategy`},
		},
		{
			name: "duplicate key", raw: gpuHead + `,"sharing":{"strategy":"Exclusive","strategy":"MPS"}}`,
			want: []string{`parameters.sharing.strategy: Duplicate value: the key is set more than once: keep one`},
		},
		{
			name: "duplicate kind", raw: `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","kind":"GPUConfig"}`,
			want: []string{`parameters.kind: Duplicate value: the key is set more than once: keep one`},
		},
		{
			name: "number for string", raw: gpuHead + `,"sharing":{"strategy":1}}`,
			want: []string{`parameters.sharing.strategy: Invalid value: 1: must be a string, not a number`},
		},
		{
			name: "string for object", raw: gpuHead + `,"sharing":"MPS"}`,
			want: []string{`parameters.sharing: Invalid value: "MPS": must be an object, not a string`},
		},
		{
			name: "string for number", raw: gpuHead + `,"sharing":{"mps":{"activeThreadPercentage":"50"}}}`,
			want: []string{`parameters.sharing.mps.activeThreadPercentage: Invalid value: "50": ` +
				`must be a whole number of 32 bits, not a string`},
		},
		{
			name: "fraction", raw: gpuHead + `,"sharing":{"mps":{"activeThreadPercentage":50.5}}}`,
			want: []string{`parameters.sharing.mps.activeThreadPercentage: Invalid value: 50.5: ` +
				`must be a whole number of 32 bits`},
		},
		{
			name: "too large", raw: gpuHead + `,"sharing":{"mps":{"activeThreadPercentage":4294967297}}}`,
			want: []string{`parameters.sharing.mps.activeThreadPercentage: Invalid value: 4294967297: ` +
				`must be a whole number of 32 bits`},
		},
		{
			name: "no quantity", raw: gpuHead + `,"sharing":{"mps":{"pinnedMemoryLimit":"lots"}}}`,
			want: []string{`parameters.sharing.mps.pinnedMemoryLimit: Invalid value: "lots": must be a quantity such as 512Mi`},
		},
		{
			name: "object for quantity", raw: gpuHead + `,"sharing":{"mps":{"pinnedMemoryLimit":{}}}}`,
			want: []string{`parameters.sharing.mps.pinnedMemoryLimit: Invalid value: must be a quantity such as 512Mi, not an object`},
		},
		{
			name: "null", raw: gpuHead + `,"policy":null}`,
			want: []string{`parameters.policy: Invalid value: must not be null: give a value or leave the field out`},
		},
		{
			name: "null in a list", raw: gpuHead + `,"policy":{"allowedNamespaces":["a","b",null]}}`,
			want: []string{`parameters.policy.allowedNamespaces[2]: Invalid value: must not be null`},
		},
		{
			name: "wrong item", raw: gpuHead + `,"policy":{"allowedNamespaces":["a",true,{}]}}`,
			want: []string{
				`parameters.policy.allowedNamespaces[1]: Invalid value: true: must be a string, not a boolean`,
				`parameters.policy.allowedNamespaces[2]: Invalid value: must be a string, not an object`,
			},
		},
		{
			name: "string for list", raw: gpuHead + `,"policy":{"allowedNamespaces":"a"}}`,
			want: []string{`parameters.policy.allowedNamespaces: Invalid value: "a": must be a list, not a string`},
		},
		{
			name: "inlined policy", raw: hostHead + `,"policy":{"Policy":{"allowedNamespaces":["a"]}}}`,
			want: []string{`parameters.policy.Policy: Invalid value: unknown field: use one of allowedNamespaces, onRelease`},
		},
		{
			name: "all faults at once",
			raw:  gpuHead + `,"a":1,"a":2,"sharing":{"strategy":7,"mps":{"activeThreadPercentage":true}}}`,
			want: []string{
				`parameters.a: Duplicate value`,
				`parameters.a: Invalid value: unknown field`,
				`parameters.sharing.mps.activeThreadPercentage: Invalid value: true`,
				`parameters.sharing.strategy: Invalid value: 7`,
			},
		},
		{
			name: "trailing data", raw: gpuHead + `}{}`,
			want: []string{`parameters: Invalid value: must be JSON: at byte `},
		},
		{
			name: "YAML", raw: "apiVersion: fettle.dev/v1alpha1\nkind: GPUConfig\n",
			want: []string{`parameters: Invalid value: must be JSON`},
		},
		{name: "cut off", raw: gpuHead, want: []string{`parameters: Invalid value: must be JSON`}},
		{name: "empty", raw: "", want: []string{`parameters: Invalid value: must be JSON`}},
		{name: "null document", raw: "null", want: []string{`parameters: Invalid value: must be an object, not null`}},
		{name: "list document", raw: "[]", want: []string{`parameters: Invalid value: must be an object, not a list`}},
		{
			name: "no kind", raw: `{}`,
			want: []string{
				`parameters.apiVersion: Required value: set it to one of ["fettle.dev/v1alpha1"]`,
				`parameters.kind: Required value: set it to one of ["AcceleratorConfig" "FPGAConfig" "GPUConfig" "HostConfig"]`,
			},
		},
		{
			name: "another group", raw: `{"apiVersion":"gpu.nvidia.com/v1beta1","kind":"GpuConfig"}`,
			want: []string{
				`parameters.apiVersion: Unsupported value: "gpu.nvidia.com/v1beta1": supported values: "fettle.dev/v1alpha1"`,
				`parameters.kind: Unsupported value: "GpuConfig": supported values: "AcceleratorConfig", "FPGAConfig", "GPUConfig", "HostConfig"`,
			},
		},
		{
			name: "kind of the wrong type", raw: `{"apiVersion":"fettle.dev/v1alpha1","kind":null}`,
			want: []string{`parameters.kind: Invalid value: must be a string, not null`},
		},
		{
			name: "too long", raw: gpuHead + `,"x":"` + strings.Repeat("a", 11*1024) + `"}`,
			want: []string{`parameters: Too long: may not be more than 10240 bytes`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config, faults := DecodeConfig([]byte(tc.raw), field.NewPath("parameters"))
			if config != nil {
				t.Errorf("got a config beside faults: %+v", config)
			}
			comparePrefixes(t, tc.want, faults)
		})
	}
}

// comparePrefixes wants one fault for each text, in order, that begins with it: the ends of some belong to libraries.
func comparePrefixes(t *testing.T, want []string, faults field.ErrorList) {
	t.Helper()
	var got []string
	for i, fault := range faults {
		text := fault.Error()
		if i < len(want) && strings.HasPrefix(text, want[i]) {
			text = want[i]
		}
		got = append(got, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong faults (-want +got):\n%s", diff)
	}
}

// TestQuantityTakesNoTime: a tenant's configuration has a quantity whose power of ten nobody can compute. It is refused unread.
func TestQuantityTakesNoTime(t *testing.T) {
	for _, text := range []string{
		`"1234567890123456789e1000000000"`, `"1e1000000000"`, `"1e-1000000000"`, `"1E+100"`, `1e300`, `12345678901234567890e1000000000`,
	} {
		raw := gpuHead + `,"sharing":{"mps":{"pinnedMemoryLimit":` + text + `}}}`
		if _, faults := DecodeConfig([]byte(raw), field.NewPath("parameters")); len(faults) == 0 {
			t.Errorf("%s is taken", text)
		}
		scratch := PresetScratch{SizeLimit: strings.Trim(text, `"`)}
		if faults := scratch.validate(field.NewPath("scratch")); len(faults) == 0 {
			t.Errorf("%s is taken for memory", text)
		}
	}
	for _, text := range []string{"512Mi", "1e9", "1E", "2E3", "1.5Gi", "1e+10"} {
		if err := checkExponent(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

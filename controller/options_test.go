// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/controller/deviceclasses"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
)

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   Options
		want []string // parts of the error
	}{
		{"good", Options{Namespace: "fettle-system", BitstreamInterval: time.Second}, nil},
		{"no webhook, no port", Options{Namespace: "fettle-system", BitstreamInterval: time.Hour}, nil},
		{"nothing", Options{}, []string{"--namespace", "POD_NAMESPACE", "--bitstream-interval is 0s"}},
		{"bad namespace", Options{Namespace: "A_b"}, []string{`--namespace is "A_b"`}},
		{
			"no time to end",
			Options{Namespace: "fettle-system", BitstreamInterval: time.Second, NodePartitions: true},
			[]string{"--reclaim-grace-period is 0s"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.in.Validate()
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("Validate() = %v, want parts %q", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestPresetVendorOptions(t *testing.T) {
	t.Parallel()
	o := Options{Namespace: "fettle-system", BitstreamInterval: time.Second, PresetVendors: []string{"amd", "intel", "nvidia", "opae", "xrt"}}
	if err := o.Validate(); err != nil || !slices.Equal(o.PresetVendors, shippedpresets.Vendors()) {
		t.Errorf("%v; known are %v", err, shippedpresets.Vendors())
	}
	o.PresetVendors = []string{"NVIDIA"}
	if err := o.Validate(); err == nil || errors.Unwrap(err) != nil {
		t.Errorf("took %v: %v", o.PresetVendors, err)
	}
}

func TestPartClassOptions(t *testing.T) {
	t.Parallel()
	o := Options{Namespace: "fettle-system", BitstreamInterval: time.Second}
	if o.Classes.Parts = deviceclasses.PartTypes(); o.Validate() != nil {
		t.Errorf("%v", o.Validate())
	}
	o.Classes.Parts = []string{"MIG"}
	const want = `--gpu-part-classes names "MIG": expected any of mig, partition, vf, vfio`
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("took %v: %v", o.Classes.Parts, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// TestByKMM: a driver counts once KMM has loaded what is wanted, for the kernel that runs, in this boot, and the plugin finds it.
func TestByKMM(t *testing.T) {
	d := &v1alpha1.KMMDriver{Version: "2", KernelMappings: []v1alpha1.KernelMapping{
		{Literal: "6.1.0-1", Image: "r.example/m:special"}, {Regexp: `^6\.1\.`, Image: "r.example/m:${KERNEL_FULL_VERSION}"},
	}}
	module := func(version, kernel, boot string) *stack.KMMModule {
		return &stack.KMMModule{Version: version, KernelVersion: kernel, Config: "{}", BootID: boot}
	}
	otherWay := module("2", "6.1.0-1", "boot-1")
	otherWay.Config = "{1}"
	for _, test := range []struct {
		name, kernel, wanted string
		k                    stack.KMM
		want                 string
	}{
		{name: "all is well", k: stack.KMM{"2", module("2", "6.1.0-1", ""), module("2", "6.1.0-1", "boot-1")}, want: stack.ReasonPassed},
		{
			name: "KMM leaves out the plus sign", kernel: "6.1.0-7+",
			k:    stack.KMM{"2", module("2", "6.1.0-7", ""), module("2", "6.1.0-7", "boot-1")},
			want: stack.ReasonPassed,
		},
		{name: "a kernel without an image", kernel: "6.2.0", k: stack.KMM{Label: "2"}, want: stack.ReasonNoKernelMapping},
		{name: "no kernel", kernel: "-", want: stack.ReasonDriverPending},
		{name: "not decided", k: stack.KMM{Label: "2"}, want: stack.ReasonDriverPending},
		{name: "decided for the kernel before", k: stack.KMM{Label: "2", Wanted: module("2", "6.1.0-9", "")}, want: stack.ReasonDriverPending},
		{name: "not loaded", k: stack.KMM{Label: "2", Wanted: module("2", "6.1.0-1", "")}, want: stack.ReasonDriverPending},
		{
			name: "loaded before the node started", k: stack.KMM{"2", module("2", "6.1.0-1", ""), module("2", "6.1.0-1", "before")},
			want: stack.ReasonDriverOtherBoot,
		},
		{name: "loaded in another way", k: stack.KMM{"2", module("2", "6.1.0-1", ""), otherWay}, want: stack.ReasonDriverPending},
		{
			name: "another version", k: stack.KMM{"1", module("1", "6.1.0-1", ""), module("1", "6.1.0-1", "boot-1")},
			want: stack.ReasonDriverOutdated,
		},
		{name: "being unloaded", k: stack.KMM{"", nil, module("1", "6.1.0-1", "boot-1")}, want: stack.ReasonDriverPending},
		{
			name: "the plugin finds another", wanted: "2.0", k: stack.KMM{"2", module("2", "6.1.0-1", ""), module("2", "6.1.0-1", "boot-1")},
			want: stack.ReasonDriverOtherVersion,
		},
	} {
		n := healthy("a")
		if test.kernel != "" {
			n.KernelVersion = strings.TrimPrefix(test.kernel, "-")
		}
		of := *d
		of.ModuleVersion = test.wanted
		if v := stack.ByKMM(&of, n, test.k); v.Reason != test.want {
			t.Errorf("%s: %+v, want %s", test.name, v, test.want)
		}
	}
}

// TestKMMImage: the first mapping that matches counts.
func TestKMMImage(t *testing.T) {
	d := &v1alpha1.KMMDriver{KernelMappings: []v1alpha1.KernelMapping{
		{Regexp: "^5", Image: "a"}, {Literal: "6.1.0+", Image: "b"}, {Regexp: "6", Image: "c"}, {Regexp: "(", Image: "d"},
	}}
	for release, want := range map[string]string{"5.1": "a", "6.1.0": "b", "6.1.0+": "b", "6.1.0-1": "c", "4.5": ""} {
		if image, found := stack.KMMImage(d, release); image != want || found != (want != "") {
			t.Errorf("%s: %q, %t, want %q", release, image, found, want)
		}
	}
}

// TestKMMVersion: a node with nothing loaded gets the version, and one with another version keeps it.
func TestKMMVersion(t *testing.T) {
	d := &v1alpha1.KMMDriver{Version: "2"}
	for name, test := range map[string]struct {
		k    stack.KMM
		want string
	}{
		"a new node":                      {stack.KMM{}, "2"},
		"a label that was left":           {stack.KMM{Label: "1"}, "2"},
		"another version is to be loaded": {stack.KMM{Label: "1", Wanted: &stack.KMMModule{}}, "1"},
		"another version is loaded":       {stack.KMM{Label: "1", Loaded: &stack.KMMModule{}}, "1"},
		"it is being unloaded":            {stack.KMM{Loaded: &stack.KMMModule{}}, ""},
	} {
		if got := stack.KMMVersion(d, test.k); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

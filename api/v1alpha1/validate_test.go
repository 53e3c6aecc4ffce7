// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestValidate(t *testing.T) {
	many := make([]string, 129)
	for i := range many {
		many[i] = fmt.Sprintf("ns-%d", i)
	}
	zero := resource.MustParse("0")
	for _, tc := range []struct {
		name      string
		config    Config
		fromClass bool
		want      []string
	}{
		{name: "empty GPU", config: &GPUConfig{}},
		{name: "empty host", config: &HostConfig{}},
		{name: "exclusive", config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingExclusive}}},
		{name: "waits for a cache", config: &GPUConfig{KernelCaches: []KernelCacheSource{{Name: "a", BindAfter: BindAfterFetched}}}},
		{
			name: "waits for what is no file", config: &GPUConfig{KernelCaches: []KernelCacheSource{{Name: "a", BindAfter: BindAfterLoaded}}},
			want: []string{`parameters.kernelCaches[0].bindAfter: Unsupported value: "Loaded": supported values: "Fetched"`},
		},
		{name: "class policy", config: &GPUConfig{Policy: &GPUPolicy{Policy: Policy{AllowedNamespaces: []string{"a"}}}}, fromClass: true},
		{
			name: "claim policy", config: &GPUConfig{Policy: &GPUPolicy{}},
			want: []string{`parameters.policy: Forbidden: only a DeviceClass may set a policy: remove it from the claim`},
		},
		{name: "class passthrough", config: &GPUConfig{Policy: &GPUPolicy{AllowPassthrough: true}}, fromClass: true},
		{
			name: "claim passthrough", config: &GPUConfig{Policy: &GPUPolicy{AllowPassthrough: true}},
			want: []string{`parameters.policy: Forbidden: only a DeviceClass may set a policy: remove it from the claim`},
		},
		{name: "time slicing", config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingTimeSlicing, TimeSlicing: &TimeSlicing{}}}},
		{name: "interval alone", config: &GPUConfig{Sharing: &GPUSharing{TimeSlicing: &TimeSlicing{Interval: IntervalLong}}}},
		{name: "MPS", config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingMPS, MPS: &MPS{MultiUser: new(true)}}}},
		{
			name:   "another strategy's parameters",
			config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingExclusive, TimeSlicing: &TimeSlicing{}, MPS: &MPS{}}},
			want: []string{
				`parameters.sharing.timeSlicing: Forbidden: the strategy is Exclusive: remove it, or choose its strategy`,
				`parameters.sharing.mps: Forbidden: the strategy is Exclusive: remove it, or choose its strategy`,
			},
		},
		{
			name: "MPS with bad values",
			config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingMPS, MPS: &MPS{
				ActiveThreadPercentage: new(int32(101)), PinnedMemoryLimit: &zero,
			}}},
			want: []string{
				`parameters.sharing.mps.activeThreadPercentage: Invalid value: 101: must be between 1 and 100`,
				`parameters.sharing.mps.pinnedMemoryLimit: Invalid value: "0": must be more than zero bytes`,
			},
		},
		{
			name: "MPS with more memory than can be counted",
			config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingMPS, MPS: &MPS{
				PinnedMemoryLimit: new(resource.MustParse("100E")),
			}}},
			want: []string{`parameters.sharing.mps.pinnedMemoryLimit: Invalid value: "100E": must be less than 8Ei bytes`},
		},
		{
			name: "MPS with as much memory as can be counted",
			config: &GPUConfig{Sharing: &GPUSharing{Strategy: SharingMPS, MPS: &MPS{
				PinnedMemoryLimit: resource.NewQuantity(math.MaxInt64, resource.BinarySI),
			}}},
		},
		{
			name:   "unknown words",
			config: &GPUConfig{Sharing: &GPUSharing{Strategy: "exclusive", TimeSlicing: &TimeSlicing{Interval: "Tiny"}}},
			want: []string{
				`parameters.sharing.strategy: Unsupported value: "exclusive": supported values: "Exclusive", "TimeSlicing", "MPS"`,
				`parameters.sharing.timeSlicing.interval: Unsupported value: "Tiny": supported values: "Default", "Short", "Medium", "Long"`,
			},
		},
		{
			name:      "namespaces",
			config:    &GPUConfig{Policy: &GPUPolicy{Policy: Policy{AllowedNamespaces: []string{"a", "A_b", "a", ""}}}},
			fromClass: true,
			want: []string{
				`parameters.policy.allowedNamespaces[1]: Invalid value: "A_b": a lowercase RFC 1123 label`,
				`parameters.policy.allowedNamespaces[2]: Duplicate value: "a": already at index 0`,
				`parameters.policy.allowedNamespaces[3]: Invalid value: "": a lowercase RFC 1123 label`,
			},
		},
		{
			name: "empty list", config: &HostConfig{Policy: &HostPolicy{Policy: Policy{AllowedNamespaces: []string{}}}}, fromClass: true,
			want: []string{`parameters.policy.allowedNamespaces: Required value: name at least one namespace`},
		},
		{
			name: "too many", config: &GPUConfig{Policy: &GPUPolicy{Policy: Policy{AllowedNamespaces: many}}}, fromClass: true,
			want: []string{`parameters.policy.allowedNamespaces: Too many: 129: must have at most 128 items`},
		},
		{
			name: "on release", config: &HostConfig{Policy: &HostPolicy{OnRelease: "Shred"}}, fromClass: true,
			want: []string{`parameters.policy.onRelease: Unsupported value: "Shred": supported values: "Empty", "Keep"`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			comparePrefixes(t, tc.want, tc.config.Validate(tc.fromClass, field.NewPath("parameters")))
		})
	}
}

func TestMountPath(t *testing.T) {
	for dir, want := range map[string]string{
		"/data":                        "",
		"/mnt/a b":                     "",
		"/usr/share/data":              "",
		"/usr/local/lib":               "",
		"/etcetera":                    "",
		"/..data":                      "",
		"data":                         "must be absolute",
		"../data":                      "must be absolute",
		"/data/":                       "must be clean",
		"//data":                       "must be clean",
		"/data/../proc":                "must be clean",
		"/./data":                      "must be clean",
		"/":                            "must not cover or lie in /bin",
		"/usr":                         "must not cover or lie in /usr/bin",
		"/run":                         "must not cover or lie in /run/secrets",
		"/.fettle":                     "must not cover or lie in /.fettle",
		"/.fettle/caches":              "must not cover or lie in /.fettle",
		"/proc":                        "must not cover or lie in /proc",
		"/proc/self/fd":                "must not cover or lie in /proc",
		"/sys/fs/cgroup":               "must not cover or lie in /sys",
		"/dev/shm":                     "must not cover or lie in /dev",
		"/etc/ld.so.conf.d":            "must not cover or lie in /etc",
		"/usr/lib/x":                   "must not cover or lie in /usr/lib",
		"/a\x00b":                      "must have printable characters",
		"/a\nb":                        "must have printable characters",
		"/a\xffb":                      "must have printable characters",
		"/" + strings.Repeat("a", 256): "may not be more than 256",
	} {
		t.Run(dir, func(t *testing.T) {
			faults := (&HostConfig{MountPath: dir}).Validate(false, nil)
			if want == "" && len(faults) == 0 {
				return
			}
			if want == "" || len(faults) != 1 || faults[0].Field != "mountPath" || !strings.Contains(faults[0].Detail, want) {
				t.Errorf("want one fault of mountPath with %q, got %v", want, faults)
			}
		})
	}
}

func TestDefault(t *testing.T) {
	gpu := &GPUConfig{Sharing: &GPUSharing{TimeSlicing: &TimeSlicing{}, MPS: &MPS{}}}
	gpu.Default()
	want := &GPUConfig{Sharing: &GPUSharing{
		Strategy:    SharingExclusive,
		TimeSlicing: &TimeSlicing{Interval: IntervalDefault},
		MPS:         &MPS{ActiveThreadPercentage: new(int32(100))},
	}}
	if diff := cmp.Diff(want, gpu); diff != "" {
		t.Errorf("GPUConfig (-want +got):\n%s", diff)
	}
	host := &HostConfig{}
	host.Default()
	if diff := cmp.Diff(&HostConfig{Policy: &HostPolicy{OnRelease: OnReleaseEmpty}}, host); diff != "" {
		t.Errorf("HostConfig (-want +got):\n%s", diff)
	}
}

// TestEveryKindIsUsable fails when a kind is added to the table with a field that checkShape has no rule for.
func TestEveryKindIsUsable(t *testing.T) {
	for _, kind := range ConfigKinds() {
		raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q}`, GroupVersion, kind)
		config, faults := DecodeConfig([]byte(raw), field.NewPath("parameters"))
		if len(faults) > 0 {
			t.Errorf("%s: %v", kind, faults.ToAggregate())
			continue
		}
		config.Default()
		if faults := config.Validate(true, nil); len(faults) > 0 {
			t.Errorf("%s: the defaults are not valid: %v", kind, faults.ToAggregate())
		}
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"AcceleratorNode", "AcceleratorNodeList"} {
		if !scheme.Recognizes(GroupVersion.WithKind(kind)) {
			t.Errorf("%s is not registered", kind)
		}
	}
}

func TestSetProblems(t *testing.T) {
	problems := make([]NodeProblem, 40)
	for i := range problems {
		problems[i] = NodeProblem{Subject: fmt.Sprintf("0000:%02x:00.0", i), Reason: "AttributeUnreadable"}
	}
	problems[0].Message = strings.Repeat("ä", 3000)
	var status AcceleratorNodeStatus
	status.SetProblems(problems)
	if status.ProblemCount != 40 || len(status.Problems) != MaxProblems {
		t.Errorf("count %d with %d listed, want 40 with %d", status.ProblemCount, len(status.Problems), MaxProblems)
	}
	if got := []rune(status.Problems[0].Message); len(got) != 2048 || got[2047] != '…' {
		t.Errorf("the message has %d characters, want 2048 with an ellipsis", len(got))
	}
	status.SetProblems(nil)
	if status.ProblemCount != 0 || status.Problems != nil {
		t.Errorf("not cleared: %+v", status)
	}
}

// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	team   = "team"
	gpu    = "gpu.fettle.dev"
	fpga   = "fpga.fettle.dev"
	forGPU = "deviceSelector: {deviceClassNames: [gpu.fettle.dev]}\n"
	// forAll selects every request of the driver.
	forAll = "deviceSelector: {cel: 'true'}\n"
)

// birth is when the first preset was made.
func birth() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// own is a DevicePreset of the team, from its spec in YAML.
func own(t testing.TB, name, spec string) preset.Preset {
	t.Helper()
	p := v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, CreationTimestamp: metav1.NewTime(birth())}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return preset.Of(p.Common())
}

// ofCluster is a ClusterDevicePreset.
func ofCluster(t testing.TB, name, spec string) preset.Preset {
	t.Helper()
	p := v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(birth())}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return preset.Of(p.Common())
}

// ownInOrder are presets p1, p2 and so on of the team, each younger than the one before.
func ownInOrder(t testing.TB, specs ...string) []preset.Preset {
	t.Helper()
	var all []preset.Preset
	for i, spec := range specs {
		p := own(t, "p"+string(rune('1'+i)), spec)
		p.Created = birth().Add(time.Duration(i) * time.Hour)
		all = append(all, p)
	}
	return all
}

// device is one of a class; words are attributes, NAME=VALUE.
func device(request, class string, words ...string) preset.Device {
	d := preset.Device{Request: request, Class: class, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		d.Attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &value}
	}
	return d
}

// claim is one that the pod owns.
func claim(name string, devices ...preset.Device) preset.Claim {
	c := preset.Claim{
		ResourceClaim: objects.Claim(team, name),
		Devices:       devices, Owned: true,
	}
	for _, d := range devices {
		c.Classes = append(c.Classes, d.Class)
	}
	return c
}

// shared is one that pods share.
func shared(c preset.Claim) preset.Claim {
	c.Owned = false
	return c
}

// container uses claims, CLAIM or CLAIM/REQUEST.
func container(name string, uses ...string) corev1.Container {
	c := corev1.Container{Name: name}
	for _, use := range uses {
		entry, request, _ := strings.Cut(use, "/")
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: entry, Request: request})
	}
	return c
}

// with gives a container variables, NAME=VALUE.
func with(c corev1.Container, variables ...string) corev1.Container {
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	return c
}

// mounting gives a container volumes at the paths.
func mountEntry(c corev1.Container, paths ...string) corev1.Container {
	for _, p := range paths {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", MountPath: p})
	}
	return c
}

// pod has a claim of the same name for each entry that a container uses.
func pod(containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "pod", Labels: map[string]string{"app": "train"}}}
	p.Spec.Containers = containers
	for i := range containers {
		for _, use := range containers[i].Resources.Claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: use.Name, ResourceClaimName: new(use.Name)})
		}
	}
	return p
}

// input is for claims of a pod, which is nil for those that pods share.
func input(p *corev1.Pod, presets []preset.Preset, claims ...preset.Claim) preset.Input {
	return preset.Input{
		Presets: presets, Namespace: team, NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": team, "stage": "dev"},
		Claims: claims, Pod: p, DriverNamespace: "fettle-system", Driver: v1alpha1.DriverName,
	}
}

// simple is a pod with one container that uses one claim of one GPU.
func simple(presets ...preset.Preset) preset.Input {
	return input(pod(container("main", "a")), presets, claim("a", device("gpu", gpu, "vendor=nvidia")))
}

func resolve(t testing.TB, in preset.Input) preset.Resolution {
	t.Helper()
	return preset.Resolve(t.Context(), in, &preset.Conditions{})
}

// names are the presets that are for each request, as CLAIM/REQUEST: NAME NAME.
func names(r preset.Resolution) []string {
	out := []string{}
	for _, request := range r.Requests {
		line := request.Claim + "/" + request.Request + ":"
		for _, from := range request.Presets {
			line += " " + from.Name
		}
		out = append(out, line)
	}
	return out
}

// told are refusals or what is missing, as PRESET CLAIM/REQUEST FIELD: MESSAGE.
func told(refusals []preset.Refusal) []string {
	out := []string{}
	for _, r := range refusals {
		where := r.Claim
		if r.Request != "" {
			where += "/" + r.Request
		}
		out = append(out, r.From.Name+" "+where+" "+r.Field+": "+r.Message)
	}
	return out
}

// wantLines compares texts, of which the wanted may be beginnings.
func wantLines(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = strings.HasPrefix(got[i], want[i])
	}
	if !same {
		t.Errorf("%s:\n\t%s\nwant:\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

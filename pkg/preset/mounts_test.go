// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// mounts are CLAIM/REQUEST: PATH=SOURCE, with the presets that it is over.
func mounts(r preset.Resolution) []string {
	out := []string{}
	for _, request := range r.Requests {
		for _, m := range request.Mounts {
			source := m.HostPath
			if m.Scratch != nil {
				source = "scratch"
			}
			line := request.Claim + "/" + request.Request + ": " + m.ContainerPath + "=" + source
			for _, o := range m.Overrode {
				line += " over " + o.Name
			}
			out = append(out, line)
		}
	}
	return out
}

func TestMounts(t *testing.T) {
	mount := func(class, host string) string {
		return "deviceSelector: {deviceClassNames: [" + class + "]}\nmounts: [{hostPath: " + host + ", containerPath: /data}]"
	}
	const scratch = forAll + "mounts: [{containerPath: /data, scratch: {sizeLimit: 1Gi}}]"
	const stays = " spec.mounts[0]: container main mounts something of its own at /data, which stays"
	const c = "nic.fettle.dev"
	both, mine := container("main", "a", "b"), container("main", "a")
	for _, test := range []struct {
		name    string
		pod     *corev1.Pod // nil: shared
		presets []string
		want    []string
		refused []string
	}{
		{name: "one", pod: pod(mine), presets: []string{mount(gpu, "/x")}, want: []string{"a/r: /data=/x"}},
		{
			name: "pod's own", pod: pod(mountEntry(mine, "/data")), presets: []string{mount(gpu, "/x"), mount(gpu, "/y")},
			want: []string{}, refused: []string{"p2 a/r" + stays, "p1 a/r" + stays},
		},
		{
			name: "pod's own with a slash", pod: pod(mountEntry(mine, "/data/")),
			presets: []string{mount(gpu, "/x")}, want: []string{}, refused: []string{"p1 a/r" + stays},
		},
		{
			name: "pod's own without the first slash", pod: pod(mountEntry(mine, "data")),
			presets: []string{mount(gpu, "/x")}, want: []string{}, refused: []string{"p1 a/r" + stays},
		},
		{name: "pod's own below", pod: pod(mountEntry(mine, "/data/x")), presets: []string{mount(gpu, "/x")}, want: []string{"a/r: /data=/x"}},
		{
			name: "another container's own", pod: pod(mine, mountEntry(container("side", "b"), "/data")),
			presets: []string{mount(gpu, "/x")}, want: []string{"a/r: /data=/x"},
		},
		{
			name: "later wins", pod: pod(mine),
			presets: []string{mount(gpu, "/x"), mount(gpu, "/y"), mount(gpu, "/z")}, want: []string{"a/r: /data=/z over p1 over p2"},
		},
		{name: "the same once", pod: pod(mine), presets: []string{mount(gpu, "/x"), mount(gpu, "/x")}, want: []string{"a/r: /data=/x"}},
		{
			name: "the same after another", pod: pod(mine),
			presets: []string{mount(gpu, "/x"), mount(gpu, "/y"), mount(gpu, "/x")}, want: []string{"a/r: /data=/x over p2"},
		},
		{
			name: "two claims of a container", pod: pod(both),
			presets: []string{mount(gpu, "/x"), mount(fpga, "/y")}, want: []string{"b/r: /data=/y over p1"},
		},
		{
			name: "the same by two claims", pod: pod(both),
			presets: []string{mount(gpu, "/x"), mount(fpga, "/x")}, want: []string{"a/r: /data=/x", "b/r: /data=/x"},
		},
		{
			name: "containers that do not meet", pod: pod(mine, container("side", "b")), presets: []string{mount(gpu, "/x"), mount(fpga, "/y")},
			want: []string{"a/r: /data=/x", "b/r: /data=/y"},
		},
		{
			name: "loses only against what is given", pod: pod(both, container("side", "b", "c")),
			presets: []string{mount(gpu, "/x"), mount(fpga, "/y"), mount(c, "/z")}, want: []string{"a/r: /data=/x", "c/r: /data=/z over p2"},
		},
		{
			name: "the later is refused for another container", pod: pod(mountEntry(container("main", "b"), "/data"), container("side", "a", "b")),
			presets: []string{mount(gpu, "/x"), mount(fpga, "/y")}, want: []string{"a/r: /data=/x"}, refused: []string{"p2 b/r" + stays},
		},
		{name: "shared", presets: []string{mount(gpu, "/x"), mount(gpu, "/y")}, want: []string{"a/r: /data=/y over p1"}},
		{
			name: "scratch of two claims", pod: pod(both), presets: []string{scratch}, want: []string{"a/r: /data=scratch", "c/r: /data=scratch"},
			refused: []string{"p1 b/r spec.mounts[0]: a container has the scratch directory of claim a at /data already"},
		},
		{
			name: "scratch of two presets", pod: pod(container("main", "a", "b", "c")), presets: []string{scratch, scratch},
			want:    []string{"a/r: /data=scratch over p1"},
			refused: []string{"p2 b/r spec.mounts[0]: a container", "p2 c/r spec.mounts[0]: a container"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			claims := []preset.Claim{claim("a", device("r", gpu)), claim("b", device("r", fpga)), claim("c", device("r", c))}
			if test.pod == nil {
				claims = []preset.Claim{shared(claims[0])}
			}
			got := resolve(t, input(test.pod, ownInOrder(t, test.presets...), claims...))
			if diff := cmp.Diff(test.want, mounts(got)); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			wantLines(t, "refusals", told(got.Refusals), test.refused...)
		})
	}
}

func TestDeviceNodes(t *testing.T) {
	node := func(name, class, flags string) preset.Preset {
		return ofCluster(t, name, "deviceSelector: {deviceClassNames: ["+class+"]}\ndeviceNodes: [{path: /dev/b}, {path: /dev/a"+flags+"}]")
	}
	in := input(pod(container("main", "a", "b"), container("side", "c")),
		[]preset.Preset{node("p", gpu, ", readOnly: true"), node("q", fpga, ""), node("r", "c", ", optional: true")},
		claim("a", device("r", gpu)), claim("b", device("r", fpga)), claim("c", device("r", "c")))
	got := []string{}
	for _, request := range resolve(t, in).Requests {
		for _, n := range request.Nodes {
			line := request.Claim + " " + n.Path + " " + n.From.Name
			for _, o := range n.Overrode {
				line += " over " + o.Name
			}
			got = append(got, line)
		}
	}
	want := []string{"a /dev/a q over p", "a /dev/b q", "b /dev/a q over p", "b /dev/b q", "c /dev/a r", "c /dev/b r"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	gpuSpec, otherSpec  = "v/c=gpu0", "v/c=gpu1"
	dirSpec, mountSpec  = "v/c=disk0", "v/c=disk0-at-data"
	lookSpec, otherLook = "v/c=gpu0-look", "v/c=disk0-look"
)

// sound is a node with two GPUs and a directory, of which a claim has one GPU and the directory, and another looks at both.
func sound() observation {
	gpu := hardware{key: "gpu0", node: "/dev/nvidia0", major: 195, minor: 0}
	other := hardware{key: "gpu1", node: "/dev/nvidia1", major: 195, minor: 1}
	disk := hardware{key: "disk0", dir: "/mnt/disks/disk0"}
	spare := hardware{key: "disk1", dir: "/mnt/disks/disk1"}
	control := node{path: "/dev/nvidiactl", kind: "c", major: 195, minor: 255, permissions: "rw"}
	file := func(id string, e edits) specFile { return specFile{devices: map[string]edits{id: e}} }
	of := func(hw hardware, permissions string) edits {
		return edits{nodes: []node{{path: hw.node, kind: "c", major: hw.major, minor: hw.minor, permissions: permissions}, control}}
	}
	lookOf := of(gpu, "r")
	lookOf.nodes[1].permissions = "r"
	vacant := directory{mode: fs.ModeDir | 0o755}
	return observation{
		holders: []holder{
			{name: "pod#0", live: true, files: []string{"tenant-pod#0"}, grants: []grant{
				{request: "gpus", id: deviceID{"n/gpu", "gpu0"}, hardware: gpu, cdi: []string{gpuSpec}},
				{request: "dir-0", id: deviceID{"n/host", "disk0"}, hardware: disk, cdi: []string{dirSpec}},
			}},
			{name: "look#0", live: true, grants: []grant{
				{request: "gpus", id: deviceID{"n/gpu", "gpu0"}, hardware: gpu, look: true, cdi: []string{lookSpec}},
				{request: "dir-0", id: deviceID{"n/host", "disk0"}, hardware: disk, look: true, cdi: []string{otherLook}},
			}},
		},
		specs: specDir{
			"shown.json": {devices: map[string]edits{"fettle.dev/gpu=nvidia-gpu0": {}}},
			"gpu0.json":  file(gpuSpec, of(gpu, "rw")), "gpu1.json": file(otherSpec, of(other, "rw")), "look.json": file(lookSpec, lookOf),
			"disk0.json":      file(dirSpec, edits{mounts: []mount{{hostPath: disk.dir, containerPath: "/mnt/lent/disk0"}}}),
			"disk0-look.json": file(otherLook, edits{mounts: []mount{{hostPath: disk.dir, containerPath: "/mnt/lent/disk0", readOnly: true}}}),
		},
		host: hostTree{
			nodes: map[string]hostNode{"/dev/nvidia0": {"c", 195, 0}, "/dev/nvidia1": {"c", 195, 1}, "/dev/nvidiactl": {"c", 195, 255}},
			dirs: map[string]directory{
				disk.dir:  {mode: lentMode, names: []string{"tenant-pod#0"}},
				spare.dir: vacant,
			},
		},
		hardware: []hardware{gpu, other, disk, spare},
		vacant:   map[string]directory{disk.dir: vacant, spare.dir: vacant},
	}
}

// edit changes the edits of one CDI device.
func (o observation) edit(file, id string, change func(*edits)) {
	e := o.specs[file].devices[id]
	e.nodes, e.mounts = slices.Clone(e.nodes), slices.Clone(e.mounts)
	change(&e)
	o.specs[file].devices[id] = e
}

// lend changes a directory.
func (o observation) lend(path string, change func(*directory)) {
	d := o.host.dirs[path]
	change(&d)
	o.host.dirs[path] = d
}

// unsettle makes kubelet not know about a claim.
func (o observation) unsettle(holder int) { o.holders[holder].live = false }

type badState struct {
	name  string
	spoil func(o *observation)
	// want are the violations as text, sorted: class, subject and a part of the text.
	want []violation
}

// bad are states in which something must not be, whenever one looks.
func bad() []badState {
	pod, look := "pod#0", "look#0"
	return []badState{
		{"spec is gone", func(o *observation) { delete(o.specs, "gpu0.json") }, []violation{{lost, pod, "in none of"}}},
		{"look's spec is gone", func(o *observation) { delete(o.specs, "look.json") }, []violation{{lost, look, "in none of"}}},
		{"name in two specs", func(o *observation) { o.specs["copy.json"] = o.specs["gpu0.json"] }, []violation{{lost, pod, "several specs"}}},
		{
			"spec that cannot be read", func(o *observation) { o.specs["gpu1.json"] = specFile{fault: "is no JSON"} },
			[]violation{{lost, "gpu1.json", "is no JSON"}},
		},
		{"no name given", func(o *observation) { o.holders[0].grants[0].cdi = nil }, []violation{{lost, pod, "no CDI device"}}},
		{
			"node is not on the host", func(o *observation) { delete(o.host.nodes, "/dev/nvidiactl") },
			[]violation{{lost, look, "/dev/nvidiactl, which is not"}, {lost, pod, "/dev/nvidiactl, which is not"}},
		},
		{
			"numbers of an earlier boot", func(o *observation) { o.host.nodes["/dev/nvidiactl"] = hostNode{"c", 196, 255} },
			[]violation{{lost, look, "195:255 of /dev/nvidiactl"}, {lost, pod, "195:255 of /dev/nvidiactl"}},
		},
		{
			"node of another kind", func(o *observation) { o.host.nodes["/dev/nvidiactl"] = hostNode{"b", 195, 255} },
			[]violation{{lost, look, "/dev/nvidiactl"}, {lost, pod, "/dev/nvidiactl"}},
		},
		{"own node is not in the edits", func(o *observation) {
			o.edit("gpu0.json", gpuSpec, func(e *edits) { e.nodes = e.nodes[1:] })
		}, []violation{{lost, pod, "its own /dev/nvidia0 is not"}}},
		{"another's node instead", func(o *observation) {
			o.holders[0].grants[0].cdi = []string{otherSpec}
		}, []violation{{doublyUsed, pod, "also reach gpu1"}, {lost, pod, "its own /dev/nvidia0 is not"}}},
		{"another's node besides", func(o *observation) {
			o.edit("gpu0.json", gpuSpec, func(e *edits) {
				e.nodes = append(e.nodes, node{path: "/dev/nvidia1", kind: "c", major: 195, minor: 1, permissions: "rw"})
			})
		}, []violation{{doublyUsed, pod, "also reach gpu1"}}},
		{"another's numbers by another path", func(o *observation) {
			o.host.nodes["/dev/odd"] = hostNode{"c", 195, 1}
			o.edit("gpu0.json", gpuSpec, func(e *edits) {
				e.nodes = append(e.nodes, node{path: "/dev/odd", kind: "c", major: 195, minor: 1, permissions: "rw"})
			})
		}, []violation{{doublyUsed, pod, "also reach gpu1"}}},
		{"two claims with one device", func(o *observation) {
			twin := o.holders[0]
			twin.name, twin.grants = "twin#0", twin.grants[:1]
			o.holders = append(o.holders, twin)
		}, []violation{{doublyUsed, "twin#0", "/dev/nvidia0, and so does pod#0"}}},
		{"two claims whose devices have one node", func(o *observation) {
			o.holders = append(o.holders, holder{name: "twin#0", live: true, grants: []grant{
				{request: "gpus", id: deviceID{"n/gpu", "gpu1"}, hardware: o.hardware[1], cdi: []string{otherSpec, gpuSpec}},
			}})
		}, []violation{{doublyUsed, "twin#0", "/dev/nvidia0, and so does pod#0"}, {doublyUsed, "twin#0", "also reach gpu0"}}},
		{"look that may write to a node", func(o *observation) {
			o.edit("look.json", lookSpec, func(e *edits) { e.nodes[0].permissions = "rw" })
		}, []violation{{doublyUsed, look, `may do "rw"`}}},
		{"look that may write to a directory", func(o *observation) {
			o.edit("disk0-look.json", otherLook, func(e *edits) { e.mounts[0].readOnly = false })
		}, []violation{{doublyUsed, look, "may write to /mnt/disks/disk0"}}},
		{"mount is not on the host", func(o *observation) {
			o.edit("disk0.json", dirSpec, func(e *edits) { e.mounts = append(e.mounts, mount{hostPath: "/gone"}) })
		}, []violation{{lost, pod, "/gone, which is not"}}},
		{
			"not where the claim wants it", func(o *observation) { o.holders[0].grants[1].mountPath = "/data" },
			[]violation{{lost, pod, "its own /mnt/disks/disk0 is not"}},
		},
		{"directory is closed", func(o *observation) {
			o.lend("/mnt/disks/disk0", func(d *directory) { d.mode = fs.ModeDir | 0o755 })
		}, []violation{{lost, pod, "mode drwxr-xr-x"}}},
		{
			"directory is gone", func(o *observation) { delete(o.host.dirs, "/mnt/disks/disk0") },
			[]violation{{lost, look, "which is not on the host"}, {lost, pod, "is not there"}, {lost, pod, "which is not on the host"}},
		},
		{"tenant's file is gone", func(o *observation) {
			o.lend("/mnt/disks/disk0", func(d *directory) { d.names = nil })
		}, []violation{{lost, pod, "its file tenant-pod#0"}}},
		{"earlier tenant's file", func(o *observation) {
			o.lend("/mnt/disks/disk0", func(d *directory) { d.names = append(d.names, "tenant-earlier#0") })
		}, []violation{{doublyUsed, pod, "tenant-earlier#0, which is not its own"}}},
	}
}

// unsettled are states that may pass, but must not stay.
func unsettled() []badState {
	const spare = "/mnt/disks/disk1"
	return []badState{
		{
			"content that nobody has", func(o *observation) { o.lend(spare, func(d *directory) { d.names = []string{"x", "y"} }) },
			[]violation{{leaked, spare, "holds x, y"}},
		},
		{
			"mode of a directory that nobody has", func(o *observation) { o.lend(spare, func(d *directory) { d.mode = lentMode }) },
			[]violation{{leaked, spare, "dtrwxrwxrwx"}},
		},
		{
			"owner of a directory that nobody has", func(o *observation) { o.lend(spare, func(d *directory) { d.uid = 1000 }) },
			[]violation{{leaked, spare, "1000:0, want"}},
		},
		{
			"group of a directory that nobody has", func(o *observation) { o.lend(spare, func(d *directory) { d.gid = 1000 }) },
			[]violation{{leaked, spare, "0:1000, want"}},
		},
		{
			"directory that only a look has", func(o *observation) { o.holders = o.holders[1:] },
			[]violation{{leaked, "/mnt/disks/disk0", "holds tenant-pod#0"}, {leaked, "/mnt/disks/disk0", "dtrwxrwxrwx"}},
		},
		{
			"read-only spec that no claim names", func(o *observation) { o.holders = o.holders[:1] },
			[]violation{{leaked, "disk0-look.json", "no claim names it"}, {leaked, "look.json", "no claim names it"}},
		},
		{"spec with a mount path that no claim names", func(o *observation) {
			o.specs["own.json"] = specFile{devices: map[string]edits{mountSpec: {mounts: []mount{{hostPath: spare, containerPath: "/data"}}}}}
		}, []violation{{leaked, "own.json", "no claim names it"}}},
		{"name of a device that is not here", func(o *observation) {
			o.specs["gone.json"] = specFile{devices: map[string]edits{"fettle.dev/gpu=nvidia-gpu9": {}}}
		}, []violation{{leaked, "gone.json", "no claim names it"}}},
		{"spec of nothing that is here", func(o *observation) {
			o.specs["odd.json"] = specFile{devices: map[string]edits{"v/c=odd": {nodes: []node{{path: "/dev/odd", kind: "c", permissions: "rw"}}}}}
		}, []violation{{leaked, "odd.json", "no claim names it"}}},
		{
			"file that is no spec", func(o *observation) { o.specs[".tmp-1"] = specFile{fault: "is no spec"} },
			[]violation{{leaked, ".tmp-1", "is no spec"}},
		},
	}
}

// TestChecker feeds the checker with what it is there to find, and with nothing else.
func TestChecker(t *testing.T) {
	for name, c := range map[string]struct {
		check  func(observation) []violation
		states []badState
	}{"held": {checkHeld, bad()}, "settled": {checkSettled, unsettled()}} {
		t.Run(name, func(t *testing.T) {
			if got := c.check(sound()); len(got) > 0 {
				t.Errorf("a sound state: %v", got)
			}
			for _, state := range c.states {
				t.Run(state.name, func(t *testing.T) {
					o := sound()
					state.spoil(&o)
					same(t, state.want, c.check(o))
				})
			}
		})
	}
}

// same wants each violation once, whatever their order.
func same(t *testing.T, want, got []violation) {
	t.Helper()
	left := slices.Clone(got)
	for _, w := range want {
		i := slices.IndexFunc(left, func(g violation) bool {
			return g.class == w.class && g.subject == w.subject && strings.Contains(g.text, w.text)
		})
		if i < 0 {
			t.Errorf("not found: %s", w)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, v := range left {
		t.Errorf("found as well: %s", v)
	}
}

// TestCheckerKnowsWhatKubeletDoesNot: a claim of which kubelet was told nothing is neither missing nor too much.
func TestCheckerKnowsWhatKubeletDoesNot(t *testing.T) {
	o := sound()
	o.unsettle(0)
	o.unsettle(1)
	o.holders[0].grants[0].cdi, o.holders[1].grants[0].cdi, o.holders[1].grants[1].cdi = nil, nil, nil
	o.lend("/mnt/disks/disk0", func(d *directory) { d.names = []string{"tenant-pod#0", "anything"} })
	if got := slices.Concat(checkHeld(o), checkSettled(o)); len(got) > 0 {
		t.Errorf("violations %v", got)
	}
	delete(o.specs, "gpu0.json")
	if got := checkHeld(o); len(got) > 0 {
		t.Errorf("violations %v", got)
	}
}

func TestCheckEnd(t *testing.T) {
	before := world{
		specs: map[string]string{"a.json": "1"}, tree: map[string]string{"mnt": "drwxr-xr-x 0:0"}, devices: map[string]string{"n/gpu/a": "{}"},
	}
	same(t, nil, checkEnd(before, before))
	after := world{
		specs:   map[string]string{"a.json": "2", "b.json": "1"},
		tree:    map[string]string{"mnt": "drwxr-xr-x 0:0", "mnt/left": "-rw------- 0:0"},
		devices: map[string]string{},
	}
	same(t, []violation{
		{leaked, "a.json", "CDI spec was 1 and is 2"},
		{leaked, "b.json", "CDI spec is new"},
		{leaked, "mnt/left", "file of the host is new"},
		{leaked, "n/gpu/a", "published device is gone"},
	}, checkEnd(before, after))
}

// claimOf is a tenancy of the device n/gpu/NAME.
func claimOf(name, device string) *tenancy {
	t := &tenancy{claim: name, uid: name}
	t.name, t.grants = name+"#0", []grant{{request: "gpus", id: deviceID{"n/gpu", device}, hardware: hardware{key: device}}}
	return t
}

func TestLedgerSeesDoubleUse(t *testing.T) {
	l := newLedger()
	first, second, look := claimOf("first", "a"), claimOf("second", "a"), claimOf("look", "a")
	look.grants[0].look = true
	names := [][]string{{"v/c=a"}}
	for _, c := range []*tenancy{first, second, look} {
		l.begin(c)
	}
	same(t, nil, l.prepared(first, names, "a"))
	same(t, nil, l.prepared(look, names, "a"))
	same(t, []violation{{doublyUsed, "second#0", "n/gpu/a, which first#0 has"}}, l.prepared(second, names, "a"))
	l.releasing(second)
	same(t, nil, l.prepared(first, names, "a"))
	l.releasing(first)
	same(t, nil, l.prepared(second, names, "a"))
	l.rebooted(map[string]hardware{"a": {key: "a", node: "/dev/new"}})
	if l.alive(second) || second.grants[0].hardware.node != "/dev/new" || second.grants[0].cdi != nil {
		t.Errorf("after a reboot kubelet still holds %+v", second)
	}
	same(t, nil, l.prepared(first, names, "a"))
}

func TestLedgerSeesOtherAnswers(t *testing.T) {
	l := newLedger()
	c := claimOf("claim", "a")
	l.begin(c)
	same(t, nil, l.prepared(c, [][]string{{"v/c=a"}}, "answer"))
	same(t, nil, l.prepared(c, [][]string{{"v/c=a"}}, "answer"))
	same(t, []violation{{lost, "claim#0", "told answer, and then another"}}, l.prepared(c, [][]string{{"v/c=a"}}, "another"))
	specs := func(minor int64) specDir {
		return specDir{"a.json": {devices: map[string]edits{"v/c=a": {nodes: []node{{path: "/dev/a", minor: minor}}}}}}
	}
	same(t, nil, l.meant(c, specs(1)))
	same(t, nil, l.meant(c, specs(1)))
	same(t, []violation{{lost, "claim#0", "v/c=a meant"}}, l.meant(c, specs(2)))
	l.rebooted(nil)
	same(t, nil, l.prepared(c, [][]string{{"v/c=a"}}, "third"))
	same(t, nil, l.meant(c, specs(3)))
	l.end(c)
	if left := l.holders(); len(left) > 0 {
		t.Errorf("after the end it knows %v", left)
	}
}

// TestReadSpecs reads what runtimes read, what they cannot, and sees each change.
func TestReadSpecs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const spec = `{"cdiVersion":"0.5.0","kind":"v.d/c","devices":[{"name":"x","containerEdits":{
		"deviceNodes":[{"path":"/dev/x","type":"c","major":1,"minor":2,"permissions":"rw"}],
		"mounts":[{"hostPath":"/mnt/a","containerPath":"/a","options":["ro","rbind"]}]}}]}`
	write("good.json", spec)
	write("broken.json", spec[1:])
	write(".tmp-1", spec)
	r := specReader{dir: dir}
	read := func() specDir {
		t.Helper()
		specs, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		return specs
	}
	specs := read()
	want := edits{
		nodes:  []node{{path: "/dev/x", kind: "c", major: 1, minor: 2, permissions: "rw"}},
		mounts: []mount{{hostPath: "/mnt/a", containerPath: "/a", readOnly: true}},
	}
	got, err := specs.find("v.d/c=x")
	if err != nil || !cmp.Equal(want, got, cmp.AllowUnexported(edits{}, node{}, mount{})) {
		t.Errorf("edits %v (%v), want %v", got, err, want)
	}
	if specs["broken.json"].fault == "" || specs[".tmp-1"].fault == "" || specs["good.json"].fault != "" {
		t.Errorf("faults: %v", specs)
	}
	write("good.json", strings.ReplaceAll(spec, "/dev/x", "/dev/longer"))
	if got, err := read().find("v.d/c=x"); err != nil || got.nodes[0].path != "/dev/longer" {
		t.Errorf("after a change: %v, %v", got, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if specs := read(); len(specs) > 0 {
		t.Errorf("of a directory that is gone: %v", slices.Collect(maps.Keys(specs)))
	}
}

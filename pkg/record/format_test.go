// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	goldenVersion2 = "testdata/format-2.json"
	goldenVersion3 = "testdata/format-3.json"
	goldenVersion4 = "testdata/format-4.json"
	goldenVersion5 = "testdata/format-5.json"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	check.Must(t, err)
	return data
}

// TestFormat holds the bytes of format version 2, without room: a released version must read what an older one wrote. A change of this
// file is a new format version.
func TestFormat(t *testing.T) {
	got, chapters := story(t)
	check.Golden(t, goldenVersion2, got)
	want := read(t, goldenVersion2)
	for i, c := range chapters {
		r, err := decode(want[:c.end], fullUID)
		if err != nil {
			t.Errorf("after %d changes: %v", i, err)
			continue
		}
		same(t, fmt.Sprintf("after %d changes", i), c.state, r)
		if r.torn || r.valid != int64(c.end) {
			t.Errorf("after %d changes: torn %v, valid up to %d of %d", i, r.torn, r.valid, c.end)
		}
	}
}

// TestRoom: the zeros behind a record are room for all that can happen to it, and a file of an earlier release, which has none, gets
// longer.
func TestRoom(t *testing.T) {
	for _, steps := range []int{0, 1, 30, 200} {
		s, r := open(t), stepping("u1", steps)
		check.Must(t, s.Create(r))
		before := read(t, path(s, "u1"))
		if len(before)%4096 != 0 {
			t.Errorf("%d steps: the file has %d bytes, want whole blocks", steps, len(before))
		}
		same(t, "with room", r, load(t, s, "u1"))
		for i := range steps {
			advance(t, s, r, Change{Step: i, State: step.Done})
		}
		advance(t, s, r, Change{Phase: Prepared}, Change{Phase: Releasing})
		for i := range steps {
			advance(t, s, r, Change{Step: i, State: step.Undone})
		}
		if after := read(t, path(s, "u1")); len(after) != len(before) || !bytes.HasPrefix(after, said(before)) {
			t.Errorf("%d steps: the file has %d bytes after its life, and had %d", steps, len(after), len(before))
		}
		same(t, "after its life", r, load(t, s, "u1"))
	}
	s := open(t)
	check.Must(t, os.WriteFile(path(s, fullUID), read(t, goldenVersion2), 0o600))
	r := load(t, s, fullUID)
	advance(t, s, r, Change{State: step.Undone})
	same(t, "without room", r, load(t, s, fullUID))
}

// golden is the claim of the files that tests keep.
func golden() *Record {
	return &Record{
		Namespace: "team-a", Name: "train", UID: fullUID, BootID: "5a1c0b2e-1111-2222-3333-444455556666", Phase: Prepared,
		Devices: []Device{
			{
				Request: "gpu/large", Pool: pool, Name: "nvidia-0000-1b-00-0", CDIDevice: "fettle.dev/common=0123456789abcdef",
				Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"}}},
			},
			{
				Request: "disk", Pool: "node-1/host", Name: "localssd-ssd0", AdminAccess: true, CDIDevice: "fettle.dev/common=fedcba9876543210",
				Edits: container.Edits{Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/scratch/ssd0", ReadOnly: true}}},
			},
		},
		Steps: []Step{{
			Step:  step.Step{Kind: "host.scratch", Target: "/mnt/disks/ssd0", Params: []byte(`{"path":"/mnt/disks/ssd0"}`)},
			State: step.Done,
		}},
	}
}

// TestFormatVersion3 holds the bytes of a record with presets, which an older plugin must leave alone: it would forget their files.
func TestFormatVersion3(t *testing.T) {
	r := golden()
	r.Phase, r.Steps[0].State = Intended, step.Intended
	r.Devices[0].Added = &Addition{
		CDIDevice: "fettle.dev/common=x00112233445566778899aabbccddeeff",
		Edits: container.Edits{
			Mounts: []container.Mount{{
				HostPath: "/usr/lib64/libcuda.so.550.54", ContainerPath: "/usr/local/fettle/lib/libcuda.so.1", ReadOnly: true, NonRecursive: true,
			}},
			Env:   []string{"CUDA_CACHE_MAXSIZE=4294967296"},
			Hooks: []container.Hook{{Path: "/opt/fettle/fettle-hook", Args: []string{"fettle-hook", "ldconfig"}}},
		},
		OwnDevice: "fettle.dev/claim=x99112233445566778899aabbccddeeff",
		Own: container.Edits{Mounts: []container.Mount{{
			HostPath: "/var/lib/fettle/mounts/0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11/0011223344556677", ContainerPath: "/opt/team",
		}}},
		Given: []byte(`{"request":"gpu","presets":[{"name":"nvidia","generation":3}]}`),
	}
	got, err := encode(r)
	check.Must(t, err)
	check.Golden(t, goldenVersion3, got)
	want := read(t, goldenVersion3)
	back, err := decode(want, fullUID)
	check.Must(t, err)
	r.Devices[0].Added.Given = nil
	r.Decisions = map[string]json.RawMessage{
		"presets": json.RawMessage(`{"gpu":{"presets":[{"name":"nvidia","generation":3}],"request":"gpu"}}`),
	}
	same(t, "read", r, back)
	for _, version := range []string{"2", "4"} { // of what wrote presets without raising the reader's version, and of a later release
		odd := bytes.ReplaceAll(want, []byte(`"format":3`), []byte(`"format":`+version))
		if back, err = decode(odd, fullUID); err != nil {
			t.Errorf("format %s for a reader of 3: %v", version, err)
		} else {
			same(t, "read as "+version, r, back)
		}
	}
}

// TestFormatVersion4 holds the bytes of a record with decisions, which a reader of version 3 understands, too.
func TestFormatVersion4(t *testing.T) {
	r := golden()
	r.Phase, r.Steps[0].State = Intended, step.Intended
	r.Devices[0].Added = &Addition{
		CDIDevice: "fettle.dev/common=x00112233445566778899aabbccddeeff",
		Edits:     container.Edits{Env: []string{"CUDA_CACHE_MAXSIZE=4294967296"}},
	}
	r.Decisions = map[string]json.RawMessage{
		"kernelCaches": json.RawMessage(`{"gpu":[{"name":"llama"}]}`), "presets": json.RawMessage(`{"gpu":{"request":"gpu"}}`),
	}
	got, err := encode(r)
	check.Must(t, err)
	if given := `"given":{"kernelCaches":[{"name":"llama"}],"request":"gpu"}`; !bytes.Contains(got, []byte(given)) {
		t.Errorf("%s has not what a reader of version 3 looks for, %s", got, given)
	}
	check.Golden(t, goldenVersion4, got)
	want := read(t, goldenVersion4)
	back, err := decode(want, fullUID)
	check.Must(t, err)
	same(t, "read", r, back)
}

// TestFormatVersion5 holds the bytes of a record of a part of a card, which a reader of version 2 serves, too.
func TestFormatVersion5(t *testing.T) {
	r := golden()
	r.Phase, r.Steps[0].State = Intended, step.Intended
	r.Devices[0].Consumes = map[string]string{"memory": "10Gi", "slices": "1"}
	got, err := encode(r)
	check.Must(t, err)
	if !bytes.HasPrefix(got, []byte(`{"format":5,"reader":2,`)) {
		t.Errorf("begins with %.40s", got)
	}
	check.Golden(t, goldenVersion5, got)
	back, err := decode(read(t, goldenVersion5), fullUID)
	check.Must(t, err)
	same(t, "read", r, back)
}

// TestDecisionsOfFormat3: kernel caches were a member of the decision about presets, alone or beside it.
func TestDecisionsOfFormat3(t *testing.T) {
	for name, tc := range map[string]struct{ given, presets, caches string }{
		"both":   {`{"request":"gpu","kernelCaches":[1]}`, `{"gpu":{"request":"gpu"}}`, `{"gpu":[1]}`},
		"caches": {`{"kernelCaches":[1]}`, "", `{"gpu":[1]}`},
		"none":   {`{}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := golden()
			r.Devices[0].Added = &Addition{Given: []byte(tc.given)}
			check.Must(t, r.moveDecisions())
			if got := string(r.Decisions["presets"]); got != tc.presets {
				t.Errorf("presets %s, want %s", got, tc.presets)
			}
			if got := string(r.Decisions["kernelCaches"]); got != tc.caches {
				t.Errorf("caches %s, want %s", got, tc.caches)
			}
		})
	}
	r := golden()
	r.Devices[0].Added = &Addition{Given: []byte(`"text"`)}
	if err := r.moveDecisions(); err == nil {
		t.Error("a decision that is no object was taken")
	}
}

// TestReadsOlderPlugin reads files byte for byte as the plugin of commit 92a7570 wrote them, which may run beside this one, and goes on
// with them.
func TestReadsOlderPlugin(t *testing.T) {
	plain := golden()
	plain.UID, plain.Steps = "11111111-5f0e-4b43-8a47-6f1f0e9d7c11", nil
	plain.Devices[0].ShareID, plain.Devices[0].Effect = "5ca1ab1e-7777-8888-9999-000011112222", "00112233445566778899aabbccddeeff"
	plain.Devices[0].CoTenancy = "SameNamespace"
	releasing := golden()
	releasing.Phase = Releasing
	releasing.Steps = append(releasing.Steps, Step{
		Step:  step.Step{Kind: "cdi.write", Target: "fettle.dev-claim-" + fullUID + ".json", Params: []byte(`{"content":"{}\n"}`)},
		State: step.Undone,
	})
	releasing.Devices[0].Added = &Addition{
		CDIDevice: "fettle.dev/common=x00112233445566778899aabbccddeeff",
		Edits: container.Edits{
			Mounts: []container.Mount{{
				HostPath: "/usr/lib64/libcuda.so.550.54", ContainerPath: "/usr/local/fettle/lib/libcuda.so.1",
				ReadOnly: true, NonRecursive: true, HostToContainer: true,
			}},
			Env:   []string{"CUDA_CACHE_MAXSIZE=4294967296"},
			Hooks: []container.Hook{{Path: "/opt/fettle/fettle-hook", Args: []string{"fettle-hook", "ldconfig"}}},
		},
		OwnDevice: "fettle.dev/claim=x99112233445566778899aabbccddeeff",
		Own: container.Edits{Mounts: []container.Mount{{
			HostPath: "/var/lib/fettle/mounts/0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11/0011223344556677", ContainerPath: "/opt/team",
		}}},
	}
	releasing.Decisions = map[string]json.RawMessage{
		"presets":      json.RawMessage(`{"gpu":{"presets":[{"name":"nvidia","generation":3}],"request":"gpu"}}`),
		"kernelCaches": json.RawMessage(`{"gpu":[{"name":"llama"}]}`),
	}
	for name, tt := range map[string]struct {
		want *Record
		next Change
	}{
		"plain":     {plain, Change{Phase: Releasing}},
		"releasing": {releasing, Change{State: step.Undone}},
	} {
		t.Run(name, func(t *testing.T) {
			s, data := open(t), read(t, "testdata/92a7570-"+name+".record")
			check.Must(t, os.WriteFile(path(s, tt.want.UID), data, 0o600))
			r := load(t, s, tt.want.UID)
			same(t, "read", tt.want, r)
			advance(t, s, r, tt.next)
			if after := read(t, path(s, r.UID)); len(after) != len(data) || !bytes.HasPrefix(after, said(data)) {
				t.Errorf("%d bytes, was %d: expected the change in the room that the file has", len(after), len(data))
			}
			same(t, "read again", r, load(t, s, r.UID))
			if !r.Released() {
				t.Error("it is not released")
			}
		})
	}
}

// TestNewMembers: a record with a member that version 4 does not have is of a later one. A reader of version 4 takes it for damaged
// otherwise, as a plugin that is being updated does beside the next.
func TestNewMembers(t *testing.T) {
	for name, add := range map[string]func(*Record){
		"namespaceUID": func(r *Record) { r.NamespaceUID = "team-a-uid" },
		"place":        func(r *Record) { r.Devices[0].Place = container.Place{Path: "/mnt/disks/a"} },
		"consumes":     func(r *Record) { r.Devices[0].Consumes = map[string]string{"partitions": "1"} },
	} {
		for _, decisions := range []map[string]json.RawMessage{nil, {format3Presets: json.RawMessage("{}")}} {
			r := &Record{UID: "u1", Phase: Prepared, Devices: []Device{{Name: "a"}}, Decisions: decisions}
			format, reader := r.versions()
			if format > 4 || reader > 4 {
				t.Errorf("without %s: format %d for readers of %d", name, format, reader)
			}
			add(r)
			if newer, same := r.versions(); newer != FormatVersion || same != reader {
				t.Errorf("with %s: format %d for readers of %d, want %d and %d", name, newer, same, FormatVersion, reader)
			}
		}
	}
}

// members lists the members of a type's JSON, and of what is in them.
func members(of reflect.Type, seen map[string]bool) {
	if slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, of.Kind()) {
		members(of.Elem(), seen)
		return
	}
	if of.Kind() != reflect.Struct {
		return
	}
	for field := range of.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); field.IsExported() {
			seen[of.String()+" "+name] = true
			members(field.Type, seen)
		}
	}
}

// TestMembers: whoever adds a member to records has the version of those that have it raised, and adds it to TestNewMembers.
func TestMembers(t *testing.T) {
	seen := map[string]bool{}
	members(reflect.TypeFor[Record](), seen)
	check.Golden(t, "testdata/members.txt", strings.Join(slices.Sorted(maps.Keys(seen)), "\n")+"\n")
}

// TestUnreadable: other contents than a record's are an error that names the file, and never count as no record, since the claim's
// devices would be free.
func TestUnreadable(t *testing.T) {
	whole := string(read(t, goldenVersion2))
	head, _, _ := strings.Cut(whole, "\n")
	contents := map[string]string{
		"empty":                      "",
		"zeros":                      strings.Repeat("\x00", 4096),
		"json null":                  "null",
		"array":                      "[]",
		"a head only":                head + "\n",
		"no head":                    strings.TrimPrefix(whole, head+"\n"),
		"a change only":              string(framed(t, `{}`, `{"phase":"prepared"}`)),
		"two records":                whole + whole,
		"negative length":            `{"format":2,"reader":2,"length":-1,"crc32c":"00000000"}` + "\n\n",
		"huge length":                `{"format":2,"reader":2,"length":9223372036854775807,"crc32c":"00000000"}` + "\n\n",
		"another claim":              string(framed(t, `{"format":2,"reader":2}`, `{"uid":"u1","phase":"prepared"}`)),
		"no phase":                   string(framed(t, `{"format":2,"reader":2}`, `{"uid":"`+fullUID+`"}`)),
		"unknown member":             string(framed(t, `{"format":2,"reader":2}`, `{"uid":"`+fullUID+`","phase":"prepared","x":1}`)),
		"two values":                 string(framed(t, `{"format":2,"reader":2}`, `{"uid":"`+fullUID+`","phase":"prepared"}{}`)),
		"not JSON":                   string(framed(t, `{"format":2,"reader":2}`, `phase: prepared`)),
		"negative format":            string(framed(t, `{"format":-1,"reader":-1}`, `{"uid":"`+fullUID+`","phase":"prepared","x":1}`)),
		"unknown member in a change": whole + string(framed(t, `{}`, `{"step":0,"state":"undone","x":1}`)),
		"illegal change":             whole + string(framed(t, `{}`, `{"phase":"prepared"}`)),
		"change that says nothing":   whole + string(framed(t, `{}`, `{}`)),
		"change of a step not there": whole + string(framed(t, `{}`, `{"step":2,"state":"undone"}`)),
		"version 1":                  `{"version":1,"uid":"` + fullUID + `","devices":[],"steps":[]}`,
	}
	s := open(t)
	for name, content := range contents {
		check.Must(t, os.WriteFile(path(s, fullUID), []byte(content), 0o600))
		r, err := s.Load(fullUID)
		if err == nil {
			t.Errorf("%s: read as %+v", name, r)
			continue
		}
		if !errors.Is(err, ErrDamaged) || errors.Is(err, ErrForeign) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want ErrDamaged only", name, err)
		}
		if !strings.Contains(err.Error(), path(s, fullUID)) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: error %q does not name the file", name, err)
		}
	}
}

// framed is a head with length and checksum added, and the body.
func framed(t testing.TB, head, body string) []byte {
	t.Helper()
	members := map[string]any{}
	check.Must(t, json.Unmarshal([]byte(head), &members))
	members["length"] = len(body)
	members["crc32c"] = fmt.Sprintf("%08x", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
	line, err := json.Marshal(members)
	check.Must(t, err)
	return fmt.Appendf(nil, "%s\n%s\n", line, body)
}

// newer is a file as a later version may write it, which says that readers of version 2 may leave out what they do not know.
func newer(t testing.TB) ([]byte, *Record) {
	t.Helper()
	want := full()
	body, err := json.Marshal(want)
	check.Must(t, err)
	text := string(body)
	for _, member := range []string{`"namespace":`, `"request":`, `"kind":`, `"hostPath":`, `"path":"/dev`} {
		if !strings.Contains(text, member) {
			t.Fatalf("no %s in %s", member, text)
		}
		text = strings.ReplaceAll(text, member, `"later":{"phase":"releasing","uid":["u9"]},`+member)
	}
	data := framed(t, `{"format":6,"reader":2,"later":"x"}`, text)
	data = append(data, framed(t, `{"later":[1]}`, `{"step":1,"state":"done","later":{}}`)...)
	data = append(data, framed(t, `{}`, `{"later":"a change of something that was not there before"}`)...)
	data = append(data, framed(t, `{}`, `{"step":0,"state":"done"}`)...)
	want.Steps[0].State, want.Steps[1].State = step.Done, step.Done
	return data, want
}

// TestForward: a plugin that is one version back reads what the newer one wrote, and goes on with the same file.
func TestForward(t *testing.T) {
	s := open(t)
	data, want := newer(t)
	check.Must(t, os.WriteFile(path(s, fullUID), data, 0o600))
	r := load(t, s, fullUID)
	same(t, "read", want, r)
	advance(t, s, r, Change{Phase: Prepared}, Change{Phase: Releasing}, Change{Step: 1, State: step.Undone})
	if after := read(t, path(s, fullUID)); !bytes.HasPrefix(after, data) {
		t.Errorf("what the newer version wrote was changed: %s", after)
	}
	same(t, "read again", r, load(t, s, fullUID))
}

// TestForeign: what says that it needs a newer reader is not damaged, whatever it looks like otherwise. Nothing changes it, and the
// claim holds what its links say.
func TestForeign(t *testing.T) {
	data, _ := newer(t)
	foreign := bytes.Replace(data, []byte(`"reader":2`), []byte(`"reader":6`), 1)
	line, _, _ := bytes.Cut(foreign, []byte("\n"))
	tests := map[string][]byte{
		"known form":         foreign,
		"torn":               foreign[:len(foreign)-7],
		"torn at the front":  foreign[:len(line)+9],
		"other body":         append(bytes.Clone(line), "\n\x00\x01\x02\xff"...),
		"other checksum":     []byte(`{"format":6,"reader":6,"length":3,"sha256":"00"}` + "\nabc\n"),
		"other length":       []byte(`{"format":6,"reader":6,"length":"3","crc32c":7}` + "\nabc\n"),
		"no length":          []byte(`{"reader":6,"format":6}` + "\nabc\n"),
		"much newer version": []byte(`{"reader":300,"format":301}` + "\nabc\n"),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			put(t, s, holding(fullUID, "gpu-0"))
			check.Must(t, os.WriteFile(path(s, fullUID), data, 0o600))
			before := content(t, s)
			_, err := s.Load(fullUID)
			if !errors.Is(err, ErrForeign) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "upgrade") {
				t.Errorf("error %v, want ErrForeign that says what to do", err)
			}
			check.Must(t, s.SweepOwners())
			check.Must(t, s.SweepTemporary())
			if inUse, ok := errors.AsType[*InUseError](s.Acquire(holding("u2", "gpu-0"))); !ok || inUse.Owner.UID != fullUID {
				t.Errorf("its device: %v, want it to be held", inUse)
			}
			if diff := cmp.Diff(before, content(t, s)); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/check"
)

func TestParse(t *testing.T) {
	const text = `# a small machine

table gpu i addr
row 0 0000:17:00.0
row 1 0000:18:00.0
dir mnt/disks/ssd0
char dev/nvidia${gpu.i} 195:${gpu.i}
symlink sys/class/drm/card0 ../../devices/card0
bytes sys/garbage FF00
unreadable sys/fault
-- proc/list --
head
gpu ${gpu.i}
-- proc/gpus/${gpu.addr} --
Device Minor: 	 ${gpu.i}

-- sys/bus/* --
# a comment

vendor 0x10de
empty
nested/name two  words
${gpu.addr} -> ../devices/${gpu.i}
-- proc/nothing --
`
	got, err := sim.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	file := func(path, data string) sim.Entry { return sim.Entry{Path: path, Kind: sim.File, Data: []byte(data)} }
	want := &sim.Machine{Entries: []sim.Entry{
		{Path: "dev/nvidia0", Kind: sim.Char, Number: sim.Number{Major: 195}},
		{Path: "dev/nvidia1", Kind: sim.Char, Number: sim.Number{Major: 195, Minor: 1}},
		{Path: "mnt/disks/ssd0", Kind: sim.Dir},
		file("proc/gpus/0000:17:00.0", "Device Minor: \t 0\n\n"),
		file("proc/gpus/0000:18:00.0", "Device Minor: \t 1\n\n"),
		file("proc/list", "head\ngpu 0\ngpu 1\n"),
		file("proc/nothing", ""),
		{Path: "sys/bus/0000:17:00.0", Kind: sim.Symlink, Target: "../devices/0"},
		{Path: "sys/bus/0000:18:00.0", Kind: sim.Symlink, Target: "../devices/1"},
		file("sys/bus/empty", "\n"),
		file("sys/bus/nested/name", "two  words\n"),
		file("sys/bus/vendor", "0x10de\n"),
		{Path: "sys/class/drm/card0", Kind: sim.Symlink, Target: "../../devices/card0"},
		{Path: "sys/fault", Kind: sim.Unreadable},
		file("sys/garbage", "\xff\x00"),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown directive", "link a b\n", `line 1: directive "link": want bytes, char, dir, row, symlink, table or unreadable`},
		{"arguments", "\ndir a b\n", `line 2: directive "dir a b": want dir PATH`},
		{"device number", "char dev/x 1:-2\n", `device number "1:-2": want MAJOR:MINOR`},
		{"device number too big", "char dev/x 4096:0\n", "at most 4095:1048575"},
		{"hex", "bytes sys/x 0\n", "bytes of sys/x: want pairs of hexadecimal digits"},
		{"absolute path", "dir /sys\n", `line 1: path "/sys": want a relative path`},
		{"parent path", "-- ../sys --\n", `line 1: path "../sys": want a relative path`},
		{"path with space", "-- sys/a b --\n", `path "sys/a b": want printable characters without white space`},
		{"absolute target", "symlink sys/a /etc\n", `target "/etc" of sys/a: want a relative path`},
		{"escaping target", "symlink sys/a ../../etc\n", `leads out of the tree: want at most 1 ".."`},
		{"escaping in a block", "-- sys/b/* --\na -> ../../../etc\n", "line 2: target"},
		{"twice", "dir sys/a\n-- sys/a --\n", "line 2: path sys/a is given twice, first on line 1"},
		{"below a file", "-- sys/a --\n-- sys/a/b/c --\n", "line 2: path sys/a/b/c lies below the file sys/a of line 1"},
		{"below a link", "symlink sys/a b\ndir sys/a/c\n", "lies below the symlink sys/a"},
		{"row without table", "row 1\n", "directive row: want a table above it"},
		{"row too short", "table t a b\nrow 1\n", "line 2: row of table t has 1 values: want 2, one for each of a b"},
		{"table without columns", "table t\n", "want table NAME and one COLUMN or more"},
		{"table twice", "table t a\ntable t b\n", "line 2: table t is declared twice"},
		{"column twice", "table t a a\n", "column a is given twice"},
		{"unknown table", "dir sys/${t.a}\n", "there is no table t"},
		{"unknown column", "table t a\n-- sys/x --\n${t.b}\n", "line 3: ${t.b}: table t has no column b: want one of a"},
		{"two tables", "table t a\ntable u a\ndir sys/${t.a}${u.a}\n", "names the tables t and u: want one"},
		{
			"two tables in a member", "table t a\nrow 1\ntable u a\n-- ${t.a} --\n${u.a}\n",
			"line 4: member ${t.a}: its lines may name no table but t",
		},
		{"not a reference", "dir sys/${T.a}\n", "want ${TABLE.COLUMN} after every"},
		{"reference in a row", "table t a\nrow ${t.a}\n", "want plain values"},
		{"file called star", "dir sys/*\n", "a file cannot be called *"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := sim.Parse([]byte(test.text))
			check.WantErr(t, err, nil, test.want)
		})
	}
}

// Tables multiply: a small file must not fill the memory.
func TestParseIsBounded(t *testing.T) {
	rows := "table t a\n" + strings.Repeat("row x\n", 1<<15)
	for name, text := range map[string]string{
		"lines":      rows + "-- sys/x --\n" + strings.Repeat("${t.a}"+strings.Repeat("y", 1<<10)+"\n", 1<<10),
		"a line":     rows + "-- sys/x --\n${t.a}" + strings.Repeat("y", 1<<16) + "\n",
		"references": "table t a\nrow " + strings.Repeat("y", 1<<16) + "\n-- sys/x --\n" + strings.Repeat("${t.a}", 1<<15) + "\n",
		"a name":     "table t a\nrow " + strings.Repeat("y", 1<<16) + "\n-- sys/" + strings.Repeat("${t.a}", 1<<15) + " --\n",
		"errors":     rows + "-- sys/${t.a}/* --\n" + strings.Repeat("../x y\n", 1<<11),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := sim.Parse([]byte(text))
			runtime.ReadMemStats(&after)
			check.WantErr(t, err, nil, "use smaller tables")
			if took := after.TotalAlloc - before.TotalAlloc; took > 1<<30 {
				t.Errorf("%d MiB for a text of %d KiB", took>>20, len(text)>>10)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range machineFiles(f) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		if !strings.Contains(file, "200-devices") { // slow, and nothing that the others lack
			f.Add(data)
		}
	}
	f.Add([]byte("# c\ntable t a b\nrow 1 x\nrow 2 y\nchar dev/n${t.a} 195:${t.a}\ndir d/${t.b}\nunreadable u\n" +
		"-- proc/devices --\nCharacter devices:\n195 nvidia\n\nBlock devices:\n  8 sd\n-- s/${t.a}/* --\nv ${t.b}\nl -> ../2\n"))
	f.Add([]byte("bytes a 2d2d20780a\n-- b --\n-- c/* --\nd -> e\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := sim.Parse(data)
		if err != nil {
			return
		}
		again, err := sim.Parse(m.Format())
		if err != nil {
			t.Fatalf("the formatted machine does not parse: %v\n%s", err, m.Format())
		}
		if want, got := nonNil(m), nonNil(again); !reflect.DeepEqual(want, got) { // Diff alone is slow
			t.Errorf("formatted and parsed (-want +got):\n%s", cmp.Diff(want, got))
		}
		if _, err := m.Openable(); err != nil && !strings.Contains(err.Error(), "at most 63") &&
			!strings.Contains(err.Error(), "given twice") && !strings.Contains(err.Error(), "lies below") {
			t.Errorf("openable: %v", err)
		}
	})
}

// nonNil makes empty data comparable.
func nonNil(m *sim.Machine) []sim.Entry {
	out := []sim.Entry{}
	for _, e := range m.Entries {
		e.Data = append([]byte{}, e.Data...)
		out = append(out, e)
	}
	return out
}

func machineFiles(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("../../test/machines/*.txtar")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no machines found: %v", err)
	}
	return files
}

// parseMachine reads one of the machines by its name.
func parseMachine(tb testing.TB, name string) *sim.Machine {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("../../test/machines", name+".txtar"))
	if err != nil {
		tb.Fatal(err)
	}
	m, err := sim.Parse(data)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return m
}

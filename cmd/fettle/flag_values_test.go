// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/spf13/pflag"

	"github.com/fettle-dev/fettle/test/check"
)

// flagUse is a use of a verb that has flags with values, with the script that has its files, and how it ends.
type flagUse struct {
	script, args string
	status       int
}

var flagUses = []flagUse{
	{"push", "bitstream push $TOP/pkg/fpga/testdata/nlb0.rbf oci:out:v1 --sidecar a.yaml", 0},
	{"push", "bitstream verify $TOP/pkg/fpga/testdata/nlb0.gbs --policy p.yaml", 1},
	{"cache", "cache build triton -t oci:out:v1", 0},
	{"cache", "cache extract oci:none:v1 out --insecure-skip-verify", 1},
	{"cache", "cache verify oci:out:v1 --policy p.yaml --as registry.example/a", 1},
	{"convert", "convert -f pod.yaml --map example=d8424dc4a4a3c413f89e433683f9040b", 0},
	{"migparted", "convert -f config.yaml --kind mig-parted --config all-1g.10gb", 0},
	{"amdprofiles", "convert -f whole.json --kind amd-config-manager", 0},
	{"usage", "devices --slices objects.yaml", 1},
	{"explain", "explain claim train -f cluster.yaml -f pods.yaml", 0},
	{"explain", "explain pod train -f cluster.yaml -f pods.yaml", 0},
	{"explain", "plan -f cluster.yaml", 0},
	{"partition", "partition --slices objects.yaml", 0},
	{"preset", "preset explain --claim claim.yaml --pod pod.yaml --presets files.yaml --root host", 0},
	{"slices", "slices --machine $TOP/test/machines/2xaccel.txtar", 0},
	{"snapshot", "snapshot -f cluster.yaml -o -", 0},
	{"stack", "stack plan -f cluster.yaml", 0},
}

// refusedValues are values of flags that could match nothing or that are out of range. Where there are none, any word is right or is said
// to be wrong by what it names, as the names of files are.
var refusedValues = map[string][]string{
	"allowed-host-path": {"", "data", "/data/", "/data/..", "/root"}, "arch": {"", "9.0", "gfx", "sm_"},
	"as": {"a/b", "registry.example/A", "registry.example"}, "blank-for": {"", "1", "zz424dc4a4a3c413f89e433683f9040b"},
	"class": {"A", "a_b", "a/b", tooLong}, "compression": {"", "xz", "Gzip"}, "digest": {"sha256:", "sha256:12", tooLong[:64]},
	"driver-namespace": {"", "A", "a.b", tooLong}, "drivers-namespace": {"", "A", "a.b", tooLong},
	"feature-gates": {"", "DRADeviceTaints", "DRADeviceTaints=perhaps"}, "gpu": {"", "05:00.0", "0000:05:00", "0000:0A:00.0", "0"},
	"gpu-class": {"A", "a_b", "a/b", tooLong}, "gpu-memory": {"", "0", "-1", "80GB"},
	"image":     {"a/b", "oci:dir", "registry.example/A:v1", "[::1]:80/a:v1", "a--b.example/a:v1", "a_b.example/a:v1"},
	"interface": {"1", "zz424dc4a4a3c413f89e433683f9040b"}, "kernel-caches": {"", "files"}, "kind": {"", "Intel-fpga"},
	"kubernetes-version": {"abc", "1.20", "1.33", "2", "-1", "1.99999999999999999999"}, "map": {"", "a", "=b", "a=", "a=b_c/d/e"},
	"no-execute-key": {"/", "a b", "a/b/c", tooLong},
	"mount-path":     {"cache", "/cache/", "/a/../b", "/a\nb"}, "name": {"A", "a_b", "a/b", tooLong}, "namespace": {
		"A",
		"a.b", tooLong[:64],
	},
	"node": {"A", "a_b", "a/b"}, "output": {"", "xml", "JSON"}, "priority": {"", "high", "1000001", "-1000001", "4294967296", "1.5"},
	"node-selector": {"", "a", "=b", "a b=c", "a=b c", "a=b=c", "/a=b", "a=" + tooLong[:64]}, "producer-root": {
		"cache", "/cache/",
		"/a/../b",
	},
	"platform": {"linux", "linux/", "/amd64", "linux/arm64/v8", "Linux/amd64"}, "search-timeout": {"", "10", "0", "0s", "-1s", "1e9h"},
	"stack": {"A", "a_b", "a/b"}, "tag": {"a/b", "oci:dir@sha256:" + strings.Repeat("0", 64)}, "type": {"", "triton", "Flying"},
	"bitstream push name": {"a\nb", "\x00", tooLong}, "bitstream push platform": {"a\nb", "\x00", tooLong}, "snapshot output": {},
	"add": {}, "claim": {}, "claims": {}, "config": {}, "drain": {}, "filename": {}, "nvml": {}, "pod": {}, "policy": {}, "presets": {},
	"machine": {}, "node-template": {}, "nvml-report": {}, "registries": {}, "registry-config": {}, "remove": {}, "root": {},
	"sidecar": {}, "slices": {}, "trusted-root": {},
}

// tooLong is longer than any name.
var tooLong = strings.Repeat("a", 257)

// words are right for some flags. naming are flags whose values say what there is to be, elsewhere or in the files.
var (
	words = []string{
		"a", "a-b", "127.0.0.1:1/a:v1", "/data", "KEY=VALUE", "example.com/key=value", "7", "1.36", "5s", "DRADeviceTaints=true", "json",
		"x=gpu.fettle.dev", "gfx942", "..", "\x00", "%d", tooLong[:63],
	}
	naming = []string{"arch", "producer-root", "stack", "tag"}
)

// TestFlagValues: what a flag takes is refused by nothing that uses it, and what it could never mean is refused at the flag, by its name.
func TestFlagValues(t *testing.T) {
	top, err := filepath.Abs("../..")
	check.Must(t, err)
	for _, c := range commands() {
		uses := slices.DeleteFunc(slices.Clone(flagUses), func(use flagUse) bool { return !strings.HasPrefix(use.args, c.name()+" ") })
		verb, _, _ := findVerb(testTree(t), strings.Fields(c.name()))
		own, _ := splitFlags(verb)
		own.VisitAll(func(f *pflag.Flag) {
			values, known := refusedValues[c.name()+" "+f.Name]
			if !known {
				values, known = refusedValues[f.Name]
			}
			if f.NoOptDefVal == "" && (!known || len(uses) == 0 && len(values) > 0 && f.Name != "output") {
				t.Errorf("fettle %s --%s: say what it refuses and how it is used", c.name(), f.Name)
			}
			for _, use := range uses {
				if f.NoOptDefVal == "" && len(values) > 0 {
					t.Run(c.name()+" "+f.Name, func(t *testing.T) { use.with(t, top, f.Name, values) })
				}
			}
		})
	}
}

// with uses a verb with each value, and with each word.
func (u flagUse) with(t *testing.T, top, flag string, values []string) {
	archive, err := txtar.ParseFile(filepath.Join(top, "cmd/fettle/testdata/script", u.script+".txtar"))
	check.Must(t, err)
	t.Chdir(t.TempDir())
	check.Must(t, txtar.Write(archive, "."))
	args := strings.Fields(strings.ReplaceAll(u.args, "$TOP", top))
	for i, value := range slices.Concat([]string{""}, values, words) {
		var out, errs bytes.Buffer
		if i > 0 {
			args = append(args, "--"+flag+"="+value)
		}
		status := runAs(t.Context(), "fettle", args, &out, &errs)
		args = slices.DeleteFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--"+flag+"=") })
		refused := status == 2 && (strings.Contains(errs.String(), "--"+flag) || strings.Contains(errs.String(), flag+" format"))
		asBefore := status == u.status || i > 0 && slices.Contains(naming, flag)
		if !refused && (i > 0 && i <= len(values) || !asBefore) {
			t.Errorf("%q: status %d: %s", value, status, errs.String())
		}
	}
}

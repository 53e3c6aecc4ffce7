// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/seed"
)

// hostTree is a host's tree, from each file's path to its content.
func hostTree(t *testing.T, files map[string][]byte) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		check.Must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		check.Must(t, os.WriteFile(at, content, 0o755))
	}
	return root
}

func finderIn(root string) *Finder {
	return &Finder{Root: root, Hook: func() (string, error) { return "/fettle-hook", nil }}
}

func library(soname string) []byte { return elffile.File{Soname: soname}.Bytes() }

// linksOf returns the arguments of the links that must be made.
func linksOf(found Found) (links []string) {
	for _, h := range found.Shared.Hooks {
		for i, arg := range h.Args {
			if arg == "--link" {
				links = append(links, h.Args[i+1])
			}
		}
	}
	return links
}

func filesOf(from preset.Origin, root string, names ...string) preset.Files {
	return preset.Files{PresetFiles: v1alpha1.PresetFiles{Names: names, Root: root}, From: from}
}

// TestStrongerLibraryIsLoaded: of two presets with a library of one soname the stronger one's version counts, whichever version is newer.
func TestStrongerLibraryIsLoaded(t *testing.T) {
	root := hostTree(t, map[string][]byte{
		"opt/v1/usr/lib64/libfoo.so.1.1": library("libfoo.so.1"), "opt/v2/usr/lib64/libfoo.so.1.2": library("libfoo.so.1"),
		"opt/v3/usr/lib64/libfoo.so.1": library("libfoo.so.1"), "opt/same/usr/lib64/libfoo.so.1.1": library("libfoo.so.1"),
	})
	for _, order := range [][]string{{"v1", "v2"}, {"v2", "v1"}, {"v1", "v3"}, {"v3", "v1"}, {"v1", "same"}, {"v3", "v2", "v1"}} {
		r := preset.Request{Claim: "c", Request: "main"}
		for _, name := range order {
			from := preset.Origin{Name: name}
			r.Presets = append(r.Presets, from)
			r.Libraries = append(r.Libraries, filesOf(from, "/opt/"+name, "libfoo.so.*"))
		}
		found, err := finderIn(root).Find("u1", r)
		check.Must(t, err)
		winner := "/opt/" + order[len(order)-1] + "/"
		if len(found.Shared.Mounts) != 1 || !strings.HasPrefix(found.Shared.Mounts[0].HostPath, winner) {
			t.Fatalf("%v: mounts %+v, want one of %s", order, found.Shared.Mounts, winner)
		}
		if giver := found.Givers[found.Shared.Mounts[0].ContainerPath]; giver != "ClusterDevicePreset "+order[len(order)-1] {
			t.Errorf("%v: the mount is from %q", order, giver)
		}
		if len(found.Overrides) != len(order)-1 || !strings.Contains(strings.Join(found.Overrides, "\n"), " of ClusterDevicePreset "+
			order[len(order)-1]+" overrides that of ClusterDevicePreset "+order[0]) {
			t.Errorf("%v: overrides %q", order, found.Overrides)
		}
	}
}

// TestEveryPathHasOneOwner: with random presets whose libraries and links meet at few paths, each path of the container is made once, and
// by the strongest preset that has something for it.
func TestEveryPathHasOneOwner(t *testing.T) {
	random := seed.New(t)
	files := map[string][]byte{}
	for p := range 4 {
		for range 3 {
			name := fmt.Sprintf("lib%c.so.%d", 'a'+random.IntN(2), random.IntN(2))
			soname := name
			if random.IntN(3) > 0 {
				name += fmt.Sprintf(".%d", random.IntN(3))
			}
			files[fmt.Sprintf("opt/p%d/usr/lib64/%s", p, name)] = library(soname)
		}
	}
	root := hostTree(t, files)
	for range 300 {
		r := preset.Request{Claim: "c", Request: "main"}
		strongest := map[string]string{} // the target of each link that a preset names
		for _, p := range random.Perm(4)[:2+random.IntN(3)] {
			from := preset.Origin{Name: fmt.Sprint("p", p)}
			r.Presets = append(r.Presets, from)
			r.Libraries = append(r.Libraries, filesOf(from, "/opt/"+from.Name, "lib*.so.*"))
			if random.IntN(2) == 0 {
				at := "/opt/link" + fmt.Sprint(random.IntN(2))
				link := v1alpha1.PresetLink{Path: at, Target: "/of/" + from.Name}
				strongest[at] = link.Target
				r.Hooks = append(r.Hooks, preset.Hook{
					PresetHook: v1alpha1.PresetHook{Name: v1alpha1.HookLinks, Links: []v1alpha1.PresetLink{link}}, From: from,
				})
			}
		}
		found, err := finderIn(root).Find("u1", r)
		check.Must(t, err)
		at := map[string]string{}
		has := func(name, content string) {
			if other, twice := at[name]; twice {
				t.Errorf("%s is %s and %s", name, other, content)
			}
			at[name] = content
		}
		for _, m := range found.Shared.Mounts {
			has(m.ContainerPath, m.HostPath)
		}
		for _, link := range linksOf(found) {
			target, name, _ := strings.Cut(link, "::")
			has(name, target)
		}
		for name, target := range strongest {
			if at[name] != target {
				t.Errorf("%v: link %s leads to %s, want %s", r.Presets, name, at[name], target)
			}
		}
		checkSonames(t, r.Presets, files, at)
	}
}

// checkSonames fails if a soname leads to a library of another preset than the strongest that has one.
func checkSonames(t *testing.T, presets []preset.Origin, files map[string][]byte, at map[string]string) {
	t.Helper()
	for _, soname := range []string{"liba.so.0", "liba.so.1", "libb.so.0", "libb.so.1"} {
		want := ""
		for _, p := range presets {
			dir := "opt/" + p.Name + "/usr/lib64/"
			for name := range files {
				if strings.HasPrefix(name, dir+soname) {
					want = "/" + dir
				}
			}
		}
		got := at[libraryDir+"/"+soname]
		if got != "" && !path.IsAbs(got) {
			got = at[libraryDir+"/"+got]
		}
		if (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%v: %s leads to %q, want one of %q; all: %v", presets, soname, got, want, at)
		}
	}
}

// TestWeakerLinkYields: a link of a stronger preset's library stays, and a link in a mount is refused, as the hook could not make it.
func TestWeakerLinkYields(t *testing.T) {
	root := hostTree(t, map[string][]byte{"opt/v2/usr/lib64/libfoo.so.1.2": library("libfoo.so.1"), "opt/site/x": nil})
	weak, strong := preset.Origin{Name: "weak"}, preset.Origin{Name: "strong"}
	linked := func(from preset.Origin, at string) []preset.Hook {
		return []preset.Hook{{PresetHook: v1alpha1.PresetHook{
			Name: v1alpha1.HookLinks, Links: []v1alpha1.PresetLink{{Path: at, Target: "other"}},
		}, From: from}}
	}
	r := preset.Request{
		Presets: []preset.Origin{weak, strong}, Hooks: linked(weak, libraryDir+"/libfoo.so.1"),
		Libraries: []preset.Files{filesOf(strong, "/opt/v2", "libfoo.so.*")},
	}
	for _, c := range []struct{ strongest, want string }{{"strong", "libfoo.so.1.2"}, {"weak", "other"}} {
		found, err := finderIn(root).Find("u1", r)
		check.Must(t, err)
		if diff := cmp.Diff([]string{c.want + "::" + libraryDir + "/libfoo.so.1"}, linksOf(found)); diff != "" {
			t.Errorf("%s is the strongest (-want +got):\n%s", c.strongest, diff)
		}
		if len(found.Overrides) != 1 {
			t.Errorf("overrides %q", found.Overrides)
		}
		slices.Reverse(r.Presets)
	}

	for _, at := range []string{"/opt/site", "/opt/site/current"} {
		_, err := finderIn(root).Find("u1", preset.Request{
			Mounts: []preset.Mount{{PresetMount: v1alpha1.PresetMount{HostPath: "/opt/site", ContainerPath: "/opt/site"}, From: strong}},
			Hooks:  linked(weak, at),
		})
		check.WantErr(t, err, nil, "ClusterDevicePreset weak", "mounts /opt/site", "choose another path")
	}
}

// TestDeepestMountHasTheTools: of mounts in each other the deepest has the programs, in whichever order they are.
func TestDeepestMountHasTheTools(t *testing.T) {
	root := hostTree(t, map[string][]byte{"opt/site/tools/bin/old": nil, "srv/tools/bin/new": nil, "srv/bin/newest": nil})
	from := preset.Origin{Name: "a"}
	mounts := []preset.Mount{}
	for containerPath, hostPath := range map[string]string{
		"/opt/site": "/opt/site", "/opt/site/tools": "/srv/tools", "/opt/site/tools/bin": "/srv/bin", "/opt/site/tools/b": "/opt",
	} {
		mounts = append(mounts, preset.Mount{PresetMount: v1alpha1.PresetMount{HostPath: hostPath, ContainerPath: containerPath}, From: from})
	}
	tools := []preset.Directory{{Path: "/opt/site/tools/bin", From: from}}
	random := seed.New(t)
	for range 20 {
		random.Shuffle(len(mounts), func(i, j int) { mounts[i], mounts[j] = mounts[j], mounts[i] })
		found, err := finderIn(root).Find("u1", preset.Request{Mounts: mounts, ToolDirs: tools})
		check.Must(t, err)
		want := []string{"fettle-hook", "links", "--yielding-link", "/opt/site/tools/bin/newest::/usr/bin/newest"}
		if diff := cmp.Diff(want, found.Shared.Hooks[0].Args); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	}
}

// TestToolsTellNothingOfTheHost: a tenant may link a name in its directory to anything on the host. Whether that is there is not told, and
// a link within the directory is a program.
func TestToolsTellNothingOfTheHost(t *testing.T) {
	root := hostTree(t, map[string][]byte{"srv/team/tools/real": nil, "root/secret": nil, "srv/teams/other": nil})
	bin := filepath.Join(root, "srv/team/bin")
	check.Must(t, os.Mkdir(bin, 0o755))
	for name, target := range map[string]string{
		"inside": "../tools/real", "by-name": "/root/secret", "up": "../../../root/secret", "beside": "../../teams/other", "none": "/root/none",
	} {
		check.Must(t, os.Symlink(target, filepath.Join(bin, name)))
	}
	from := preset.Origin{Namespace: "team", Name: "a"}
	finder := finderIn(root)
	finder.Allowed = []preset.AllowedHostPath{{Path: "/srv/team", Writable: true}}
	found, err := finder.Find("u1", preset.Request{
		Mounts:   []preset.Mount{{PresetMount: v1alpha1.PresetMount{HostPath: "/srv/team", ContainerPath: "/opt/team"}, From: from}},
		ToolDirs: []preset.Directory{{Path: "/opt/team/bin", From: from}},
	})
	check.Must(t, err)
	want := []string{"fettle-hook", "links", "--yielding-link", "/opt/team/bin/inside::/usr/bin/inside"}
	if diff := cmp.Diff(want, found.Shared.Hooks[0].Args); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestMountsOfOneClaim: the kernel has a limit of mounts for the whole node, of which a tenant's files get only so many.
func TestMountsOfOneClaim(t *testing.T) {
	files := map[string][]byte{}
	for i := range maxOwnMounts + 1 {
		name := fmt.Sprintf("libx%d.so", i)
		files["srv/team/usr/lib/"+name] = library(name)
	}
	finder := finderIn(hostTree(t, files))
	finder.Allowed, finder.Mounts = []preset.AllowedHostPath{{Path: "/srv/team"}}, hostmount.In("/mounts", finder.Root)
	r := preset.Request{Libraries: []preset.Files{filesOf(preset.Origin{Namespace: "team", Name: "a"}, "/srv/team", "libx*")}}
	found, err := finder.Find("u1", r)
	check.WantErr(t, err, nil, "DevicePreset team/a", "512 mounts", "mount their directory")
	if len(found.Steps) != maxOwnMounts {
		t.Errorf("%d mounts", len(found.Steps))
	}
	check.Must(t, os.Remove(filepath.Join(finder.Root, "srv/team/usr/lib/libx0.so")))
	_, err = finder.Find("u1", r)
	check.Must(t, err)
}

// TestSearchesOfOneClaim: a tenant's presets have a node search only so often for one request.
func TestSearchesOfOneClaim(t *testing.T) {
	files := map[string][]byte{"srv/team/usr/lib/libx.so": library("libx.so"), "srv/team/usr/bin/x": []byte("#!/bin/sh")}
	finder := finderIn(hostTree(t, files))
	finder.Allowed = []preset.AllowedHostPath{{Path: "/srv/team"}}
	var r preset.Request
	for range maxSearches / 2 {
		from := preset.Origin{Namespace: "team", Name: "a"}
		r.Libraries, r.Tools = append(r.Libraries, filesOf(from, "/srv/team", "libx.so")), append(r.Tools, filesOf(from, "/srv/team", "x"))
	}
	_, err := finder.Find("u1", r)
	check.Must(t, err)
	r.Tools = append(r.Tools, r.Tools[0])
	_, err = finder.Find("u1", r)
	check.WantErr(t, err, nil, "DevicePreset team/a", "64 lists")
	r.Tools = r.Tools[1:]
	r.Mounts = []preset.Mount{{PresetMount: v1alpha1.PresetMount{HostPath: "/srv/team", ContainerPath: "/opt/team"}, From: r.Tools[0].From}}
	r.ToolDirs = []preset.Directory{{Path: "/opt/team/usr/bin", From: r.Tools[0].From}}
	_, err = finder.Find("u1", r)
	check.WantErr(t, err, nil, "DevicePreset team/a", "directories in PATH")
}

// TestValidIsMade: hooks and variables that a valid preset has, the node can make, and with random texts, too. What is valid early must not
// fail every claim later.
func TestValidIsMade(t *testing.T) {
	random := seed.New(t)
	root := hostTree(t, map[string][]byte{"opt/site/x": nil})
	text := func(from string) string {
		all, out := []rune(from), []rune{}
		for range 1 + random.IntN(6) {
			out = append(out, all[random.IntN(len(all))])
		}
		return string(out)
	}
	from, valid := preset.Origin{Name: "a"}, 0
	for range 20_000 {
		value, dirs := text("ab\n\t\r\x1b\u00e9\x00"), []string{"/opt/" + text("ab/. =:#"), "/" + text("ab-_,$*")}
		link := v1alpha1.PresetLink{Path: "/opt/" + text("ab/. :"), Target: text("ab/.: ")}
		hooks := []v1alpha1.PresetHook{
			{Name: v1alpha1.HookLdconfig, Directories: dirs[:1]}, {Name: v1alpha1.HookLinks, Links: []v1alpha1.PresetLink{link}},
		}
		mounts := []v1alpha1.PresetMount{{HostPath: "/opt/site", ContainerPath: "/opt/a"}}
		spec := v1alpha1.ClusterDevicePresetSpec{PresetRules: v1alpha1.PresetRules{
			DeviceSelector: &v1alpha1.PresetDeviceSelector{CEL: "true"}, Hooks: hooks[random.IntN(2):][:1], Mounts: mounts,
			Env: []v1alpha1.PresetEnv{
				{Name: "A", Value: &value}, {Name: v1alpha1.EnvLibraryPath, Mode: v1alpha1.EnvAppend, Value: &dirs[1]},
			},
		}}
		if len(spec.Validate(field.NewPath("spec"))) > 0 {
			continue
		}
		valid++
		_, err := finderIn(root).Find("u1", preset.Request{
			Env:    []preset.Variable{{Name: "A", Value: value, From: []preset.Origin{from}}},
			Mounts: []preset.Mount{{PresetMount: mounts[0], From: from}}, LibraryDirs: []preset.Directory{{Path: dirs[1], From: from}},
			Hooks: []preset.Hook{{PresetHook: spec.Hooks[0], From: from}},
		})
		if err != nil {
			t.Fatalf("%+v is valid, and a node says %v", spec.PresetRules, err)
		}
	}
	if valid < 100 {
		t.Errorf("only %d were valid: the test says little", valid)
	}
}

// TestMoreLinksThanTheHookMakes: presets with more links than fettle-hook takes are refused when the claim is prepared. The container would
// not start.
func TestMoreLinksThanTheHookMakes(t *testing.T) {
	var links []v1alpha1.PresetLink
	for i := range 4097 {
		links = append(links, v1alpha1.PresetLink{Path: fmt.Sprintf("/opt/%d", i), Target: "x"})
	}
	h := preset.Hook{PresetHook: v1alpha1.PresetHook{Name: v1alpha1.HookLinks, Links: links}, From: preset.Origin{Name: "needs"}}
	_, err := finderIn(t.TempDir()).Find("u1", preset.Request{Hooks: []preset.Hook{h}})
	check.WantErr(t, err, nil, "4097 links, want at most 4096", "by a *")
	h.Links = links[1:]
	_, err = finderIn(t.TempDir()).Find("u1", preset.Request{Hooks: []preset.Hook{h}})
	check.Must(t, err)
}

// TestFindRefuses: what an earlier version took, and recorded for a claim, is still refused, by the preset and the value.
func TestFindRefuses(t *testing.T) {
	from := preset.Origin{Name: "needs"}
	hook := func(h v1alpha1.PresetHook) preset.Request {
		return preset.Request{Hooks: []preset.Hook{{PresetHook: h, From: from}}}
	}
	linkTo := func(target string) preset.Request {
		return hook(v1alpha1.PresetHook{Name: v1alpha1.HookLinks, Links: []v1alpha1.PresetLink{{Path: "/opt/x", Target: target}}})
	}
	for name, c := range map[string]struct {
		request preset.Request
		says    []string
	}{
		"library directory": {
			preset.Request{LibraryDirs: []preset.Directory{{Path: "/opt/a b", From: from}}},
			[]string{"LD_LIBRARY_PATH", "/opt/a b", "mean something to a loader"},
		},
		"directory of a hook": {
			hook(v1alpha1.PresetHook{Name: v1alpha1.HookLdconfig, Directories: []string{"/opt/a=b"}}), []string{"hook ldconfig", "/opt/a=b"},
		},
		"unclean link":  {linkTo("a/../b"), []string{"hook links", "a/../b", "must be clean"}},
		"two links":     {linkTo("x::/usr/lib/y"), []string{"hook links", "x::/usr/lib/y", "must have no ::"}},
		"end of a link": {linkTo("x:"), []string{"hook links", "must have no ::"}},
		"variable": {
			preset.Request{Env: []preset.Variable{{Name: "WINDOWS", Value: "line\r\n", From: []preset.Origin{from}}}},
			[]string{"variable WINDOWS", "printable"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := finderIn(t.TempDir()).Find("u1", c.request)
			check.WantErr(t, err, nil, append(c.says, "ClusterDevicePreset needs")...)
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// class is what a violation does to whom.
type class string

const (
	// lost: a claim that kubelet holds prepared lacks something, or cannot be prepared.
	lost class = "lost"
	// leaked: something stays that no claim has, or a device that nobody holds cannot be had.
	leaked class = "leaked"
	// doublyUsed: what one claim has is in another's reach.
	doublyUsed class = "doubly used"
	// heldUp: a device that does not answer keeps claims on others from being served.
	heldUp class = "held up"
)

// violation is one thing that must not be.
type violation struct {
	class class
	// subject is a claim, a device, a file: what to look for in the trace.
	subject, text string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s: %s", v.class, v.subject, v.text) }

// deviceID names a device as the API does.
type deviceID struct{ pool, name string }

func (d deviceID) String() string { return d.pool + "/" + d.name }

// grant is one device of a claim's allocation.
type grant struct {
	request string
	id      deviceID
	// hardware is the device that the machine has for this name at this boot.
	hardware hardware
	// look is adminAccess.
	look bool
	// mountPath is where the claim wants the directory; empty: where the configuration says.
	mountPath string
	// cdi are the names that kubelet was given for it.
	cdi []string
}

// holder is a claim as kubelet and its tenant know it.
type holder struct {
	// name is the claim's and the tenancy's: a claim that is used by one pod after another has several.
	name string
	// live: kubelet was told that it is prepared, and has not asked for the contrary since. Otherwise kubelet does not know: it has
	// asked for one or the other and not been told of success.
	live   bool
	grants []grant
	// files are what the tenant made in each directory that it was lent, sorted.
	files []string
}

// observation is everything that can be seen from outside at one moment in which kubelet asks for nothing.
type observation struct {
	holders []holder
	specs   specDir
	host    hostTree
	// hardware is the machine's at this boot.
	hardware []hardware
	// vacant is how directories look that are not lent.
	vacant map[string]directory
}

// lentMode is the mode of a directory that a claim has.
const lentMode = fs.ModeDir | fs.ModeSticky | 0o777

// checkHeld finds what must not be at any moment.
func checkHeld(o observation) []violation {
	var found []violation
	used := map[string]string{}
	for _, h := range o.holders {
		if !h.live {
			continue
		}
		found = append(found, checkHolder(o, h)...)
		for _, resource := range resources(o, h) {
			if other, ok := used[resource]; ok {
				found = append(found, violation{doublyUsed, h.name, fmt.Sprintf("has %s, and so does %s", resource, other)})
			}
			used[resource] = h.name
		}
	}
	for name, file := range o.specs {
		if file.fault != "" && strings.HasSuffix(name, ".json") {
			found = append(found, violation{lost, name, "no runtime can use this spec: " + file.fault})
		}
	}
	return found
}

// resources are the devices' own nodes and directories that a claim's containers can write to, by what the specs say.
func resources(o observation, h holder) []string {
	own := map[string]bool{}
	for _, hw := range o.hardware {
		own[hw.node+hw.dir] = true
	}
	found := map[string]bool{}
	for _, g := range h.grants {
		if g.look {
			continue // may look at what others have; that it cannot write is checked with the grant
		}
		for _, id := range g.cdi {
			e, err := o.specs.find(id)
			if err != nil {
				continue // said already
			}
			for _, n := range e.nodes {
				found[n.path] = own[n.path]
			}
			for _, m := range e.mounts {
				found[m.hostPath] = own[m.hostPath]
			}
		}
	}
	maps.DeleteFunc(found, func(_ string, exclusive bool) bool { return !exclusive })
	return slices.Sorted(maps.Keys(found))
}

// checkHolder finds what one live claim lacks, and what it has beyond its allocation.
func checkHolder(o observation, h holder) []violation {
	var found []violation
	for _, g := range h.grants {
		found = append(found, checkGrant(o, h, g)...)
		if g.hardware.dir != "" && !g.look {
			found = append(found, checkLent(o, h, g.hardware.dir)...)
		}
	}
	return found
}

// checkGrant wants the names of a device to resolve to that device, all of it and no other.
func checkGrant(o observation, h holder, g grant) []violation {
	say := func(c class, format string, args ...any) violation {
		return violation{c, h.name, fmt.Sprintf("device %s: ", g.id) + fmt.Sprintf(format, args...)}
	}
	if len(g.cdi) == 0 {
		return []violation{say(lost, "kubelet was given no CDI device")}
	}
	var found []violation
	var all edits
	for _, id := range g.cdi {
		e, err := o.specs.find(id)
		if err != nil {
			found = append(found, say(lost, "%v", err))
			continue
		}
		all.nodes, all.mounts = append(all.nodes, e.nodes...), append(all.mounts, e.mounts...)
	}
	if len(found) > 0 {
		return found
	}
	found = slices.Concat(checkNodes(o, g, all, say), checkMounts(o, g, all, say))
	has := slices.ContainsFunc(all.nodes, func(n node) bool { return n.path == g.hardware.node }) ||
		slices.ContainsFunc(all.mounts, func(m mount) bool {
			return m.hostPath == g.hardware.dir && (g.mountPath == "" || m.containerPath == g.mountPath)
		})
	if !has {
		found = append(found, say(lost, "its own %s%s is not in the edits: %s", g.hardware.node, g.hardware.dir, all))
	}
	for _, other := range o.hardware {
		if other.key != g.hardware.key && all.reaches(other) {
			found = append(found, say(doublyUsed, "the edits also reach %s, at %s%s", other.key, other.node, other.dir))
		}
	}
	return found
}

// checkNodes wants the nodes of a spec to be the host's.
func checkNodes(o observation, g grant, e edits, say sayer) []violation {
	var found []violation
	for _, n := range e.nodes {
		on, ok := o.host.nodes[n.path]
		switch {
		case !ok:
			found = append(found, say(lost, "the spec names node %s, which is not on the host", n.path))
		case on != hostNode{n.kind, n.major, n.minor}:
			found = append(found, say(lost, "the spec says %s %d:%d of %s, the host has %v", n.kind, n.major, n.minor, n.path, on))
		}
		if g.look && strings.ContainsAny(n.permissions, "wm") {
			found = append(found, say(doublyUsed, "adminAccess may do %q to %s", n.permissions, n.path))
		}
	}
	return found
}

// checkMounts wants the directories of a spec to be the host's.
func checkMounts(o observation, g grant, e edits, say sayer) []violation {
	var found []violation
	for _, m := range e.mounts {
		if _, ok := o.host.dirs[m.hostPath]; !ok {
			found = append(found, say(lost, "the spec mounts %s, which is not on the host", m.hostPath))
		}
		if g.look && !m.readOnly {
			found = append(found, say(doublyUsed, "adminAccess may write to %s", m.hostPath))
		}
	}
	return found
}

// sayer makes a violation about one device of one claim.
type sayer func(c class, format string, args ...any) violation

// reaches says whether the edits give a container a device's own node or directory.
func (e edits) reaches(hw hardware) bool {
	return slices.ContainsFunc(e.nodes, func(n node) bool {
		return hw.node != "" && (n.path == hw.node || n.kind == "c" && n.major == hw.major && n.minor == hw.minor)
	}) || slices.ContainsFunc(e.mounts, func(m mount) bool { return hw.dir != "" && m.hostPath == hw.dir })
}

// checkLent wants a directory to be open to its tenant, with the tenant's files and no others.
func checkLent(o observation, h holder, dir string) []violation {
	d, ok := o.host.dirs[dir]
	if !ok {
		return []violation{{lost, h.name, dir + " is not there"}}
	}
	var found []violation
	if d.mode != lentMode {
		found = append(found, violation{lost, h.name, fmt.Sprintf("%s has mode %s, want %s", dir, d.mode, lentMode)})
	}
	for _, name := range h.files {
		if !slices.Contains(d.names, name) {
			found = append(found, violation{lost, h.name, fmt.Sprintf("its file %s in %s is gone", name, dir)})
		}
	}
	for _, name := range d.names {
		if !slices.Contains(h.files, name) {
			found = append(found, violation{doublyUsed, h.name, fmt.Sprintf("%s has %s, which is not its own", dir, name)})
		}
	}
	return found
}

// checkSettled finds what must not stay: the plugin may take a moment for it.
func checkSettled(o observation) []violation {
	var found []violation
	taken, unsure := map[string]bool{}, map[string]bool{}
	named := map[string]bool{}
	for _, h := range o.holders {
		for _, g := range h.grants {
			taken[g.hardware.dir] = taken[g.hardware.dir] || !g.look
			unsure[g.hardware.key] = unsure[g.hardware.key] || !h.live
			for _, id := range g.cdi {
				named[id] = true
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(o.vacant)) {
		if !taken[dir] {
			found = append(found, checkVacant(dir, o.vacant[dir], o.host.dirs[dir])...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.specs)) {
		if fault := orphan(o, o.specs[name], named, unsure); fault != "" {
			found = append(found, violation{leaked, name, fault})
		}
	}
	return found
}

// checkVacant wants a directory that nobody has to be as it was before anyone had it.
func checkVacant(dir string, want, got directory) []violation {
	var found []violation
	if len(got.names) > 0 {
		found = append(found, violation{leaked, dir, fmt.Sprintf("nobody has it, and it holds %s", strings.Join(got.names, ", "))})
	}
	if got.mode != want.mode || got.uid != want.uid || got.gid != want.gid {
		found = append(found, violation{leaked, dir, fmt.Sprintf("nobody has it, and it is %s %d:%d, want %s %d:%d",
			got.mode, got.uid, got.gid, want.mode, want.uid, want.gid)})
	}
	return found
}

// orphan says why a file of the CDI directory should not be there. A device's plain edits may stand ready for whoever comes, and so may the
// name that kubelet shows; all others must be named by a claim, or be of a device of which kubelet does not know who has it.
func orphan(o observation, file specFile, named, unsure map[string]bool) string {
	if file.fault != "" {
		return file.fault
	}
	for id, e := range file.devices {
		if named[id] {
			return ""
		}
		for _, hw := range o.hardware {
			if e.reaches(hw) && (unsure[hw.key] || plain(e)) || shows(id, e, hw) {
				return ""
			}
		}
	}
	return fmt.Sprintf("no claim names it: %v", file.devices)
}

// shows says whether a device of CDI is but the name of a device that is here: it gives nothing to reach it by.
func shows(id string, e edits, hw hardware) bool {
	name := strings.NewReplacer(":", "-", ".", "-").Replace(hw.key)
	return len(e.nodes) == 0 && len(e.mounts) == 0 && strings.HasPrefix(id, "fettle.dev/") && strings.HasSuffix(id, "-"+name)
}

// plain says whether edits are what any claim gets that asks for nothing special.
func plain(e edits) bool {
	return !slices.ContainsFunc(e.nodes, func(n node) bool { return !strings.Contains(n.permissions, "w") }) &&
		!slices.ContainsFunc(e.mounts, func(m mount) bool {
			return m.readOnly || m.containerPath != strings.Replace(m.hostPath, dirParent, containerParent, 1)
		})
}

// world is all that must be the same after everything was given back, by a name each.
type world struct {
	specs, tree, devices map[string]string
}

// checkEnd compares the world with what it was before the first claim.
func checkEnd(before, after world) []violation {
	return slices.Concat(
		compare("CDI spec", before.specs, after.specs),
		compare("file of the host", before.tree, after.tree),
		compare("published device", before.devices, after.devices),
	)
}

func compare(what string, before, after map[string]string) []violation {
	var found []violation
	for _, name := range slices.Sorted(maps.Keys(before)) {
		switch now, ok := after[name]; {
		case !ok:
			found = append(found, violation{leaked, name, what + " is gone"})
		case now != before[name]:
			found = append(found, violation{leaked, name, fmt.Sprintf("%s was %s and is %s", what, before[name], now)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok {
			found = append(found, violation{leaked, name, fmt.Sprintf("%s is new: %s", what, after[name])})
		}
	}
	return found
}

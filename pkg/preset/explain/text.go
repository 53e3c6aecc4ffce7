// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Text writes the answer for people.
func (e *Explanation) Text(w io.Writer) error {
	var t text
	for i := range e.Claims {
		t.claim(&e.Claims[i])
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// text is the text written so far.
type text struct {
	strings.Builder
	// running is that of the request that is being written.
	running *Running
}

// linef writes a line at a depth.
func (t *text) linef(depth int, format string, args ...any) {
	fmt.Fprintf(t, strings.Repeat("  ", depth)+format+"\n", args...)
}

func (t *text) claim(c *Claim) {
	whose := "which pods may share"
	if c.Pod != "" {
		whose = "of pod " + c.Pod + " alone"
	}
	t.linef(0, "claim %s/%s, %s", c.Namespace, c.Name, whose)
	for i := range c.Requests {
		t.request(&c.Requests[i])
	}
	if len(c.Requests) == 0 {
		t.linef(1, "no preset gives it anything")
	}
	t.told("refused", c.Refusals)
	t.told("missing", c.Missing)
	t.told("not needed", c.Notes)
	for _, from := range c.Others {
		t.linef(1, "not for it: %s", origin(from))
	}
	for _, remark := range c.Remarks {
		t.linef(1, "note: %s", remark)
	}
}

func (t *text) told(what string, all []preset.Refusal) {
	for _, r := range all {
		request := ""
		if r.Request != "" {
			request = "request " + r.Request + ", "
		}
		t.linef(1, "%s: %s%s, %s: %s", what, request, origin(r.From), r.Field, r.Message)
	}
}

// origin returns "ClusterDevicePreset nvidia (generation 3)". An object from a file has no generation.
func origin(o preset.Origin) string {
	if o.Generation == 0 {
		return o.String()
	}
	return fmt.Sprintf("%s (generation %d)", o, o.Generation)
}

func origins(all []preset.Origin) string {
	var out []string
	for _, o := range all {
		out = append(out, origin(o))
	}
	return strings.Join(out, ", ")
}

func (t *text) request(r *Request) {
	line := "request " + r.Request.Request
	if len(r.Devices) > 0 {
		line += ": " + strings.Join(r.Devices, ", ")
	}
	if len(r.Containers) > 0 {
		line += "; containers " + strings.Join(r.Containers, ", ")
	}
	t.linef(1, "%s", line)
	t.linef(2, "presets, the later wins: %s", origins(r.Presets))
	t.running = r.Running
	for i := range r.Env {
		t.variable(&r.Env[i])
	}
	for _, d := range r.LibraryDirs {
		t.linef(2, "directory for libraries %s", d.Path)
		t.from(d.From, nil)
	}
	for _, d := range r.ToolDirs {
		t.linef(2, "directory for programs %s", d.Path)
		t.from(d.From, nil)
	}
	for i := range r.Mounts {
		m := &r.Mounts[i]
		t.linef(2, "mount %s: %s", m.ContainerPath, mounted(&m.PresetMount))
		t.from(m.From, m.Overrode)
	}
	t.files("libraries", r.Libraries)
	t.files("programs", r.Tools)
	for i := range r.Drivers {
		d := &r.Drivers[i]
		t.linef(2, "the driver of %s in %s%s: its files are looked up on the node, by the vendor's own list", d.Vendor,
			cmp.Or(d.Root, "the directory that the node's plugin knows"), when(d.Optional, ", optional"))
		t.from(d.From, d.Overrode)
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		t.linef(2, "device node %s%s%s", n.Path, when(n.ReadOnly, ", to read"), when(n.Optional, ", optional"))
		t.from(n.From, n.Overrode)
	}
	for i := range r.Hooks {
		t.linef(2, "hook %s", hooked(&r.Hooks[i].PresetHook))
		t.from(r.Hooks[i].From, nil)
	}
	t.kept(r.Running)
	t.host(r.Host)
}

// kept writes what the containers that run still have of presets that do not select the request now.
func (t *text) kept(r *Running) {
	if r != nil && len(r.Kept) > 0 {
		t.linef(2, "running %s still have what was given by %s", strings.Join(r.Containers, ", "), origins(r.Kept))
	}
}

// lacking writes what of the last line the containers that run do not have.
func (t *text) lacking(from []preset.Origin) {
	if why := t.running.lack(from); why != "" {
		t.linef(3, "not in running %s, prepared %s: delete the pod to have it", strings.Join(t.running.Containers, ", "), why)
	}
}

func when(is bool, words string) string {
	if is {
		return words
	}
	return ""
}

func (t *text) from(from preset.Origin, overrode []preset.Origin) {
	t.linef(3, "from %s%s", origin(from), when(len(overrode) > 0, "; overrode "+origins(overrode)))
	t.lacking([]preset.Origin{from})
}

func (t *text) variable(v *preset.Variable) {
	t.linef(2, "env %s=%s", v.Name, quoted(v.Value))
	t.linef(3, "from %s%s%s%s", when(v.FromPod, "the pod, "), origins(v.From),
		when(len(v.Overrode) > 0, "; overrode "+origins(v.Overrode)), when(v.OverrodePod, "; hides what the pod sets"))
	t.lacking(v.From)
}

// quoted quotes a value that would break a line or a terminal.
func quoted(value string) string {
	if q := strconv.Quote(value); q != `"`+value+`"` {
		return q
	}
	return value
}

func mounted(m *v1alpha1.PresetMount) string {
	if m.Scratch != nil {
		return fmt.Sprintf("a scratch directory of %s in memory", m.Scratch.SizeLimit)
	}
	return m.HostPath + " of the host" + when(m.ReadOnly != nil && !*m.ReadOnly, ", writable") + when(m.Optional, ", optional") +
		when(m.Recursive, ", with what is mounted below it") + when(m.Propagation == v1alpha1.PropagationHostToContainer, ", also later")
}

func (t *text) files(what string, all []preset.Files) {
	for i := range all {
		f := &all[i]
		t.linef(2, "%s %s of %s%s", what, strings.Join(f.Names, ", "), cmp.Or(f.Root, "/"), when(f.Optional, ", optional"))
		t.from(f.From, nil)
	}
}

func hooked(h *v1alpha1.PresetHook) string {
	words := []string{string(h.Name)}
	words = append(words, h.Directories...)
	for _, l := range h.Links {
		words = append(words, l.Path+" -> "+l.Target)
	}
	return strings.Join(words, " ")
}

// host writes the edits other than variables, which are written before.
func (t *text) host(h *Host) {
	if h == nil {
		return
	}
	t.linef(2, "on this host:")
	for _, m := range h.Edits.Mounts {
		t.linef(3, "mount %s at %s%s", m.HostPath, m.ContainerPath, editOptions(&m))
	}
	for _, n := range h.Edits.Nodes {
		t.linef(3, "device node %s, character %d:%d, %s", n.Path, n.Major, n.Minor, n.Permissions)
	}
	for _, hook := range h.Edits.Hooks {
		t.linef(3, "run %s", strings.Join(hook.Args, " "))
	}
	for _, fault := range h.Faults {
		t.linef(3, "lacking, so that the claim would wait: %s", strings.ReplaceAll(fault, "\n", "; "))
	}
	if len(h.Edits.Mounts)+len(h.Edits.Nodes)+len(h.Edits.Hooks)+len(h.Faults) == 0 {
		t.linef(3, "nothing beside the variables")
	}
}

func editOptions(m *container.Mount) string {
	return when(!m.ReadOnly, ", writable") + when(!m.NonRecursive, ", with what is mounted below it") + when(m.HostToContainer, ", also later")
}

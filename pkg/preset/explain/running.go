// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// Running compares what presets give now with what the containers that run were given. The plugin decides when it prepares a claim, and
// keeps that decision. The claim's status.devices names the presets of then with their generations.
type Running struct {
	// Containers lists the containers that run, POD/CONTAINER if pods may share the claim.
	Containers []string `json:"containers"`
	// Applied lists the presets that the request was prepared with. It is empty for a claim whose status names none.
	Applied []preset.Origin `json:"applied,omitempty"`
	// Lacking lists what the containers do not have, in the words of the text.
	Lacking []string `json:"lacking,omitempty"`
	// Kept lists the presets that the request was prepared with, and that do not select it now.
	Kept []preset.Origin `json:"kept,omitempty"`
}

// maxApplied is how many presets the status of a claim names. Of more it is not known.
const maxApplied = 64

// running returns the containers of a request that run, and what they lack. It returns nil if none runs.
func (o *Objects) running(c *resourceapi.ResourceClaim, r *Request) *Running {
	out := &Running{Containers: o.runningContainers(c, r.Request.Request), Applied: o.applied(c, r.Request.Request)}
	if len(out.Containers) == 0 {
		return nil
	}
	for _, part := range partsOf(&r.Request) {
		if out.lack(part.from) != "" {
			out.Lacking = append(out.Lacking, part.name)
		}
	}
	for _, origin := range out.Applied {
		if !slices.ContainsFunc(r.Presets, func(now preset.Origin) bool { return sameObject(now, origin) }) {
			out.Kept = append(out.Kept, origin)
		}
	}
	return out
}

// runningContainers lists the containers of the known pods that use the request and run.
func (o *Objects) runningContainers(c *resourceapi.ResourceClaim, request string) []string {
	var out []string
	for _, pod := range o.Pods {
		if pod.Namespace != c.Namespace || !slices.Contains(preset.ClaimsOf(pod), c.Name) {
			continue
		}
		claim := preset.OfClaim(c, o.Driver, owns(pod, c), o.published)
		for _, name := range preset.Containers(pod, &claim, request) {
			if !runs(pod, name) {
				continue
			}
			if !owns(pod, c) {
				name = pod.Name + "/" + name
			}
			out = append(out, name)
		}
	}
	return out
}

// runs reports whether a container of a pod runs.
func runs(pod *corev1.Pod, container string) bool {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool {
		return s.Name == container && s.State.Running != nil
	})
}

// applied returns the presets that a request was prepared with, by the status of its devices.
func (o *Objects) applied(c *resourceapi.ResourceClaim, request string) []preset.Origin {
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != o.Driver || resourceclaim.BaseRequestRef(result.Request) != request {
			continue
		}
		for _, device := range c.Status.Devices {
			if device.Driver != result.Driver || device.Pool != result.Pool || device.Device != result.Device || device.Data == nil {
				continue
			}
			var data struct {
				Presets []preset.Origin `json:"presets"`
			}
			if err := json.Unmarshal(device.Data.Raw, &data); err == nil && len(data.Presets) > 0 {
				return data.Presets
			}
		}
	}
	return nil
}

// lack says why the containers do not have what is from presets, or returns "".
func (r *Running) lack(from []preset.Origin) string {
	if r == nil {
		return ""
	}
	var why []string
	for _, origin := range from {
		i := slices.IndexFunc(r.Applied, func(then preset.Origin) bool { return sameObject(then, origin) })
		switch {
		case i < 0 && len(r.Applied) < maxApplied:
			why = append(why, "without "+origin.String())
		case i >= 0 && origin.Generation != 0 && r.Applied[i].Generation != origin.Generation:
			why = append(why, fmt.Sprintf("with generation %d of %s", r.Applied[i].Generation, origin))
		}
	}
	return strings.Join(why, ", ")
}

// sameObject compares without generations.
func sameObject(a, b preset.Origin) bool { return a.Namespace == b.Namespace && a.Name == b.Name }

// part is one thing that a request gets.
type part struct {
	name string
	from []preset.Origin
}

// partsOf lists what a request gets, in the order and the words of the text.
func partsOf(r *preset.Request) []part {
	var out []part
	add := func(from []preset.Origin, format string, args ...any) {
		out = append(out, part{fmt.Sprintf(format, args...), from})
	}
	for i := range r.Env {
		add(r.Env[i].From, "env %s", r.Env[i].Name)
	}
	for _, d := range r.LibraryDirs {
		add([]preset.Origin{d.From}, "directory for libraries %s", d.Path)
	}
	for _, d := range r.ToolDirs {
		add([]preset.Origin{d.From}, "directory for programs %s", d.Path)
	}
	for i := range r.Mounts {
		add([]preset.Origin{r.Mounts[i].From}, "mount %s", r.Mounts[i].ContainerPath)
	}
	for i := range r.Libraries {
		add([]preset.Origin{r.Libraries[i].From}, "libraries %s", strings.Join(r.Libraries[i].Names, ", "))
	}
	for i := range r.Tools {
		add([]preset.Origin{r.Tools[i].From}, "programs %s", strings.Join(r.Tools[i].Names, ", "))
	}
	for i := range r.Drivers {
		add([]preset.Origin{r.Drivers[i].From}, "the driver of %s", r.Drivers[i].Vendor)
	}
	for i := range r.Nodes {
		add([]preset.Origin{r.Nodes[i].From}, "device node %s", r.Nodes[i].Path)
	}
	for i := range r.Hooks {
		add([]preset.Origin{r.Hooks[i].From}, "hook %s", hooked(&r.Hooks[i].PresetHook))
	}
	return out
}

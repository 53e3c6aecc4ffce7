// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Entry is an opaque configuration of a claim's spec or allocation, or of a class.
type Entry struct {
	Path *field.Path
	// Requests are those that it is for. Empty: all.
	Requests []string
	Opaque   *resourceapi.OpaqueDeviceConfiguration
}

// Recipient is a request, or an alternative "main/sub", and the driver of the devices that it gets. Driver is empty if that is unknown.
type Recipient struct{ Request, Driver string }

// Ignored is a configuration that no driver reads: it is for a driver that none of its devices are of.
type Ignored struct {
	Path *field.Path
	// Driver is the one that the configuration is for, Has those that have the devices, sorted.
	Driver string
	Has    []string
	// Requests are those that lack the configuration.
	Requests []string
	// Kind and Fields say what the configuration asks for, as far as it is a JSON object: "GpuConfig", and "sharing.strategy".
	Kind   string
	Fields []string
}

// IgnoredEntries returns the configurations that no driver reads, in their order. A configuration counts as read if the driver of one of
// its devices is unknown, or if it is for no request at all, which is another fault.
func IgnoredEntries(entries []Entry, recipients []Recipient) []Ignored {
	var all []Ignored
	for _, e := range entries {
		if e.Opaque == nil {
			continue
		}
		ignored := Ignored{Path: e.Path, Driver: e.Opaque.Driver}
		read := false
		for _, r := range recipients {
			if !Named(e.Requests, r.Request) {
				continue
			}
			read = read || r.Driver == "" || r.Driver == e.Opaque.Driver
			ignored.Requests = append(ignored.Requests, r.Request)
			ignored.Has = append(ignored.Has, r.Driver)
		}
		if read || len(ignored.Requests) == 0 {
			continue
		}
		slices.Sort(ignored.Has)
		ignored.Has = slices.Compact(ignored.Has)
		ignored.Requests = slices.Compact(ignored.Requests)
		ignored.Kind, ignored.Fields = contents(e.Opaque.Parameters.Raw)
		all = append(all, ignored)
	}
	return all
}

// IgnoredConfigs returns the configurations of an allocation that no driver reads, although a device of the driver is in their place, or
// although they are the driver's own. Other drivers answer for the rest.
func IgnoredConfigs(c *resourceapi.ResourceClaim, driver string) []Ignored {
	if c.Status.Allocation == nil {
		return nil
	}
	var entries []Entry
	for i := range c.Status.Allocation.Devices.Config {
		e := &c.Status.Allocation.Devices.Config[i]
		entries = append(entries, Entry{Path: configPath(i), Requests: e.Requests, Opaque: e.Opaque})
	}
	var recipients []Recipient
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		recipients = append(recipients, Recipient{Request: r.Request, Driver: r.Driver})
	}
	return slices.DeleteFunc(IgnoredEntries(entries, recipients), func(i Ignored) bool {
		return i.Driver != driver && !slices.Contains(i.Has, driver)
	})
}

// maxFields is how many fields of a configuration a message names.
const maxFields = 4

// String says what is ignored and why, without the path.
func (i Ignored) String() string {
	what := i.Kind
	if len(i.Fields) > 0 {
		named := strings.Join(i.Fields[:min(len(i.Fields), maxFields)], ", ")
		if more := len(i.Fields) - maxFields; more > 0 {
			named += fmt.Sprintf(" and %d more", more)
		}
		what = strings.TrimPrefix(what+": "+named, ": ")
	}
	if what != "" {
		what = " (" + what + ")"
	}
	devices := "all devices that it is for"
	if len(i.Requests) > 0 && i.Requests[0] != "" {
		devices = "the devices of request " + strings.Join(i.Requests, ", ")
	}
	return fmt.Sprintf("the parameters for driver %s%s have no effect, because %s are of driver %s: "+
		"remove the entry, or set what you need in a configuration for driver %s",
		i.Driver, what, devices, strings.Join(i.Has, ", "), strings.Join(i.Has, ", "))
}

// Named reports whether a configuration for these requests is for a request or alternative. No names are for all.
func Named(requests []string, request string) bool {
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, resourceclaim.BaseRequestRef(request))
}

// contents returns the kind of a configuration and the paths of its values, sorted.
func contents(raw []byte) (kind string, fields []string) {
	var object map[string]any
	if json.Unmarshal(raw, &object) != nil {
		return "", nil
	}
	kind, _ = object["kind"].(string)
	delete(object, "kind")
	delete(object, "apiVersion")
	return kind, leaves("", object)
}

// leaves returns the paths of the values of an object. A list is one value.
func leaves(prefix string, object map[string]any) []string {
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if inner, ok := object[name].(map[string]any); ok && len(inner) > 0 {
			paths = append(paths, leaves(prefix+name+".", inner)...)
			continue
		}
		paths = append(paths, prefix+name)
	}
	return paths
}

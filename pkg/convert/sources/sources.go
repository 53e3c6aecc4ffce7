// SPDX-License-Identifier: Apache-2.0

// Package sources finds configurations of other projects in what people have: the file itself, a ConfigMap, a List, values of a Helm chart,
// a custom resource of an operator, and streams of all of these.
package sources

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v3"

	"github.com/fettle-dev/fettle/pkg/manifest"
)

// Kind is whose configuration a file is, as the flag --kind names it.
type Kind string

// The kinds of files.
const (
	MigParted    Kind = "mig-parted"
	DevicePlugin Kind = "device-plugin"
	AMDProfiles  Kind = "amd-config-manager"
)

// Of names the project of a kind.
func (k Kind) Of() string {
	return map[Kind]string{
		MigParted: "mig-parted", DevicePlugin: "NVIDIA's device plugin", AMDProfiles: "AMD's config manager",
	}[k]
}

// File is a configuration that stands in a document.
type File struct {
	Kind Kind
	// Name is the key that it stands at. Empty: it is a document of its own.
	Name string
	// At says where it is, such as ConfigMap kube-system/plugin: data."any".
	At   string
	Text string
}

// Found is what there is in some documents.
type Found struct {
	Files []File
	// Elsewhere are sentences about files that the documents only name, and how to get them.
	Elsewhere []string
	// Rest are the parts that belong to no file.
	Rest []string
}

// Find looks through a stream of YAML or JSON.
func Find(in []byte) (*Found, error) {
	f := &Found{}
	empty := true
	for _, d := range manifest.Split(in) {
		if err := manifest.CheckAliases(d.Text, maxExpanded); err != nil {
			return nil, err
		}
		var content any
		if err := goyaml.Unmarshal(d.Text, &content); err != nil {
			return nil, fmt.Errorf("expected YAML: %s", strings.Join(strings.Fields(err.Error()), " "))
		}
		if content == nil {
			continue
		}
		empty = false
		f.document(content, string(d.Text))
		f.splits(content, "", 0)
	}
	if empty {
		return nil, errors.New("expected YAML: a document without content")
	}
	return f, nil
}

// Of returns the files of a kind.
func (f *Found) Of(kind Kind) []File {
	return slices.DeleteFunc(slices.Clone(f.Files), func(file File) bool { return file.Kind != kind })
}

// Others says what there is but files of a kind: files of other kinds, and ConfigMaps that have some.
func (f *Found) Others(kind Kind) []string {
	var all []string
	for _, file := range f.Files {
		if file.Kind != kind {
			all = append(all, fmt.Sprintf("%s is a file of %s: --kind %s makes PartitionPolicies of it", file.At, file.Kind.Of(), file.Kind))
		}
	}
	return append(all, f.Elsewhere...)
}

// None is the error for an input without a file of a kind.
func (f *Found) None(kind Kind) error {
	key := map[Kind]string{
		MigParted: `mig-configs, or data."config.yaml" of a ConfigMap`, DevicePlugin: "version and sharing, or data of a ConfigMap",
		AMDProfiles: `gpu-config-profiles, or data."config.json" of a ConfigMap`,
	}[kind]
	err := fmt.Errorf("no configuration of %s is in it: expected a file with %s, or values of a chart", kind.Of(), key)
	if others := f.Others(kind); len(others) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(others, "; "))
	}
	return err
}

// maxExpanded is the longest document with what its aliases stand for.
const maxExpanded = 16 << 20

// document looks through one.
func (f *Found) document(content any, text string) {
	object, _ := content.(map[string]any)
	if kind := kindOf(object); kind != "" {
		f.Files = append(f.Files, File{Kind: kind, At: "the file", Text: text})
		return
	}
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(textOf(object["kind"]), "List") {
		for _, item := range items {
			f.object(item)
		}
		return
	}
	f.object(content)
}

// object looks through an object of the API, or through values.
func (f *Found) object(content any) {
	object, ok := content.(map[string]any)
	if !ok {
		f.Rest = append(f.Rest, "what is no object")
		return
	}
	title := titleOf(object)
	before := len(f.Files)
	rest := f.walk(object, title, nil)
	if len(f.Files) == before {
		f.Rest = append(f.Rest, title)
		return
	}
	if rest = slices.DeleteFunc(rest, isName); len(rest) > 0 {
		f.Rest = append(f.Rest, title+": "+strings.Join(rest, ", "))
	}
}

// isName reports whether a path is of what an object's title has.
func isName(path string) bool {
	return slices.Contains([]string{"apiVersion", "kind", "metadata.name", "metadata.namespace"}, path)
}

// walk looks through a mapping, and returns the paths of the parts that have no file in them.
func (f *Found) walk(object map[string]any, title string, path []string) (rest []string) {
	defer func(before int) {
		if len(f.Files) == before { // else the chart makes the ConfigMap of what is here
			f.reference(object, title, path)
		}
	}(len(f.Files))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		at := append(slices.Clone(path), key)
		below, isMap := object[key].(map[string]any)
		text := textOf(object[key])
		if isMap {
			text = ""
			if kind := kindOf(below); kind != "" {
				text = marshalled(below)
			}
		}
		before := len(f.Files)
		if fault := brokenFile(text); fault != "" {
			f.Elsewhere = append(f.Elsewhere, fmt.Sprintf("%s: %s: expected YAML: %s", title, dotted(at), fault))
		}
		if kind := kindOfText(text); kind != "" {
			f.Files = append(f.Files, File{Kind: kind, Name: key, At: title + ": " + dotted(at), Text: text})
			continue
		}
		var inner []string
		if isMap {
			inner = f.walk(below, title, at)
		}
		if len(f.Files) == before && (!isMap || dotted(at) != "metadata") {
			inner = []string{dotted(at)}
		}
		rest = append(rest, inner...)
	}
	return rest
}

// reference notes a ConfigMap that an operator's object or the values of a chart name. Those of the device plugin's own chart have it at
// the top.
func (f *Found) reference(object map[string]any, title string, path []string) {
	if len(path) == 0 || path[len(path)-1] != "config" || textOf(object["name"]) == "" {
		return
	}
	of := "devicePlugin"
	if len(path) > 1 {
		of = path[len(path)-2]
	}
	kind := map[string]Kind{"devicePlugin": DevicePlugin, "migManager": MigParted, "configManager": AMDProfiles}[of]
	if len(path) == 1 && title != titleOf(nil) {
		kind = ""
	}
	if kind == "" {
		return
	}
	name := textOf(object["name"])
	f.Elsewhere = append(f.Elsewhere, fmt.Sprintf("%s: %s.name is ConfigMap %s, which has the file: kubectl get configmap %[3]s -n NAMESPACE "+
		"-o yaml > %[3]s.yaml, then --kind %s -f %[3]s.yaml", title, dotted(path), name, kind))
}

// splits says what the number of shares is here that HAMi makes of a GPU: its chart has it in the values, and its ConfigMaps have it in
// texts.
func (f *Found) splits(content any, where string, depth int) {
	switch v := content.(type) {
	case map[string]any:
		if _, isObject := v["metadata"].(map[string]any); isObject || where == "" {
			where = titleOf(v)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !strings.EqualFold(key, "deviceSplitCount") {
				f.splits(v[key], where, depth)
				continue
			}
			f.Elsewhere = append(f.Elsewhere, fmt.Sprintf("%s: %s %v is HAMi's: a PartitionPolicy with spec.devices.sharing.maxClaims %[3]v "+
				"makes as many shares of each GPU; they have no more memory together than it has", where, key, v[key]))
		}
	case []any:
		for _, item := range v {
			f.splits(item, where, depth)
		}
	case string:
		const deepest = 2 // a ConfigMap in a text, as kubectl notes it in an annotation
		var inner any
		if depth < deepest && strings.Contains(strings.ToLower(v), "devicesplitcount") && manifest.CheckAliases([]byte(v), maxExpanded) == nil &&
			goyaml.Unmarshal([]byte(v), &inner) == nil {
			f.splits(inner, where, depth+1)
		}
	}
}

// kindOf tells the configurations apart by their first keys.
func kindOf(object map[string]any) Kind {
	switch {
	case object["mig-configs"] != nil:
		return MigParted
	case object["gpu-config-profiles"] != nil:
		return AMDProfiles
	}
	sharing, shares := object["sharing"].(map[string]any)
	shares = shares && isShared(sharing)
	version := versionForm.MatchString(textOf(object["version"]))
	if version && shares && len(sharing) > 0 {
		return DevicePlugin // a key that is not known is said of it later
	}
	known := []string{"version", "flags", "resources", "sharing", "imex"}
	for key := range object {
		if !slices.Contains(known, key) {
			return ""
		}
	}
	if version || shares {
		return DevicePlugin
	}
	return ""
}

// versionForm matches the version of a configuration. The values of charts have versions of images at the same key, such as 550.54.15.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var versionForm = regexp.MustCompile(`^v[0-9]$`)

// isShared reports whether a mapping can be what the device plugin's configuration has at sharing. PartitionPolicies and claims for
// NVIDIA's driver have another at the same key.
func isShared(sharing map[string]any) bool {
	for key := range sharing {
		if key != "timeSlicing" && key != "mps" {
			return false
		}
	}
	return true
}

// kindOfText reads a text. Empty: it is no configuration.
func kindOfText(text string) Kind {
	if !strings.ContainsAny(text, ":") {
		return ""
	}
	var object map[string]any
	if manifest.CheckAliases([]byte(text), maxExpanded) != nil || goyaml.Unmarshal([]byte(text), &object) != nil {
		return ""
	}
	return kindOf(object)
}

// brokenFile says why a text is no YAML that looks like a configuration. Empty: it does not, or it is.
func brokenFile(text string) string {
	words := []string{"mig-configs", "gpu-config-profiles", "timeSlicing:"}
	if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) }) {
		return ""
	}
	var content any
	if err := goyaml.Unmarshal([]byte(text), &content); err != nil {
		return strings.Join(strings.Fields(err.Error()), " ")
	}
	return ""
}

func textOf(content any) string {
	text, _ := content.(string)
	return text
}

func marshalled(content any) string {
	text, err := goyaml.Marshal(content)
	if err != nil {
		return ""
	}
	return string(text)
}

// titleOf is ConfigMap ns/name. Values of a chart have no kind.
func titleOf(object map[string]any) string {
	kind := textOf(object["kind"])
	if kind == "" {
		return "values"
	}
	meta, _ := object["metadata"].(map[string]any)
	name := textOf(meta["name"])
	if namespace := textOf(meta["namespace"]); namespace != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(kind + " " + name)
}

// dotted writes a path. Keys with dots are in quotes, and so are the names of files.
func dotted(path []string) string {
	var out strings.Builder
	for i, key := range path {
		if i > 0 {
			out.WriteByte('.')
		}
		if strings.Contains(key, ".") || i > 0 && slices.Contains([]string{"data", "map"}, path[i-1]) {
			key = fmt.Sprintf("%q", key)
		}
		out.WriteString(key)
	}
	return out.String()
}

// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

const pages = "../../docs/user/reference"

// made stands at the top of each page.
const made = "<!-- Made from the code by: go test ./test/reference ./test/monitoring -update -->\n\n"

// TestAPI: each kind has a page with its fields as the Go types have them.
func TestAPI(t *testing.T) {
	types := typesOf(t, "../../api/v1alpha1")
	for page, kinds := range map[string][]string{
		"acceleratornode":  {"AcceleratorNode"},
		"acceleratorstack": {"AcceleratorStack"},
		"devicepreset":     {"ClusterDevicePreset", "DevicePreset"},
		"fpgabitstream":    {"FPGABitstream", "ClusterFPGABitstream"},
		"fpgaconfig":       {"FPGAConfig"},
		"gpuconfig":        {"GPUConfig"},
		"gpukernelcache":   {"GPUKernelCache", "ClusterGPUKernelCache"},
		"hostconfig":       {"HostConfig"},
		"partitionpolicy":  {"PartitionPolicy"},
		"trustpolicy":      {"TrustPolicy"},
	} {
		t.Run(page, func(t *testing.T) {
			b := &book{types: types, places: map[string]string{}}
			b.kind(kinds)
			check.Golden(t, filepath.Join(pages, page+".md"), made+b.String())
		})
	}
}

// TestEveryKindHasAPage finds kinds that TestAPI leaves out.
func TestEveryKindHasAPage(t *testing.T) {
	var all string
	pages, err := filepath.Glob(filepath.Join(pages, "*.md"))
	check.Must(t, err)
	for _, page := range pages {
		all += read(t, page)
	}
	for name, d := range typesOf(t, "../../api/v1alpha1") {
		_, root := d.marker("kubebuilder:object:root")
		if root && !strings.HasSuffix(name, "List") && !strings.Contains(all, "`"+name+"`") {
			t.Errorf("no page of docs/user/reference has %s", name)
		}
	}
}

// book is a page in the making. places has the anchor of each type that it has written.
type book struct {
	strings.Builder
	types  map[string]*declared
	places map[string]string
	// queue has the types that are still to be written, with their paths.
	queue [][2]string
}

// kind writes the fields of a kind. Kinds that differ in their scope alone are on one page: what differs is said in front.
func (b *book) kind(names []string) {
	fmt.Fprintf(b, "# %s\n", names[0])
	for _, name := range names {
		d := b.types[name]
		fmt.Fprintf(b, "\n`%s`, `fettle.dev/v1alpha1`%s: %s\n", name, scope(d), prose(d.text))
	}
	for _, name := range names {
		for _, f := range b.types[name].fields {
			b.queue = append(b.queue, [2]string{f.name, f.kind})
			if f.name != "spec" && f.name != "status" {
				b.queue = [][2]string{{"", name}}
				break
			}
		}
		b.structs(name)
	}
}

// structs writes the types of the queue, and those that they name.
func (b *book) structs(of string) {
	for len(b.queue) > 0 {
		path, kind := b.queue[0][0], b.queue[0][1]
		b.queue = b.queue[1:]
		d := b.types[kind]
		if d == nil || b.places[kind] != "" {
			continue
		}
		title := path
		switch path {
		case "":
			title = "Fields"
		case "spec", "status":
			title = of + ": " + path
		}
		b.places[kind] = anchor(title)
		fmt.Fprintf(b, "\n## %s\n\n", title)
		if path != "" && d.text != "" {
			fmt.Fprintf(b, "%s\n\n", prose(d.text))
		}
		for _, rule := range rules(d.comment) {
			fmt.Fprintf(b, "Rule: %s.\n\n", rule)
		}
		b.fields(path, d)
	}
}

// fields writes a struct's own fields and those of types that it embeds.
func (b *book) fields(path string, d *declared) {
	for _, inline := range d.inline {
		if embedded := b.types[inline]; embedded != nil {
			b.fields(path, embedded)
		}
	}
	for _, f := range d.fields {
		at := strings.TrimPrefix(path+"."+f.name, ".")
		text, fallback := withoutDefault(f)
		said := slices.Concat([]string{b.kindText(at, f.kind) + b.oneOf(f)}, required(f), fallback, limits(f.comment))
		b.WriteString(strings.TrimSpace(fmt.Sprintf("- **`%s`** (%s). %s", f.name, strings.Join(said, ", "), prose(text))) + "\n")
		for _, rule := range rules(f.comment) {
			fmt.Fprintf(b, "  Rule: %s.\n", rule)
		}
		if named := b.types[element(f.kind)]; named != nil && !open(f) {
			for _, v := range named.values {
				if v.text != "" {
					fmt.Fprintf(b, "  - `%s`: %s\n", v.literal, prose(v.text))
				}
			}
		}
	}
}

// kindText is a field's type in words, with a link where it is an object of the page.
func (b *book) kindText(path, kind string) string {
	named := b.types[element(kind)]
	switch {
	case named == nil:
		return words(kind)
	case named.alias != "":
		return words(strings.Replace(kind, element(kind), named.alias, 1))
	}
	shown := "object"
	if strings.HasPrefix(kind, "[]") {
		shown = "list of objects"
	} else if strings.HasPrefix(kind, "map") {
		shown = "map of objects"
	}
	place := b.places[element(kind)]
	if place == "" {
		b.queue = append(b.queue, [2]string{path, element(kind)})
		place = anchor(path)
		for _, later := range b.queue {
			if later[1] == element(kind) {
				place = anchor(later[0])
				break
			}
		}
	}
	return "[" + shown + "](#" + place + ")"
}

func element(kind string) string {
	kind = strings.TrimPrefix(kind, "[]")
	if _, after, ok := strings.Cut(kind, "]"); ok {
		return after
	}
	return kind
}

// words says a Go type in words of the API.
func words(kind string) string {
	if of, ok := strings.CutPrefix(kind, "[]"); ok {
		return "list of " + strings.TrimSuffix(words(of), "s") + "s"
	}
	if strings.HasPrefix(kind, "map") {
		return "map of " + strings.TrimSuffix(words(element(kind)), "s") + "s"
	}
	switch kind {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "uint64":
		return "number"
	case "Time", "MicroTime":
		return "time"
	case "ConditionStatus", "PersistentVolumeAccessMode":
		return "string"
	case "LocalObjectReference":
		return "name"
	case "LabelSelector", "Toleration", "Condition", "IntOrString", "EnvVar":
		return kind
	}
	return strings.ToLower(kind)
}

// open reports whether a field takes other texts than the constants of its type.
func open(f member) bool {
	_, pattern := f.marker("kubebuilder:validation:Pattern")
	return pattern
}

// oneOf lists the texts that a field may have: those that its markers name, or the constants of its type.
func (b *book) oneOf(f member) string {
	named := b.types[element(f.kind)]
	said, marked := f.marker("kubebuilder:validation:Enum")
	var names []string
	switch {
	case marked:
		names = strings.Split(said, ";")
	case named != nil && !open(f):
		for _, v := range named.values {
			names = append(names, v.literal)
		}
		if said, ok := named.marker("kubebuilder:validation:Enum"); ok {
			names = strings.Split(said, ";")
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ": `" + strings.Join(names, "`, `") + "`"
}

func required(f member) []string {
	if f.optional {
		return nil
	}
	return []string{"required"}
}

var unset = regexp.MustCompile(` ?(?:Unset:|Default) ([^.;,]{1,40})\.(?: |$)`)

// withoutDefault takes the sentence about the default from a field's text, where it is short.
func withoutDefault(f member) (text string, fallback []string) {
	if marked, ok := f.marker("kubebuilder:default"); ok {
		fallback = []string{"default `" + marked + "`"}
	}
	found := unset.FindStringSubmatchIndex(f.text)
	if found == nil {
		return f.text, fallback
	}
	said := f.text[found[2]:found[3]]
	if !strings.Contains(said, " ") {
		said = "`" + said + "`"
	}
	return strings.TrimSpace(f.text[:found[0]] + " " + f.text[found[1]:]), []string{"default: " + said}
}

// limits says in words what the markers of a field allow.
func limits(c comment) []string {
	var all []string
	for _, limit := range [][2]string{
		{"MinItems", "at least %s"},
		{"MaxItems", "at most %s"},
		{"MinLength", "at least %s characters"},
		{"MaxLength", "at most %s characters"},
		{"Minimum", "from %s"},
		{"Maximum", "to %s"},
		{"MinProperties", "at least %s"},
		{"MaxProperties", "at most %s"},
		{"items:MaxLength", "each at most %s characters"},
		{"Pattern", "%s"},
		{"items:Pattern", "each %s"},
	} {
		said, ok := c.marker("kubebuilder:validation:" + limit[0])
		if strings.HasSuffix(limit[0], "Pattern") {
			said = pattern(said)
		}
		if ok {
			all = append(all, fmt.Sprintf(limit[1], said))
		}
	}
	return all
}

// dnsName matches names of objects, with and without dots.
var dnsName = regexp.MustCompile(`^\^\[a-z0-9\]\(\[-a-z0-9\]\*\[a-z0-9\]\)\?`)

// pattern says a pattern in words where it is that of names, and else so that Markdown reads no link in it.
func pattern(said string) string {
	if dnsName.MatchString(said) {
		return "a DNS name"
	}
	entities := strings.NewReplacer("&", "&amp;", "<", "&lt;", "(", "&#40;", "|", "&#124;", "*", "&#42;", "_", "&#95;")
	return "<code>" + entities.Replace(said) + "</code>"
}

var message = regexp.MustCompile(`message="((?:[^"\\]|\\.)*)"`)

// rules are the messages of the rules that the API server checks.
func rules(c comment) []string {
	var all []string
	for _, m := range c.markers {
		if found := message.FindStringSubmatch(m); found != nil && strings.HasPrefix(m, "kubebuilder:validation:") {
			all = append(all, prose(strings.ReplaceAll(found[1], `\"`, `"`)))
		}
	}
	return all
}

var shortName = regexp.MustCompile(`shortName=\{?([\w,]+)\}?,categories`)

// scope says where objects of a kind live, and by which short names kubectl knows them. A configuration in a claim says neither.
func scope(d *declared) string {
	said, ok := d.marker("kubebuilder:resource")
	if !ok {
		return ""
	}
	where := ", in a namespace"
	if strings.Contains(said, "scope=Cluster") {
		where = ", for the cluster"
	}
	if found := shortName.FindStringSubmatch(said); found != nil {
		where += ", short `" + strings.ReplaceAll(found[1], ",", "`, `") + "`"
	}
	return where
}

// prose keeps Markdown from reading a comment otherwise.
func prose(text string) string {
	return strings.NewReplacer("_", `\_`, "*", `\*`, "<", `\<`, "[", `\[`, "$", `\$`).Replace(text)
}

var noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

func anchor(title string) string {
	return strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}

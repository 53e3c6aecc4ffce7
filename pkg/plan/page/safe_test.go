// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/test/check"
)

// outline lists the elements of a document with the names of their attributes, and collects the attributes and the texts.
type outline struct {
	elements []string
	attrs    []html.Attribute
	texts    []string
}

func outlineOf(t *testing.T, text string) outline {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	check.Must(t, err)
	var out outline
	for n := range root.Descendants() {
		switch n.Type {
		case html.ElementNode:
			element := n.Data
			for _, a := range n.Attr {
				element += " " + a.Key
				out.attrs = append(out.attrs, a)
			}
			out.elements = append(out.elements, element)
		case html.TextNode:
			out.texts = append(out.texts, n.Data)
		default:
		}
	}
	return out
}

// TestSelfContained: the pages load nothing, run nothing, and say so in a policy that the browser enforces.
func TestSelfContained(t *testing.T) {
	for name, in := range inputs(t) {
		t.Run(name, func(t *testing.T) {
			text := render(t, in)
			out := outlineOf(t, text)
			allowed := strings.Fields("html head meta title style body header main section article details summary div span p ul li b em small " +
				"br a h1 h2 h3 h4 h5 h6 table caption colgroup col thead tbody tr th td")
			for _, element := range out.elements {
				if tag, _, _ := strings.Cut(element, " "); !slices.Contains(allowed, tag) {
					t.Errorf("element %s: it may load or run something", tag)
				}
			}
			policy := ""
			for _, a := range out.attrs {
				switch {
				case a.Key == "href" && !strings.HasPrefix(a.Val, "#"):
					t.Errorf("href %q leaves the page", a.Val)
				case a.Key == "src", a.Key == "style", a.Key == "srcset", strings.HasPrefix(a.Key, "on"):
					t.Errorf("attribute %s=%q", a.Key, a.Val)
				case a.Key == "content" && strings.HasPrefix(a.Val, "default-src"):
					policy = a.Val
				}
			}
			for _, loads := range []string{"url(", "@import", "http:", "https:", "//"} {
				if strings.Contains(text, loads) {
					t.Errorf("the page has %q", loads)
				}
			}
			_, style, _ := strings.Cut(text, "<style>")
			style, _, _ = strings.Cut(style, "</style>")
			sum := sha256.Sum256([]byte(style))
			want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
			if policy != want {
				t.Errorf("policy %q, want %q", policy, want)
			}
		})
	}
}

// TestHostileNames: whatever names, messages and attributes say, the page has the same elements, and shows them as text.
func TestHostileNames(t *testing.T) {
	tame := outlineOf(t, render(t, named(t, func(field string) string { return field })))
	for _, attack := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</style><script>alert(1)</script>`,
		`</td></table><iframe src="https://example.com">`, `javascript:alert(1)`, `{{.Title}}`, `<!--`, `]]>`, `&lt;b&gt;`, "\u202enode", "\x00",
	} {
		t.Run(attack, func(t *testing.T) {
			text := render(t, named(t, func(field string) string { return field + attack }))
			got := outlineOf(t, text)
			if diff := cmp.Diff(tame.elements, got.elements); diff != "" {
				t.Errorf("elements (-tame +hostile):\n%s", diff)
			}
			shown := strings.Join(got.texts, "\n")
			for _, field := range fields() {
				if want := strings.ReplaceAll(field+attack, "\x00", "\uFFFD"); !strings.Contains(shown, want) {
					t.Errorf("%q is not shown", want)
				}
			}
		})
	}
}

// fields are the texts that come from objects.
func fields() []string {
	return []string{
		"node", "gpu", "product", "root", "namespace", "claim", "pod", "key", "value", "reason", "message", "check", "lead", "title", "empty",
		"from", "words", "meaning", "waits", "placed", "object",
	}
}

// named is an input whose texts are made by a function.
func named(t *testing.T, text func(field string) string) page.Input {
	t.Helper()
	attribute := func(field string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: new(text(field))}
	}
	d := resourceapi.Device{
		Name: text("gpu"),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"productName": attribute("product"), "resource.kubernetes.io/pcieRoot": attribute("root"),
		},
		Taints: []resourceapi.DeviceTaint{{Key: text("key"), Value: text("value"), Effect: "NoSchedule"}},
	}
	s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: new(text("node")), Devices: []resourceapi.Device{d},
		Pool: resourceapi.ResourcePool{Name: "pool", Generation: 1, ResourceSliceCount: 1},
	}}
	c := claim("", text("claim"), []string{text("pod")}, d.Name)
	c.Namespace = text("namespace")
	c.Status.Allocation.Devices.Results[0].Pool = "pool"
	return page.Input{
		Title: text("title"), Lead: text("lead"), Nodes: nodes(text("empty")), Slices: []*resourceapi.ResourceSlice{s},
		Claims: []*resourceapi.ResourceClaim{c},
		Pods: map[string]plan.PodResult{
			text("waits"):  {Reason: text("reason")},
			text("placed"): {Node: new(text("node")), Fits: []string{text("node")}, Devices: map[string][]string{text("claim"): {d.Name}}},
		},
		Problems: []plan.Problem{{Object: text("object"), Message: text("message")}},
		Said:     []page.Saying{{From: text("from"), Words: text("words"), Meanings: []string{text("meaning")}}},
		Why: &page.Why{
			Nodes: map[string][]string{text("node"): {text("message")}},
			Devices: map[string]page.Judged{
				fmt.Sprintf("%s/pool/%s", driver, d.Name): {Matches: true, Failed: []page.Check{{Name: text("check"), Message: text("message")}}},
			},
		},
	}
}

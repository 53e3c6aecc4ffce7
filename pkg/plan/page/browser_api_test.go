// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/plan/page"
	"github.com/fettle-dev/fettle/test/check"
)

//go:embed testdata/measure.js
var measureScript string

// rect is a place on the page, in pixels.
type rect struct{ X, Y, W, H float64 }

// inside says whether a rectangle is within another, but for rounding.
func (r rect) inside(o rect) bool {
	return r.X >= o.X-1 && r.Y >= o.Y-1 && r.X+r.W <= o.X+o.W+1 && r.Y+r.H <= o.Y+o.H+1
}

// overlaps says whether two rectangles have more in common than an edge.
func (r rect) overlaps(o rect) bool {
	return r.X+1 < o.X+o.W && o.X+1 < r.X+r.W && r.Y+1 < o.Y+o.H && o.Y+1 < r.Y+r.H
}

// seen is what measure.js reads off a page.
type seen struct {
	Width, Needs, Height float64
	Cards                []seenCard
	Texts                []struct {
		Text string
		Box  rect
	}
	Cut []string
}

type seenCard struct {
	Name, State, Root, Domain string
	// Boxes are those of the card, its root, its NUMA node, and its node.
	Boxes  []rect
	Bar    rect
	Blocks []struct {
		Text, Mark string
		Box        rect
	}
	Sorts int
}

// looks are windows and papers.
func looks() map[string]look {
	return map[string]look{
		"wide":   {1920, 1080, "screen", "light"},
		"dark":   {1200, 900, "screen", "dark"},
		"laptop": {1200, 900, "screen", "light"},
		"phone":  {360, 740, "screen", "light"},
		"paper":  {718, 1046, "print", "light"}, // A4 with margins
	}
}

// TestAPI looks at the pages in a real browser. It has the name of the tests that make runs with programs that it installed.
func TestAPI(t *testing.T) {
	b := newBrowser(t)
	b.call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	for name, in := range inputs(t) {
		p := page.Of(in)
		file := filepath.Join(t.TempDir(), name+".html")
		check.Must(t, os.WriteFile(file, []byte(written(t, p)), 0o600))
		for lookName, l := range looks() {
			t.Run(name+" "+lookName, func(t *testing.T) {
				b.t = t
				b.show(l)
				b.open(file)
				got := b.measured()
				checkLayout(t, got)
				checkStructure(t, p, got)
				b.checkQuiet(file)
				if l.width < 1500 { // a wider window has no other colours
					checkContrast(t, b, got)
				}
				sorts := 0
				for _, card := range got.Cards {
					sorts += card.Sorts
				}
				if printed := l.media == "print"; printed != (sorts > 0) {
					t.Errorf("%d sorts are shown, on paper %v: want what is folded on paper only", sorts, printed)
				}
			})
		}
		b.t = t
		b.show(looks()["laptop"])
		t.Run(name+" keyboard", func(t *testing.T) { b.t = t; b.open(file); checkKeyboard(t, b) })
		t.Run(name+" screen reader", func(t *testing.T) { b.t = t; b.open(file); checkReader(t, b, p) })
		t.Run(name+" printed", func(t *testing.T) { b.t = t; b.open(file); checkPDF(t, b) })
		t.Run(name+" policy", func(t *testing.T) { b.t = t; b.open(file); checkPolicy(t, b) })
		b.t = t
		if document := map[string]string{"mixed": "plan.png", "pending": "explain.png"}[name]; check.Updating() && document != "" {
			b.open(file)
			picture(t, b, filepath.Join("../../../docs/user/images", document))
		}
	}
	t.Run("500 nodes", func(t *testing.T) { b.t = t; checkMany(t, b) })
	b.t = t
}

func (b *browser) measured() seen {
	b.t.Helper()
	var got seen
	_, function, _ := strings.Cut(measureScript, "\n")
	b.measure(strings.TrimSpace(function), &got)
	if len(got.Cards) == 0 {
		b.t.Fatal("the page shows no card")
	}
	return got
}

// checkLayout wants that nothing is cut, outside of the window, or above something else.
func checkLayout(t *testing.T, got seen) {
	t.Helper()
	if got.Needs > got.Width {
		t.Errorf("the page needs %v pixels of %v", got.Needs, got.Width)
	}
	for _, text := range got.Cut {
		t.Errorf("%q is cut, or outside of its box", text)
	}
	for i, a := range got.Texts {
		for _, b := range got.Texts[:i] {
			if a.Box.overlaps(b.Box) {
				t.Errorf("%q and %q overlap", a.Text, b.Text)
			}
		}
	}
	for i, a := range got.Cards {
		for j, b := range a.Boxes[1:] {
			if !a.Boxes[j].inside(b) {
				t.Errorf("card %s: box %d %v is not inside of %v", a.Name, j, a.Boxes[j], b)
			}
		}
		if !a.Bar.inside(a.Boxes[0]) {
			t.Errorf("card %s: its bar %v is outside of %v", a.Name, a.Bar, a.Boxes[0])
		}
		for _, b := range got.Cards[:i] {
			if a.Boxes[0].overlaps(b.Boxes[0]) {
				t.Errorf("cards %s and %s overlap", a.Name, b.Name)
			}
		}
	}
}

// checkStructure wants every card of the page where it belongs, with its blocks side by side and as wide as what they take of the card.
func checkStructure(t *testing.T, p page.Page, got seen) {
	t.Helper()
	i := 0
	for _, node := range p.Nodes {
		for _, domain := range node.Domains {
			for _, root := range domain.Roots {
				for _, card := range root.Cards {
					if i == len(got.Cards) {
						t.Fatalf("%d cards are shown, want more", i)
					}
					checkCard(t, card, root.Label, domain.Label, got.Cards[i])
					i++
				}
			}
		}
	}
	if i != len(got.Cards) {
		t.Errorf("%d cards are shown, want %d", len(got.Cards), i)
	}
}

func checkCard(t *testing.T, want page.Card, root, domain string, got seenCard) {
	t.Helper()
	if got.Name != want.Name || got.State != want.State || got.Root != root || got.Domain != domain {
		t.Errorf("card %s %q at %q %q, want %s %q at %q %q", got.Name, got.State, got.Domain, got.Root, want.Name, want.State, domain, root)
	}
	if len(got.Blocks) != len(want.Bar.Blocks) {
		t.Fatalf("card %s: %d blocks, want %d", got.Name, len(got.Blocks), len(want.Bar.Blocks))
	}
	at := 0
	for i, block := range want.Bar.Blocks {
		b := got.Blocks[i]
		column := got.Bar.W / float64(want.Bar.Columns)
		left, width := got.Bar.X+column*float64(at), column*float64(block.Span)
		if b.Text != block.Text || b.Mark != string(block.Mark) || math.Abs(b.Box.X-left) > 3 || math.Abs(b.Box.W-width) > 3 {
			t.Errorf("card %s: block %q %q at %v, want %q %q from %.0f, %.0f wide", got.Name, b.Text, b.Mark, b.Box, block.Text, block.Mark,
				left, width)
		}
		at += block.Span
	}
	if at != want.Bar.Columns {
		t.Errorf("card %s: its blocks take %d of %d columns", got.Name, at, want.Bar.Columns)
	}
}

// checkQuiet wants that the browser read the file and nothing else, and has no complaint.
func (b *browser) checkQuiet(file string) {
	b.t.Helper()
	for _, e := range b.events {
		switch e.Method {
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			check.Must(b.t, json.Unmarshal(e.Params, &sent))
			if sent.Request.URL != "file://"+file {
				b.t.Errorf("the page loads %s", sent.Request.URL)
			}
		case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
			b.t.Errorf("%s: %s", e.Method, e.Params)
		}
	}
}

// checkKeyboard wants that the tab key comes to everything that can be unfolded or followed, in order and seen, and that Enter unfolds.
func checkKeyboard(t *testing.T, b *browser) {
	t.Helper()
	var want []string
	b.measure(`function () {
		return [...document.querySelectorAll("summary, a[href]")].filter((e) => e.checkVisibility()).map((e) => e.textContent);
	}`, &want)
	type focused struct {
		Text, Outline string
		Open          bool
	}
	look := func() (f focused) {
		b.measure(`function () {
			const e = document.activeElement;
			const text = e === document.body ? "" : e.textContent;
			return { Text: text, Outline: getComputedStyle(e).outlineStyle, Open: e.parentElement.open ?? false };
		}`, &f)
		return f
	}
	var got []string
	for range len(want) + 1 {
		b.press("Tab", 9)
		f := look()
		if f.Text == "" {
			break
		}
		got = append(got, f.Text)
		if f.Outline == "none" {
			t.Errorf("%q has the focus, and nothing shows it", f.Text)
		}
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the tab key comes to %q, want %q", got, want)
	}
	b.measure(`function () { document.querySelector(".card summary").focus(); return true }`, new(bool))
	before := look()
	b.press("Enter", 13)
	if after := look(); before.Open || !after.Open {
		t.Errorf("%q: open %v, after Enter %v", before.Text, before.Open, after.Open)
	}
}

// axNode is what a screen reader is told.
type axNode struct {
	Ignored    bool
	Role, Name struct{ Value string }
	Properties []struct {
		Name  string
		Value struct{ Value any }
	}
}

// checkReader wants headings without gaps in their levels, one for each card, and tables of the cards that say what their columns are.
func checkReader(t *testing.T, b *browser, p page.Page) {
	t.Helper()
	var tree struct{ Nodes []axNode }
	b.call("Accessibility.getFullAXTree", nil, &tree)
	count := map[string]int{}
	level := 0
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		count[n.Role.Value+" "+n.Name.Value]++
		for _, property := range n.Properties {
			if property.Name == "level" && n.Role.Value == "heading" {
				now := int(property.Value.Value.(float64))
				if now > level+1 {
					t.Errorf("heading %q has level %d after %d", n.Name.Value, now, level)
				}
				level = now
			}
		}
	}
	for _, card := range p.Nodes[0].Domains[0].Roots[0].Cards {
		want := []string{"heading " + card.Name}
		if len(card.Bar.Numbers) > 0 {
			want = append(want, "table "+card.Bar.Caption, "columnheader 0", "columnheader 7")
		}
		if card.Published != "" {
			want = append(want, "DisclosureTriangle "+card.Published)
		}
		for _, w := range want {
			if count[w] == 0 {
				t.Errorf("a screen reader is not told of %q", w)
			}
		}
	}
	for _, landmark := range []string{"main ", "heading " + p.Title, "RootWebArea " + p.Title} {
		if count[landmark] != 1 {
			t.Errorf("%d %q, want 1", count[landmark], landmark)
		}
	}
}

// checkPDF prints the page.
func checkPDF(t *testing.T, b *browser) {
	t.Helper()
	var got struct{ Data []byte }
	b.call("Page.printToPDF", map[string]any{"paperWidth": 8.27, "paperHeight": 11.69}, &got)
	pages := len(regexp.MustCompile(`/Type\s*/Page\b`).FindAll(got.Data, -1))
	if pages < 1 || pages > 6 {
		t.Errorf("%d pages of %d bytes, want 1 to 6", pages, len(got.Data))
	}
}

// checkPolicy wants that the browser keeps what somebody brought into the page from loading and running.
func checkPolicy(t *testing.T, b *browser) {
	t.Helper()
	b.events = nil
	b.measure(`function () {
		const script = document.createElement("script");
		script.textContent = "document.title = 'ran'";
		document.body.append(script);
		const image = document.createElement("img");
		image.src = "http://127.0.0.1:9/image.png";
		document.body.append(image);
		return true;
	}`, new(bool))
	b.await("Log.entryAdded")
	var title string
	b.measure(`function () { return document.title }`, &title)
	if title == "ran" {
		t.Error("a script ran")
	}
	var said []string
	for _, e := range b.events {
		if e.Method == "Log.entryAdded" || e.Method == "Network.loadingFailed" {
			said = append(said, string(e.Params))
		}
		if e.Method == "Network.responseReceived" {
			t.Errorf("something was loaded: %s", e.Params)
		}
	}
	if !strings.Contains(fmt.Sprint(said), "Content Security Policy") {
		t.Errorf("the browser says %q, want that the policy forbids it", said)
	}
}

// checkMany opens a page of 500 nodes, unfolds one, and looks at it.
func checkMany(t *testing.T, b *browser) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "many.html")
	text := render(t, many(t, 500))
	const most = 5 << 20
	if len(text) > most {
		t.Errorf("%d bytes, want at most %d", len(text), most)
	}
	check.Must(t, os.WriteFile(file, []byte(text), 0o600))
	b.show(looks()["laptop"])
	b.open(file)
	var folded int
	b.measure(`function () {
		document.querySelectorAll(".node")[250].open = true;
		return document.querySelectorAll(".node:not([open])").length;
	}`, &folded)
	got := b.measured()
	checkLayout(t, got)
	if len(got.Cards) != 8 || folded != 499 {
		t.Errorf("%d cards are shown and %d nodes are folded, want the 8 cards of one node of 500", len(got.Cards), folded)
	}
	b.checkQuiet(file)
}

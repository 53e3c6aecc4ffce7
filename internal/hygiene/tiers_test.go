// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tiersDocument has the table that says which feature is shown by which specs, and which of them make test leaves to make test-all.
const tiersDocument, tiersHeading = "docs/design/testing.md", "## Features and tiers\n"

// A specOfSuite is one of the end-to-end suite. A spec of the second tier has a reason.
type specOfSuite struct {
	at, text string
	later    bool
	reason   string
}

// A tiersRow is a line of the table: the specs of both tiers, and the demo's scenarios by their numbers.
type tiersRow struct {
	feature                  string
	first, second, scenarios []string
}

// TestTiers holds the table of features and tiers against the specs' labels and the demo's scenarios.
func TestTiers(t *testing.T) {
	var specs []specOfSuite
	var faults []string
	for _, f := range goFiles(t) {
		if f.test && f.dir == "test/e2e" {
			found, wrong := specsOf(f)
			specs, faults = append(specs, found...), append(faults, wrong...)
		}
	}
	if len(specs) == 0 {
		t.Error("no spec is found in test/e2e")
	}
	rows, wrong := tiersTable(read(t, tiersDocument))
	for _, fault := range slices.Concat(faults, wrong, tiersFaults(rows, specs, scenarioNumbers(t))) {
		t.Error(fault)
	}
}

// scenarioNumbers are those of the demo's directories.
func scenarioNumbers(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "demo"))
	if err != nil {
		t.Fatal(err)
	}
	var numbers []string
	for _, e := range entries {
		if number, _, found := strings.Cut(e.Name(), "-"); found && e.IsDir() {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// specsOf finds the calls of It, and of each, which the specs of one preparation have for it, that give a spec's text.
func specsOf(f goFile) (specs []specOfSuite, faults []string) {
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		at := fmt.Sprintf("%s:%d", f.path, f.line(call))
		reason, later, fault := laterOf(call)
		switch name := calledName(call); {
		case (name == "It" || name == "each") && isText(call.Args[0]):
			text, _ := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
			specs = append(specs, specOfSuite{at: at, text: text, later: later, reason: reason})
			if fault != "" {
				faults = append(faults, at+": "+fault)
			}
		case name == "Describe" && later:
			faults = append(faults, at+": later is for specs: give it to those of this container")
		}
		return true
	})
	return specs, faults
}

// laterOf reads the reason with which a spec is in the second tier.
func laterOf(call *ast.CallExpr) (reason string, later bool, fault string) {
	for _, arg := range call.Args {
		decorator, ok := arg.(*ast.CallExpr)
		if !ok || calledName(decorator) != "later" {
			continue
		}
		later = true
		if len(decorator.Args) == 1 && isText(decorator.Args[0]) {
			reason, _ = strconv.Unquote(decorator.Args[0].(*ast.BasicLit).Value)
		}
		if strings.TrimSpace(reason) == "" {
			fault = "later needs the reason as a text"
		}
	}
	return reason, later, fault
}

func calledName(call *ast.CallExpr) string {
	name, _ := call.Fun.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

func isText(e ast.Expr) bool {
	text, ok := e.(*ast.BasicLit)
	return ok && text.Kind == token.STRING
}

// tiersTable reads the table of a document.
func tiersTable(document string) (rows []tiersRow, faults []string) {
	_, section, found := strings.Cut(document, tiersHeading)
	if !found {
		return nil, []string{tiersDocument + " has no section " + strings.TrimSpace(tiersHeading)}
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 || strings.Contains(line, "---") || strings.TrimSpace(cells[1]) == "feature" {
			continue
		}
		if len(cells) != 6 {
			faults = append(faults, fmt.Sprintf("%s: %q has %d columns, want 4", tiersDocument, cells[1], len(cells)-2))
			continue
		}
		rows = append(rows, tiersRow{
			feature: strings.TrimSpace(cells[1]), first: listed(cells[2], ";"), second: listed(cells[3], ";"), scenarios: listed(cells[4], ","),
		})
	}
	return rows, faults
}

func listed(cell, separator string) []string {
	var items []string
	for item := range strings.SplitSeq(cell, separator) {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// shownByScenario is a reason that names a scenario of the demo.
var shownByScenario = regexp.MustCompile(`^scenario (\d+) of the demo shows it$`)

// tiersFaults compares the table with the specs and scenarios that are there.
func tiersFaults(rows []tiersRow, specs []specOfSuite, scenarios []string) []string {
	var faults []string
	say := func(format string, args ...any) {
		faults = append(faults, tiersDocument+", "+tiersHeading[3:len(tiersHeading)-1]+": "+fmt.Sprintf(format, args...))
	}
	known := map[string]specOfSuite{}
	for _, s := range specs {
		known[s.text] = s
	}
	seen, shown := map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		if len(row.first)+len(row.scenarios) == 0 {
			say("nothing in make test shows %q: give it a spec of the first tier or a scenario of the demo", row.feature)
		}
		for _, number := range row.scenarios {
			shown[number] = true
			if !slices.Contains(scenarios, number) {
				say("the demo has no scenario %s, which is to show %q", number, row.feature)
			}
		}
		for i, text := range slices.Concat(row.first, row.second) {
			spec, found := known[text]
			second := i >= len(row.first)
			switch scenario := shownByScenario.FindStringSubmatch(spec.reason); {
			case !found:
				say("the suite has no spec %q, which is to show %q", text, row.feature)
			case seen[text]:
				say("%q is in two places", text)
			case spec.later && !second:
				say("%q is in the second tier, because %s", text, spec.reason)
			case !spec.later && second:
				say("%q is in the first tier: give it later(reason), or the other column", text)
			case scenario != nil && !slices.Contains(row.scenarios, scenario[1]):
				say("%q is said to be shown by scenario %s, which is not in the row of %q", text, scenario[1], row.feature)
			}
			seen[text] = true
		}
	}
	for _, s := range specs {
		if !seen[s.text] {
			say("%q (%s) is in no row: say which feature it shows", s.text, s.at)
		}
	}
	for _, number := range scenarios {
		if !shown[number] {
			say("scenario %s of the demo is in no row", number)
		}
	}
	return faults
}

// TestTiersFaults plants each fault that TestTiers is to find.
func TestTiersFaults(t *testing.T) {
	const source = `package e2e
func specs() {
	It("gives a GPU", func() {})
	It("gives two GPUs", later("scenario 02 of the demo shows it"), func() {})
	each("gives many GPUs", many, ofNode, later("it takes minutes"))
}
`
	table := func(rows ...string) string {
		const head = "\n| feature | `make test` | only `make test-all` | demo |\n|---|---|---|---|\n"
		return tiersHeading + head + strings.Join(rows, "\n") + "\n\n## Next\n| a | b |\n"
	}
	const whole = "| GPUs | gives a GPU | gives two GPUs; gives many GPUs | 01, 02 |"
	for name, test := range map[string]struct {
		source, document string
		want             []string
	}{
		"nothing": {source, table(whole), nil},
		"a spec that no row has": {source, table("| GPUs | gives a GPU | gives two GPUs | 01, 02 |"), []string{
			`"gives many GPUs" (e2e_test.go:5) is in no row: say which feature it shows`,
		}},
		"a row with a spec that is gone": {source, table(whole, "| FPGAs | gives an FPGA | | |"), []string{
			`the suite has no spec "gives an FPGA", which is to show "FPGAs"`,
		}},
		"a spec in two rows": {source, table(whole, "| again | gives a GPU | | |"), []string{`"gives a GPU" is in two places`}},
		"the wrong column": {source, table("| GPUs | gives a GPU; gives many GPUs | gives two GPUs | 01, 02 |"), []string{
			`"gives many GPUs" is in the second tier, because it takes minutes`,
		}},
		"the other wrong column": {source, table("| GPUs | | gives a GPU; gives two GPUs; gives many GPUs | 01, 02 |"), []string{
			`"gives a GPU" is in the first tier: give it later(reason), or the other column`,
		}},
		"a feature of the second tier alone": {source, table("| GPUs | gives a GPU | gives two GPUs | 01, 02 |",
			"| many | | gives many GPUs | |"), []string{
			`nothing in make test shows "many": give it a spec of the first tier or a scenario of the demo`,
		}},
		"a scenario that is not there": {source, table("| GPUs | gives a GPU | gives two GPUs; gives many GPUs | 01, 02, 03 |"), []string{
			`the demo has no scenario 03, which is to show "GPUs"`,
		}},
		"a scenario that no row has": {source, table("| GPUs | gives a GPU | gives two GPUs; gives many GPUs | 02 |"), []string{
			`scenario 01 of the demo is in no row`,
		}},
		"a reason with a scenario of another feature": {
			source,
			table("| GPUs | gives a GPU | gives two GPUs; gives many GPUs | 01 |", "| more | | | 02 |"),
			[]string{`"gives two GPUs" is said to be shown by scenario 02, which is not in the row of "GPUs"`},
		},
		"no section": {source, "## Another\n", []string{"no section", "no row", "no row", "no row", "no row", "no row"}},
		"no reason":  {strings.Replace(source, `"it takes minutes"`, `" "`, 1), table(whole), []string{"later needs the reason as a text"}},
		"a container with a reason": {strings.Replace(source, "	each(",
			"	Describe(\"all\", later(\"slow\"), all)\n	each(", 1), table(whole), []string{
			"later is for specs: give it to those of this container",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			fileSet := token.NewFileSet()
			syntax, err := parser.ParseFile(fileSet, "e2e_test.go", test.source, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			specs, faults := specsOf(goFile{path: "e2e_test.go", syntax: syntax, fileSet: fileSet})
			rows, wrong := tiersTable(test.document)
			got := slices.Concat(faults, wrong, tiersFaults(rows, specs, []string{"01", "02"}))
			if len(got) != len(test.want) {
				t.Fatalf("the faults differ (-want +got):\n%s", cmp.Diff(test.want, got))
			}
			for i := range got {
				if !strings.Contains(got[i], test.want[i]) {
					t.Errorf("fault %d is %q, want %q in it", i, got[i], test.want[i])
				}
			}
		})
	}
}

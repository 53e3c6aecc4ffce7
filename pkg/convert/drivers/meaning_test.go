// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/test/seed"
)

const (
	isYes   = "true"
	isNo    = "false"
	isError = "an error"
)

// TestMeaning converts random selectors. Each must be true of a device of Fettle, that of the chosen class, where and only where the
// original is true of the other driver's device, and never an error that the original is not.
func TestMeaning(t *testing.T) {
	const selectors, devices = 3000, 6
	r := seed.New(t)
	converted, refusals := 0, 0
	verdicts := map[string]int{}
	for range selectors {
		g := &selectorMaker{Rand: r, models: foreignModels()}
		r.Shuffle(len(g.models), func(i, j int) { g.models[i], g.models[j] = g.models[j], g.models[i] })
		if g.models = g.models[:1]; r.IntN(4) == 0 {
			g.models = []foreignModel{publishedByNVIDIA(), publishedByAMD(), publishedByIntel()}
		}
		text := g.condition(3)
		out, err := Convert(text)
		if err != nil {
			refusals++
			continue
		}
		original := compiledSelector(text)
		if original.Error != nil {
			continue // constants of different types
		}
		converted++
		result := compiledSelector(out.Text)
		if result.Error != nil {
			t.Fatalf("%s\nbecame\n%s\nwhich the API server refuses: %v", text, out.Text, result.Error)
		}
		for range devices {
			p := g.pair(text)
			want, got := verdict(t, original, p.theirs), isNo
			if len(out.Types) != 1 || out.Types[0] == "gpu" || out.Types[0] == *p.ours.Attributes["type"].StringValue {
				got = verdict(t, result, p.ours)
			}
			verdicts[want+", "+got]++
			if (want == isYes) != (got == isYes) || want == isNo && got != isNo {
				t.Fatalf("%s\nis %s of\n%s\nand became, with the types %q,\n%s\nwhich is %s of\n%s", text, want, shown(p.theirs), out.Types,
					out.Text, got, shown(p.ours))
			}
		}
	}
	t.Logf("%d selectors converted, %d refused", converted, refusals)
	for _, pair := range []string{isYes + ", " + isYes, isNo + ", " + isNo, isError + ", " + isNo} {
		if verdicts[pair] < selectors {
			t.Errorf("%d devices have the verdicts %s, want at least %d: %v", verdicts[pair], pair, selectors, verdicts)
		}
	}
	if converted < selectors/2 {
		t.Errorf("%d of %d selectors were converted, want at least half", converted, selectors)
	}
}

func compiledSelector(text string) cel.CompilationResult {
	return cel.GetCompiler(cel.Features{}).CompileCELExpression(text, cel.Options{DisableCostEstimation: true})
}

func verdict(t *testing.T, compiled cel.CompilationResult, d cel.Device) string {
	t.Helper()
	switch matches, _, err := compiled.DeviceMatches(t.Context(), d); {
	case err != nil:
		return isError
	case matches:
		return isYes
	}
	return isNo
}

func shown(d cel.Device) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s:", d.Driver)
	for name, a := range d.Attributes {
		fmt.Fprintf(&b, " %s=%s", name, strings.TrimSpace(a.String()))
	}
	for name := range d.Capacity {
		fmt.Fprintf(&b, " %s", name)
	}
	return b.String()
}

// selectorMaker makes selectors on the attributes of models, and devices.
type selectorMaker struct {
	*rand.Rand
	models []foreignModel
}

// pick chooses one of several.
func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// pair makes a device of a driver that the selector names.
func (g *selectorMaker) pair(text string) devicePair {
	var named []foreignModel
	for _, m := range g.models {
		if strings.Contains(text, m.driver) {
			named = append(named, m)
		}
	}
	if len(named) == 0 {
		named = g.models
	}
	return pick(g.Rand, named).device(g.Rand)
}

// condition makes an expression that is true or false.
func (g *selectorMaker) condition(depth int) string {
	if depth == 0 || g.IntN(5) == 0 {
		return g.leaf()
	}
	sub := func() string { return "(" + g.condition(depth-1) + ")" }
	switch g.IntN(12) {
	case 0, 1, 2:
		return sub() + " && " + sub()
	case 3, 4, 5:
		return sub() + " || " + sub()
	case 6, 7:
		return "!" + sub()
	case 8, 9:
		return sub() + " ? " + sub() + " : " + sub()
	case 10:
		return fmt.Sprintf("%s %s %s", sub(), pick(g.Rand, []string{"==", "!="}), pick(g.Rand, []string{isYes, isNo}))
	default:
		m := pick(g.Rand, g.models)
		name := fmt.Sprintf("a%d", depth)
		body := strings.ReplaceAll(g.condition(depth-1), fmt.Sprintf("device.attributes[%q]", m.driver), name)
		return fmt.Sprintf("cel.bind(%s, device.attributes[%q], %s)", name, m.driver, body)
	}
}

// leaf makes one comparison or test.
func (g *selectorMaker) leaf() string {
	m := pick(g.Rand, g.models)
	f := pick(g.Rand, m.facts)
	name := f.name
	holder := fmt.Sprintf("device.attributes[%q]", m.driver)
	if f.capacity {
		holder = fmt.Sprintf("device.capacity[%q]", m.driver)
	}
	read := pick(g.Rand, []string{holder + "." + name, fmt.Sprintf("%s[%q]", holder, name)})
	switch g.IntN(60) {
	case 0:
		return pick(g.Rand, []string{isYes, isNo})
	case 1, 2, 3, 4, 5:
		return fmt.Sprintf("has(%s.%s)", holder, name)
	case 6, 7, 8, 9, 10:
		return fmt.Sprintf("%q in %s", name, holder)
	case 11, 12, 13:
		return fmt.Sprintf("%s.?%s.hasValue()", holder, name)
	case 14, 15, 16:
		return fmt.Sprintf("device.driver %s %q", pick(g.Rand, []string{"==", "!="}), pick(g.Rand, []string{m.driver, "other.example.com"}))
	case 17, 18, 19:
		return fmt.Sprintf("device.driver in [%q, %q]", "other.example.com", m.driver)
	case 20:
		return fmt.Sprintf("%s.?%s.orValue(%s) == %s", holder, name, f.literal(g.Rand), f.literal(g.Rand))
	case 21:
		other := pick(g.Rand, m.facts)
		return fmt.Sprintf("(%s ? %s : %s.%s) == %s", g.leaf(), read, holder, other.name, f.literal(g.Rand))
	case 22, 23:
		return fmt.Sprintf("[%s, %s].exists(x, x == %s)", f.literal(g.Rand), f.literal(g.Rand), read)
	}
	return f.comparison(g.Rand, read)
}

// comparison compares what is read with constants, in a way that its kind of value allows.
func (f fact) comparison(r *rand.Rand, read string) string {
	literal := f.literal(r)
	choice := r.IntN(6)
	if f.exact {
		choice %= 4
	}
	switch choice {
	case 0:
		return fmt.Sprintf("%s == %s", literal, read)
	case 1:
		return fmt.Sprintf("%s != %s", literal, read)
	case 2:
		return fmt.Sprintf("%s in [%s, %s]", read, literal, f.literal(r))
	case 3:
		return fmt.Sprintf("%s %s %s", read, pick(r, []string{"==", "!="}), literal)
	}
	switch order := pick(r, []string{"<", "<=", ">", ">="}); f.form {
	case formVersion, formQuantity:
		return fmt.Sprintf("%s.compareTo(%s) %s 0", read, literal, order)
	case formNumber:
		return fmt.Sprintf("%s %s %s", read, order, literal)
	case formFlag:
		return read
	}
	return fmt.Sprintf("%s.%s(%s)", read, pick(r, []string{"startsWith", "contains", "endsWith", "matches"}), literal)
}

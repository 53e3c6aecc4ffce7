// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxFiles is how many files a package has without its tests. A larger one is two packages.
const maxFiles = 15

// manyFiles are the packages with a file for each of many alike things: a kind of the API, a verb of the command line.
func manyFiles() []string { return []string{"api/v1alpha1", "cmd/fettle"} }

// TestPackagesAreSmall counts the files of the shipped packages.
func TestPackagesAreSmall(t *testing.T) {
	counts := map[string]int{}
	for _, f := range goFiles(t) {
		if !f.test && shipped(f.dir) {
			counts[f.dir]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[dir]; n > maxFiles && !slices.Contains(manyFiles(), dir) {
			t.Errorf("%s has %d files, want at most %d: a package is one noun; is one of them two?", dir, n, maxFiles)
		}
	}
	if n := counts["kubeletplugin"]; n > 8 {
		t.Errorf("kubeletplugin itself has %d files, want at most 8: it only wires and serves", n)
	}
}

// partImports are what the packages below kubeletplugin may import of each other. Features never import a feature; inventory, publish,
// devicehealth and status call each other only by functions that the root package gives them.
func partImports() map[string][]string {
	parts := map[string][]string{
		"notify": {}, "follow": {}, "retry": {}, "podresources": {}, "retirement": {"retry"}, "prepare/conflict": {},
		"prepare":       {"prepare/conflict"},
		"deviceclasses": {"follow"},
		"nodeview":      {"follow"},
		"trustpolicies": {"follow"},
		"inventory":     {"notify"},
		"quiesce":       {"inventory", "notify"},
		// It is no feature: no claim has anything of it.
		"foreigndevices": {"inventory", "notify", "retry"},
		"artifacts":      {"inventory", "notify", "retirement"},
		"publish":        {"inventory", "notify", "retirement", "retry"},
		"devicehealth":   {"dryrun", "inventory", "notify", "quiesce", "retirement", "retry"},
		"dryrun":         {"inventory"},
		"status":         {"inventory", "notify", "podresources", "quiesce", "retirement", "retry"},
		"binding":        {"follow", "inventory"},
	}
	for _, feature := range features() {
		parts[feature] = []string{"artifacts", "follow", "inventory", "notify", "prepare", "retry", "trustpolicies"}
	}
	return parts
}

// features are the packages whose types are a prepare.Feature.
func features() []string {
	return []string{"fpgas", "hostdirs", "kernelcaches", "partitions", "presets", "sharing"}
}

func TestPartsOfThePlugin(t *testing.T) {
	const parent = "kubeletplugin/"
	allowed := partImports()
	for _, f := range goFiles(t) {
		part, ok := strings.CutPrefix(f.dir, parent)
		if !ok || f.test {
			continue
		}
		known, ok := allowed[part]
		if !ok {
			t.Errorf("%s is not among partImports: say there what it may import", f.dir)
			continue
		}
		for _, imported := range f.imports() {
			other, ok := strings.CutPrefix(imported, modulePath+"/"+parent)
			if ok && !slices.Contains(known, other) {
				t.Errorf("%s imports %s: want one of %v; the root package hands functions from one part to another", f.path, other, known)
			}
		}
	}
}

// TestFeaturesAreListed: a package that claims to be a feature is among features, and the root package wires it.
func TestFeaturesAreListed(t *testing.T) {
	var found []string
	for _, f := range goFiles(t) {
		if !f.test && strings.HasPrefix(f.dir, "kubeletplugin/") && strings.Contains(f.content, "prepare.Feature ") &&
			strings.Contains(f.content, "= (*Feature)(nil)") {
			found = append(found, path.Base(f.dir))
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, features()) {
		t.Errorf("packages that are a prepare.Feature: %v, listed are %v", found, features())
	}
}

// TestStepsHaveNoNetwork: packages that hold step kinds, and all that they import, run in a process without network and credentials (see
// docs/design/architecture.md).
func TestStepsHaveNoNetwork(t *testing.T) {
	holders := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if ok && isStepKind(literal.Type) && len(literal.Elts) > 0 {
				holders[f.dir] = true
			}
			return true
		})
	}
	// A feature lists the kinds that another package made.
	for _, feature := range features() {
		delete(holders, "kubeletplugin/"+feature)
	}
	delete(holders, "kubeletplugin/prepare")
	want := []string{
		"cdi", "pkg/amdmode", "pkg/artifact/pin", "pkg/computemode", "pkg/fpga/region", "pkg/hostdir", "pkg/hostmount",
		"pkg/kernelcache/cachemount", "pkg/mig", "pkg/mps", "pkg/sriov", "pkg/timeslice", "pkg/vfio",
	}
	if got := slices.Sorted(maps.Keys(holders)); !slices.Equal(got, want) {
		t.Errorf("packages that hold step kinds: %v, want %v: add a new one here once it imports no network", got, want)
	}
	for _, dir := range want {
		for _, imported := range dependencies(t, "./"+dir) {
			if imported == "net/http" || strings.HasPrefix(imported, "k8s.io/client-go") {
				t.Errorf("%s holds step kinds and imports %s", dir, imported)
			}
		}
	}
}

// isStepKind says whether a type is step.Kind or step.Kinds.
func isStepKind(e ast.Expr) bool {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := selector.X.(*ast.Ident)
	return ok && from.Name == "step" && (selector.Sel.Name == "Kind" || selector.Sel.Name == "Kinds")
}

// TestCommandLineIsLight: the command line works offline on files, and carries neither of the two programs with it.
func TestCommandLineIsLight(t *testing.T) {
	for _, imported := range dependencies(t, "./cmd/fettle") {
		for _, program := range []string{"kubeletplugin", "controller"} {
			if within(imported, modulePath+"/"+program) {
				t.Errorf("cmd/fettle imports %s: what it needs of that belongs below pkg", imported)
			}
		}
	}
}

// TestServersHaveNoCommandLine: the programs of the cluster do not carry what the command line alone needs, by whatever way.
func TestServersHaveNoCommandLine(t *testing.T) {
	for _, program := range []string{"fettle-claims", "fettle-controller", "fettle-hook", "fettle-kubeletplugin", "fettle-nvml"} {
		for _, imported := range dependencies(t, "./cmd/"+program) {
			for _, of := range []string{"k8s.io/cli-runtime", "sigs.k8s.io/kustomize", modulePath + "/cmd/fettle"} {
				if within(imported, of) {
					t.Errorf("cmd/%s imports %s, which is for cmd/fettle", program, imported)
				}
			}
		}
	}
}

// dependencies are all packages that a package imports, directly or not.
func dependencies(t *testing.T, pattern string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", pattern)
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", pattern, err)
	}
	return strings.Fields(string(out))
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// importRule says what the files below a directory may not import, and why. The first rule of which From matches applies to what
// its Only or Never says; all matching rules apply.
type importRule struct {
	// From is a directory of the repository; the rule holds for it and everything below.
	From string
	// Never are import path prefixes that are refused. One that begins with "./" is within the root module.
	Never []string
	// Only, where it is set, are the sole import path prefixes allowed beside the standard library.
	Only []string
	// Except are directories below From to which the rule does not apply.
	Except []string
	// Tests says whether the rule holds for test files too.
	Tests bool
	// Because is the reason that a failure shows.
	Because string
}

// importRules is the direction api <- pkg <- cdi <- kubeletplugin, controller <- cmd, as docs/design/architecture.md draws it.
func importRules() []importRule {
	return []importRule{
		{
			From:    "api",
			Only:    []string{"k8s.io/apimachinery", "k8s.io/api/", "sigs.k8s.io/json", "./api"},
			Because: "the API types are imported by everyone, so they bring nothing along",
		},
		{
			From:    "pkg",
			Never:   []string{"./cdi", "./kubeletplugin", "./controller", "./cmd", "./test", "./demo", "./deployments", "k8s.io/client-go"},
			Because: "pkg is below the effects and knows no API server",
		},
		{
			From:    "cdi",
			Never:   []string{"./kubeletplugin", "./controller", "./cmd", "./test", "./demo", "./deployments", "k8s.io/client-go"},
			Because: "cdi turns edits into files and knows no API server",
		},
		{
			From:    "kubeletplugin",
			Never:   []string{"./controller", "./cmd", "./test", "./demo"},
			Because: "the plugin and the controller are two programs that share only what lies below both",
		},
		{
			From:    "controller",
			Never:   []string{"./kubeletplugin", "./cmd", "./cdi", "./test", "./demo"},
			Because: "the plugin and the controller are two programs that share only what lies below both",
		},
		{
			From:    "cmd",
			Never:   []string{"./test", "./demo"},
			Because: "tests import programs, not the other way round",
		},
		{
			From:    ".",
			Never:   []string{"./pkg/sim"},
			Except:  []string{"pkg/sim", "cmd/fettle", "test", "demo"},
			Because: "simulated hardware is for tests, the CLI and the demo",
		},
		{
			From:    ".",
			Never:   []string{authorities},
			Except:  []string{"cmd"},
			Because: "whom a program believes is for its main to say, not for a library",
		},
		{
			From:    ".",
			Never:   []string{"github.com/spf13/", "k8s.io/cli-runtime"},
			Except:  []string{"cmd/fettle"},
			Tests:   true,
			Because: "only the command line has commands and the flags of kubectl; programs of nodes and of the controller stay small",
		},
		{
			From:    ".",
			Never:   []string{"github.com/hanwen/"},
			Except:  []string{"test"},
			Tests:   true,
			Because: "file systems that simulate hardware are for test, whose packages serve them in a process of their own",
		},
		{
			From:    ".",
			Never:   []string{"C", "github.com/NVIDIA/"},
			Except:  []string{"cmd/fettle-nvml", "test/nvmlsim", "test/gpu"},
			Because: "only short-lived programs are linked with a C library: the child fettle-nvml, and what test/gpu carries to a card",
		},
		{
			From:    ".",
			Never:   []string{"github.com/onsi/"},
			Except:  []string{"test/e2e", "test/api"},
			Tests:   true,
			Because: "plain testing and go-cmp everywhere but in the end-to-end suites",
		},
		{
			From:    ".",
			Never:   []string{"github.com/stretchr/testify", "go.uber.org/mock", "github.com/golang/mock"},
			Tests:   true,
			Because: "plain testing and go-cmp; a fake is a function or a few lines in the test",
		},
	}
}

// within says whether name is the directory dir or lies below it.
func within(name, dir string) bool {
	return dir == "." || name == dir || strings.HasPrefix(name, dir+"/")
}

// matches says whether an import path is, or lies below, one of the prefixes.
func matches(imported string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		if local, ok := strings.CutPrefix(prefix, "./"); ok {
			prefix = modulePath + "/" + local
		}
		return within(imported, strings.TrimSuffix(prefix, "/"))
	})
}

// standard says whether an import path belongs to the standard library: its first element has no dot.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// violation is the message for an import that the rule refuses, or "".
func (r importRule) violation(file, dir, imported string, test bool) string {
	exempt := slices.ContainsFunc(r.Except, func(except string) bool { return within(dir, except) })
	if !within(dir, r.From) || exempt || test && !r.Tests {
		return ""
	}
	if matches(imported, r.Never) || len(r.Only) > 0 && !standard(imported) && !matches(imported, r.Only) {
		return fmt.Sprintf("%s imports %s: %s", file, imported, r.Because)
	}
	return ""
}

func TestImportDirections(t *testing.T) {
	for _, file := range goFiles(t) {
		for _, imported := range file.imports() {
			for _, rule := range importRules() {
				if message := rule.violation(file.path, file.dir, imported, file.test); message != "" {
					t.Error(message)
				}
			}
		}
	}
}

// TestImportRulesBite feeds the rules what they are there to refuse.
func TestImportRulesBite(t *testing.T) {
	for _, test := range []struct {
		dir, imported string
		test, refused bool
	}{
		{dir: "api/v1alpha1", imported: "k8s.io/client-go/kubernetes", refused: true},
		{dir: "api/v1alpha1", imported: modulePath + "/pkg/device", refused: true},
		{dir: "api/v1alpha1", imported: "k8s.io/apimachinery/pkg/runtime"},
		{dir: "api/v1alpha1", imported: "encoding/json"},
		{dir: "pkg/device", imported: modulePath + "/cdi", refused: true},
		{dir: "pkg/device", imported: "k8s.io/api/resource/v1"},
		{dir: "cdi", imported: modulePath + "/pkg/device"},
		{dir: "controller", imported: modulePath + "/kubeletplugin", refused: true},
		{dir: "kubeletplugin", imported: modulePath + "/pkg/sim", refused: true},
		{dir: "kubeletplugin", imported: modulePath + "/pkg/sim", test: true},
		{dir: "cmd/fettle", imported: modulePath + "/pkg/sim"},
		{dir: "cmd/fettle-kubeletplugin", imported: modulePath + "/pkg/sim", refused: true},
		{dir: "pkg/fpga/dfl", imported: "github.com/hanwen/go-fuse/v2/fs", test: true, refused: true},
		{dir: "test/fpgasim", imported: "github.com/hanwen/go-fuse/v2/fs"},
		{dir: "pkg/artifact/registry", imported: authorities, refused: true},
		{dir: "cmd/fettle", imported: authorities},
		{dir: "cmd/fettle", imported: "k8s.io/cli-runtime/pkg/genericclioptions"},
		{dir: "cmd/fettle-controller", imported: "k8s.io/cli-runtime/pkg/genericclioptions", refused: true},
		{dir: "kubeletplugin", imported: "github.com/spf13/cobra", refused: true},
		{dir: "pkg/nvml", imported: "C", refused: true},
		{dir: "pkg/nvml", imported: "github.com/stretchr/testify/assert", test: true, refused: true},
	} {
		var got string
		for _, rule := range importRules() {
			got += rule.violation("file.go", test.dir, test.imported, test.test)
		}
		if (got != "") != test.refused {
			t.Errorf("%s imports %s: refused with %q, want refused %t", test.dir, test.imported, got, test.refused)
		}
	}
}

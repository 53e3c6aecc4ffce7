// SPDX-License-Identifier: Apache-2.0

package play

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/fettle-dev/fettle/test/check"
)

func TestContexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := api.NewConfig()
	config.Contexts["admin"] = &api.Context{Cluster: "here", AuthInfo: "me"}
	config.CurrentContext = "admin"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	if err := Contexts(path, []Scenario{{Name: "01-one"}, {Name: "02-two"}}); err != nil {
		t.Fatal(err)
	}
	got, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	two := got.Contexts["demo-02-two"]
	if len(got.Contexts) != 3 || got.CurrentContext != "admin" || two == nil || two.Cluster != "here" || two.Namespace != "demo-02-two" {
		t.Errorf("contexts %v, of scenario two %+v", got.Contexts, two)
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{"01-a/README.md": "# A\n", "01-a/expect": "dance\n", "02-b/README.md": "# B\n"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Load(dir, regexp.MustCompile(""))
	for _, want := range []string{`scenario 01-a: expect: line 1: there is no step "dance"`, "scenario 02-b: open"} {
		check.WantErr(t, err, nil, want)
	}
	if _, err := Load(dir, regexp.MustCompile("c")); err == nil || !strings.Contains(err.Error(), "no scenario that matches") {
		t.Errorf("error %v", err)
	}
}

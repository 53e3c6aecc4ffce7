// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/fettle-dev/fettle/test/check"
)

func TestValidateYAML(t *testing.T) {
	in, err := os.ReadFile("testdata/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	findings, err := ValidateYAML(bytes.NewReader(in), "manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, finding := range findings {
		got.WriteString(finding.String() + "\n")
	}
	check.Golden(t, "testdata/manifests.golden", got.String())
}

func TestValidateYAMLReadErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	if _, err := ValidateYAML(iotest.ErrReader(broken), "f"); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	endless := io.LimitReader(zeros{}, maxYAML+10)
	if _, err := ValidateYAML(endless, "f"); err == nil || !strings.Contains(err.Error(), "split the file") {
		t.Errorf("got %v, want a limit", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// FuzzValidateYAML checks that no bytes crash the reader and that every finding can be read.
func FuzzValidateYAML(f *testing.F) {
	seed, err := os.ReadFile("testdata/manifests.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("a: &a [*a]\n---\n- kind: List\n"))
	f.Add([]byte(`{"kind":"List","items":[{"kind":"List","items":null},null,7]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		findings, err := ValidateYAML(bytes.NewReader(in), "f")
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range findings {
			if finding.Line < 1 || finding.Message == "" || strings.ContainsAny(finding.Message, "\n") {
				t.Errorf("finding that cannot be read: %+v", finding)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

// Package usecases has pods, claims, classes and pools that show what can be asked of Kubernetes for devices, each in a directory with what
// becomes of its pods.
package usecases

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Cluster is the directory with the classes, nodes and pools that most use cases share.
const Cluster = "cluster"

// Case is one use case.
type Case struct {
	Name string
	// Directories have its objects. They are those of the command in its README, so that the command shows what a test compares.
	Directories []string
	Expect      Expect
}

// Expect is what becomes of a use case.
type Expect struct {
	// Prototype is the file of the prototype that is shown. It is empty for what the prototype lacks.
	Prototype string `json:"prototype,omitempty"`
	// Cannot says that the API has no form for what the file of the prototype asks for: what is shown is the nearest.
	Cannot bool `json:"cannot,omitempty"`
	// Since is the version of Kubernetes whose default gates have what is shown, "1.36". It is empty for all that serve resource.k8s.io/v1.
	Since string `json:"since,omitempty"`
	// Pods are by NAMESPACE/NAME.
	Pods map[string]Pod `json:"pods"`
	// Problems are parts of what a plan says about objects, in its order.
	Problems []string `json:"problems,omitempty"`
}

// Pod is what becomes of a pod.
type Pod struct {
	Node    string              `json:"node,omitempty"`
	Fits    []string            `json:"fits,omitempty"`
	Devices map[string][]string `json:"devices,omitempty"`
	// Waits is a part of the reason why a pod has no node.
	Waits string `json:"waits,omitempty"`
}

// Load reads the use cases below a directory, in the order of their names.
func Load(dir string) ([]Case, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "expect"))
	if err == nil && len(paths) == 0 {
		err = errors.New("want directories with a file expect")
	}
	if err != nil {
		return nil, fmt.Errorf("list the use cases in %s: %w", dir, err)
	}
	var out []Case
	var errs []error
	for _, path := range paths {
		c, err := load(filepath.Dir(path))
		if err != nil {
			errs = append(errs, fmt.Errorf("use case %s: %w", filepath.Base(filepath.Dir(path)), err))
		}
		out = append(out, c)
	}
	return out, errors.Join(errs...)
}

func load(dir string) (Case, error) {
	c := Case{Name: filepath.Base(dir)}
	text, err := os.ReadFile(filepath.Join(dir, "expect"))
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalStrict(text, &c.Expect); err != nil {
		return c, fmt.Errorf("expect: %w", err)
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return c, err
	}
	names, err := command(readme)
	for _, name := range names {
		c.Directories = append(c.Directories, filepath.Join(filepath.Dir(dir), name))
	}
	return c, err
}

// below is how the command of a README calls the directory with the use cases.
const below = "demo/usecases/"

// command returns the directories of the first fettle plan in a text.
func command(readme []byte) ([]string, error) {
	lines := bufio.NewScanner(bytes.NewReader(readme))
	for lines.Scan() {
		arguments, ok := strings.CutPrefix(lines.Text(), "fettle plan ")
		if !ok {
			continue
		}
		var out []string
		for pair := range slices.Chunk(strings.Fields(arguments), 2) {
			name, ok := strings.CutPrefix(pair[len(pair)-1], below)
			if pair[0] != "-f" || !ok {
				return nil, fmt.Errorf("README.md: want fettle plan with -f %sNAME, got %q", below, arguments)
			}
			out = append(out, name)
		}
		return out, nil
	}
	return nil, errors.New("README.md: want a line with fettle plan -f " + below + "NAME")
}

// Files reads the files of a use case.
func (c Case) Files() ([]plan.File, error) {
	var out []plan.File
	for _, dir := range c.Directories {
		paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err == nil && len(paths) == 0 {
			err = errors.New("want *.yaml")
		}
		if err != nil {
			return nil, fmt.Errorf("list the files in %s: %w", dir, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			out = append(out, plan.File{Name: path, Data: data})
		}
	}
	return out, nil
}

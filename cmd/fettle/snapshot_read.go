// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/change"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

// snapshotFlags say which objects a plan is made of: those of files, or those of a cluster.
type snapshotFlags struct {
	*cluster
	files       list
	fromCluster bool
	gateFlags
}

// gateFlags say which Kubernetes is meant.
type gateFlags struct {
	version string
	gates   list
}

func (f *gateFlags) declare(a *arguments) {
	a.StringVar(&f.version, "kubernetes-version", "", "`version` of Kubernetes, like 1.36 (default: that of the snapshot, or the newest)")
	a.Var(&f.gates, "feature-gates", "feature gates of API server and scheduler, `NAME=true|false`, separated by commas; may be repeated")
	a.where("kubernetes-version", unless(func(version string) error {
		_, _, err := gates.For(version, nil)
		return err
	}))
}

// set returns the gates, and notes about those that are not known.
func (f *gateFlags) set() (gates.Set, []string, error) {
	given, err := f.givenGates()
	if err != nil {
		return gates.Set{}, nil, err
	}
	return gates.For(f.version, given)
}

// snapshot declares the flags of a verb that reads a whole cluster, or files of one.
func (a *arguments) snapshot() *snapshotFlags {
	f := &snapshotFlags{cluster: a.connect(genericConfig())}
	a.VarP(&f.files, "filename", "f", "`file` or directory with manifests or a snapshot, - for standard input; may be repeated")
	a.BoolVar(&f.fromCluster, "from-cluster", false, "read the cluster of kubectl")
	f.declare(a)
	return f
}

// check wants files or a cluster.
func (f *snapshotFlags) check(flags *arguments) error {
	switch {
	case !f.fromCluster && len(f.files) == 0:
		return errors.New("want --filename FILE or --from-cluster")
	case !f.fromCluster && flags.whichCluster() != "" && flags.whichCluster() != "namespace":
		return fmt.Errorf("--%s: want --from-cluster", flags.whichCluster())
	}
	_, err := f.givenGates()
	return err
}

// givenGates reads --feature-gates.
func (f *gateFlags) givenGates() (map[string]bool, error) {
	given := map[string]bool{}
	for _, value := range f.gates {
		for part := range strings.SplitSeq(value, ",") {
			name, text, found := strings.Cut(strings.TrimSpace(part), "=")
			on, err := strconv.ParseBool(text)
			if !found || err != nil {
				return nil, fmt.Errorf("--feature-gates %q: want NAME=true or NAME=false, like DRADeviceTaints=true", part)
			}
			given[name] = on
		}
	}
	return given, nil
}

// defaultNamespace is that of objects without one, and of names without one.
func (f *snapshotFlags) defaultNamespace() string {
	return cmp.Or(*f.Namespace, metav1.NamespaceDefault)
}

// read reads the cluster, the files, or both, where the objects of the files take the place of those of the cluster.
func (f *snapshotFlags) read(ctx context.Context) (snapshot plan.Snapshot, problems []plan.Problem, err error) {
	if f.fromCluster {
		if snapshot, problems, err = f.ofCluster(ctx); err != nil {
			return plan.Snapshot{}, nil, err
		}
	}
	if len(f.files) > 0 {
		ofFiles, more, err := readSnapshot(f.files, f.defaultNamespace())
		if err != nil {
			return plan.Snapshot{}, nil, err
		}
		snapshot, problems = change.Add(snapshot, ofFiles), append(problems, more...)
	}
	given, err := f.givenGates()
	if err != nil {
		return plan.Snapshot{}, nil, err
	}
	snapshot.Version, snapshot.Gates = cmp.Or(f.version, snapshot.Version), mergedGates(snapshot.Gates, given)
	return snapshot, problems, nil
}

// mergedGates returns the gates of both. The second ones win.
func mergedGates(gates, over map[string]bool) map[string]bool {
	out := maps.Clone(gates)
	if out == nil {
		out = map[string]bool{}
	}
	maps.Copy(out, over)
	return out
}

// maxSnapshot bounds a file: 5,000 nodes of 8 GPUs have 200 MB.
const maxSnapshot = 1 << 30

// readSnapshot reads files and directories of manifests.
func readSnapshot(paths []string, namespace string) (plan.Snapshot, []plan.Problem, error) {
	var files []plan.File
	seen := map[string]bool{}
	for _, path := range paths {
		names, err := manifestFiles(path)
		if err != nil {
			return plan.Snapshot{}, nil, err
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			data, err := readWhole(name)
			if err != nil {
				return plan.Snapshot{}, nil, err
			}
			files = append(files, plan.File{Name: cmp.Or(strings.TrimPrefix(name, "-"), "stdin"), Data: data})
		}
	}
	return plan.Read(files, namespace)
}

func readWhole(name string) ([]byte, error) {
	var in io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSnapshot+1))
	if err == nil && len(data) > maxSnapshot {
		err = fmt.Errorf("more than %d MiB: split the file", maxSnapshot>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/conformance/plugintest"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// TestAPI runs what needs no card on a simulated machine, with an API server and the shipped plugin.
func TestAPI(t *testing.T) {
	repository, err := filepath.Abs(plugintest.Repository)
	check.Must(t, err)
	bundle, root, out := t.TempDir(), filepath.Join(t.TempDir(), "host"), t.TempDir()
	bin := filepath.Join(bundle, "bin")
	check.Must(t, os.Mkdir(bin, 0o755))
	nodefixture.ExpandInto(t, "8xh100-iommu", root)
	// The simulator's state is where the child looks for the driver.
	driver := t.TempDir()
	_, err = nvmlsim.Adopt(nvmlsim.DefaultFile(driver), root, nvmlsim.H100)
	check.Must(t, err)
	check.Must(t, nvmlsim.Build(t.Context(), filepath.Join(bin, "fettle-nvml")))
	for _, name := range []string{"cmd/fettle-kubeletplugin", "cmd/fettle-hook"} {
		check.Must(t, os.Symlink(plugintest.Build(t, bundle, name), filepath.Join(bin, filepath.Base(name))))
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		check.Must(t, os.Symlink(filepath.Join(repository, ".cache", "bin", name), filepath.Join(bin, name)))
	}
	check.Must(t, os.Symlink(filepath.Join(repository, "deployments", "crds"), filepath.Join(bundle, "crds")))
	var stdout, stderr check.Buffer
	wanted := "machine,discovery,plugin,container"
	if !testing.Short() {
		wanted += ",calls,health" // a minute and more
	}
	args := []string{"-bundle", bundle, "-out", out, "-root", root, "-driver-root", driver, "-parts", wanted}
	code := run(t.Context(), args, &stdout, &stderr)
	r := readReport(t, out)
	if failed := failures(r); code != 0 || len(failed) > 0 {
		t.Errorf("exit status %d, failures %q\n%s", code, failed, stderr.String())
	}
}

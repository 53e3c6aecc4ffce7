// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// TestMain lets the test's binary be the child that a cache is pulled in, as the bench's is.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == cacheChild {
		if err := answerErrand(context.Background(), os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestAPI runs the smallest form: what is timed is not looked at, only that everything is measured and is what it is called. It builds
// the plugin unless $FETTLE_BENCH_PLUGIN names one.
func TestAPI(t *testing.T) {
	root := filepath.Join("..", "..")
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(root, ".cache", "bin")
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v: build the test cluster's binaries first", err)
		}
		t.Skipf("%v: build the test cluster's binaries to run the API tests", err)
	}
	state := t.TempDir()
	if err := checkDisk(state); err != nil { // the system's temporary files are in memory
		state, err = os.MkdirTemp(filepath.Join(root, ".cache"), "bench-test") //nolint:usetesting // TempDir's is the one in memory
		check.Must(t, err)
		t.Cleanup(func() { check.Must(t, os.RemoveAll(state)) })
	}
	var out, progress bytes.Buffer
	err := run(t.Context(), options{
		root: root, assets: assets, state: state, plugin: os.Getenv("FETTLE_BENCH_PLUGIN"),
		form: form{
			levels: []int{0, 6}, parallel: []int{1, 2}, passes: 1, rounds: 1, limit: time.Minute, claims: 2,
			caches: []cacheSize{{bytes: 2e6, files: 64, pulls: 1}},
			shares: []int{1, 3}, plan: planForm{nodes: 2, claims: 20}, idle: time.Second,
		},
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%s\n%v", progress.String(), err)
	}
	all := lines(t, out.Bytes())
	checkNames(t, all)
	checkPoints(t, all)
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	check.Must(t, err)
	if strings.Contains(string(mounts), filepath.Join(memoryDir(), "fb")) {
		t.Errorf("mounts are left over:\n%s", mounts)
	}
}

// checkNames wants every figure at least once, with a value.
func checkNames(t *testing.T, all []map[string]any) {
	t.Helper()
	values := map[string]bool{}
	for _, line := range all {
		name, _ := line["name"].(string)
		if _, ok := line["value"].(float64); ok {
			values[name] = true
		} else if line["reason"] == nil {
			t.Errorf("%v has neither a value nor a reason", line)
		}
	}
	noContainerd := checkContainerd(filepath.Join("..", "..", ".cache", "bin")) != nil
	optional := map[string]bool{
		"prepare.burst64": true, "floor.burst64": true, "prepare.burst64_over_floor": true, // bursts are smaller here
		"cache.cold.floor.ctr": noContainerd, "cache.cold.ctr_ratio": noContainerd,
	}
	for name := range units() {
		if strings.HasPrefix(name, "cache.warm.") && os.Geteuid() != 0 {
			continue // mounts need root
		}
		if !values[name] && !optional[name] {
			t.Errorf("%s was not measured", name)
		}
	}
}

// checkPoints wants each combination that the full form measures too.
func checkPoints(t *testing.T, all []map[string]any) {
	t.Helper()
	seen := map[string]bool{}
	for _, line := range all {
		if line["name"] == "prepare.p50" && line["value"] != nil {
			seen[fmt.Sprintf("%v held, %v devices, %v at once, %v",
				line["held"], line["devices"], line["parallel"], line["case"])] = true
		}
	}
	for _, what := range []string{
		"1 devices, 1 at once, plain", "1 devices, 2 at once, plain", "8 devices, 2 at once, plain",
		"1 devices, 2 at once, own", "8 devices, 1 at once, own", "1 devices, 2 at once, effect", "8 devices, 1 at once, effect",
	} {
		if want := "6 held, " + what; !seen[want] {
			t.Errorf("no Prepare was measured with %s", want)
		}
	}
}

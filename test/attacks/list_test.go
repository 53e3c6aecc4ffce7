// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// attack is one that is known. Its tests are "PACKAGE NAME", where NAME is that of a test, or the name of a subtest or spec in quotes.
type attack struct {
	id       string
	attacker string
	what     string
	stops    string
	tests    []string
}

// The attackers.
const (
	namespaceAdmin = "administrator of a namespace"
	container      = "container with a device"
	controller     = "stolen token of the controller"
	node           = "stolen token of another node"
	author         = "author of an image, or a registry"
	podMaker       = "whoever creates pods"
	program        = "taken-over program"
	policyWriter   = "writer of policies"
	reader         = "reader of what is published"
)

// attacks lists those of the reviews: by their numbers in the second one, and by a letter those found by reading.
func attacks() []attack {
	const walker = "test/attacks TestAPI"
	slices := []string{walker, `test/api/chart "slices"`}
	return []attack{
		{"1", controller, "widens its webhook configuration to Secrets", "no right to change one", []string{walker}},
		{"2", controller, "makes a ClusterDevicePreset of the node's /usr", "only the shipped names with the shipped content", []string{walker}},
		{"3", controller, "reads any Secret by a cache's Job", "the whole pod is fenced", []string{walker, `test/api/chart "fences of Jobs"`}},
		{"4", controller, "makes a token Secret of another account", "no right to make Secrets", []string{walker}},
		{"5", node, "evicts pods of another node by taints in its pool", "a pool begins with the token's node", slices},
		{"6", node, "has another node's devices unallocatable by its pool", "a pool begins with the token's node", slices},
		{"7", program, "rewrites CDI specs from fettle-nvml", "Landlock for every child", nil},
		{"8", program, "reaches containerd from the MPS daemon", "the host's /run is covered", nil},
		{"9", podMaker, "fills the plugin's connections", "connections are kept for the node's address", nil},
		{"10", podMaker, "fills the controller's and webhook's connections", "connections are kept for the node's address", nil},
		{"11", namespaceAdmin, "ends the plugin by many large presets and one pod", "budgets of a claim, a preset and a namespace", nil},
		{"12", namespaceAdmin, "ends the controller by many large presets", "presets are read on demand", nil},
		{"13", namespaceAdmin, "evades quota by claims deleted under pods", "the finalizer of an allocated claim stays", nil},
		{"14", namespaceAdmin, "evicts anybody's pods by a high priority", "only the policy's classes count", nil},
		{"15", namespaceAdmin, "evicts without taking a device", "a pod with unknown fields is not judged", nil},
		{"16", namespaceAdmin, "switches reclaim off by large annotations", "annotations are dropped before they are counted", nil},
		{"17", namespaceAdmin, "keeps devices by a long grace period", "a cap in the policy", nil},
		{"18", namespaceAdmin, "leads a cluster preset to /etc by a link", "mounts are copied without links", nil},
		{"19", namespaceAdmin, "spoils shared GPUs by another strategy", "the policy fixes the strategy", nil},
		{"20", container, "leaves ACLs in a host directory", "a fresh directory for each claim", nil},
		{"21", podMaker, "reads others' names by errors of CEL", "slices have a keyed hash", []string{"kubeletplugin/fpgas TestMemoryTenant"}},
		{
			"22", reader, "learns whose cluster a redacted snapshot is of", "every text is replaced but those of a list",
			[]string{"pkg/plan/saved TestRedactHidesWhatIsPlanted", "pkg/plan/saved TestRedactedPlansTheSameWithAnySelector"},
		},
		{"23", policyWriter, "gives pods a toleration of somebody else's taint", "only taints that the policy put on a node", nil},
		{"24", namespaceAdmin, "evades Enforce by a mirror's own name", "policies of an origin hold at its mirrors", nil},
		{"25", podMaker, "slows the webhook by pods with many claims", "a bound of reads", []string{"controller/webhook TestHostileReviews"}},
		{"26", podMaker, "slows scrapes by random tokens", "a reserve for known callers", nil},
		{"27", namespaceAdmin, "starves others' presets", "turns for presets", nil},
		{"a", program, "rewrites pods from the webhook", "the webhook's patches are held against the object", nil},
		{"b", program, "follows links into other claims' directories from the MPS daemon", "files are opened beneath a directory", nil},
		{"c", controller, "gives a CRD a conversion webhook", "the whole CRD is fenced", []string{walker}},
		{"d", controller, "puts a NoExecute taint on any node", "the controller puts taints of policies only", []string{walker}},
		{"e", namespaceAdmin, "reads images by a mirror's credentials", "said in the documentation", nil},
		{"f", namespaceAdmin, "takes all workers of the resolver", "turns for each namespace", nil},
		{"g", namespaceAdmin, "inherits memory by a namespace made again", "a tenant is the namespace's UID", nil},
		{"h", namespaceAdmin, "mounts trees of the node that the guard lacks", "more trees are guarded", nil},
		{"i", namespaceAdmin, "makes pods hang by a claim deleted under a pod", "a refusal and the taint at once", nil},
	}
}

// pending are the attacks that have no test yet.
func pending() []string {
	return []string{
		"7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20", "23", "24", "26", "27",
		"a", "b", "e", "f", "g", "h", "i",
	}
}

// TestAttacksHaveTests: the tests that the list names exist, and an attack without one is pending.
func TestAttacksHaveTests(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks() {
		if seen[a.id] {
			t.Errorf("two attacks are called %s", a.id)
		}
		seen[a.id] = true
		if slices.Contains(pending(), a.id) == (len(a.tests) > 0) {
			t.Errorf("attack %s has the tests %q, and pending says %v", a.id, a.tests, len(a.tests) > 0)
		}
		for _, test := range a.tests {
			if !exists(t, test) {
				t.Errorf("attack %s (%s %s): there is no test %s", a.id, a.attacker, a.what, test)
			}
		}
	}
	for _, id := range pending() {
		if !seen[id] {
			t.Errorf("pending names attack %s, which is not in the list", id)
		}
	}
}

// exists looks for a test in the files of its package.
func exists(t *testing.T, test string) bool {
	t.Helper()
	dir, name, _ := strings.Cut(test, " ")
	files, err := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
	check.Must(t, err)
	want := "func " + name + "("
	if strings.HasPrefix(name, `"`) {
		want = "(" + name + ","
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		check.Must(t, err)
		if strings.Contains(string(data), want) {
			return true
		}
	}
	return false
}

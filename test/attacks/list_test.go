// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"os"
	"path/filepath"
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
		{
			"7", program, "rewrites CDI specs from fettle-nvml", "Landlock for every program that the plugin starts",
			[]string{"pkg/confine TestTakenOverProgramReachesNothing", "cmd/fettle-nvml/child TestTakenOverLibraryWritesNoSpec"},
		},
		{
			"8", program, "reaches containerd from the MPS daemon", "the host's /run, /tmp and /var are covered",
			[]string{"test/chart TestTakenOverMPSDaemonSeesNoSocketOfTheHost"},
		},
		{
			"9", podMaker, "fills the plugin's connections", "strangers lose connections first; probes have no port",
			[]string{
				"pkg/httpserver TestManySourcesTakeNoConnection",
				"pkg/httpserver TestStrangersStarveNobody",
				"test/chart TestProbesHaveNoPort",
			},
		},
		{
			"10", podMaker, "fills the controller's and webhook's connections", "strangers lose connections first; probes have no port",
			[]string{"pkg/httpserver TestManySourcesTakeNoConnection", "test/chart TestProbesHaveNoPort"},
		},
		{
			"11", namespaceAdmin, "ends the plugin by many large presets and one pod", "budgets of a preset and of a pod",
			[]string{"pkg/preset TestMuchForOneClaim", "kubeletplugin/presets TestManyPresetsOfATenant"},
		},
		{
			"12", namespaceAdmin, "ends the controller by many large presets, or other objects", "a share of what is kept for each namespace",
			[]string{
				"controller/presets TestManyPresetsOfATenant", "kubeletplugin/presets TestManyPresetsOfATenant",
				"controller TestCachesOfTenants", "kubeletplugin/kernelcaches TestLargeObjectsOfATenant",
			},
		},
		{
			"13", namespaceAdmin, "evades quota by claims deleted under pods", "the finalizer of an allocated claim stays",
			[]string{`test/api/chart "claims deleted under pods"`, `test/api/chart "quota of claims deleted under pods"`},
		},
		{
			"14", namespaceAdmin, "evicts anybody's pods by a high priority", "only classes of the node's policy count, in its namespaces",
			[]string{"pkg/partition/reclaim TestWhoReclaims"},
		},
		{
			"15", namespaceAdmin, "evicts without taking a device", "a pod with a field that is not judged evicts nobody",
			[]string{"pkg/partition/reclaim TestAnyField", "pkg/plan/podspec TestEveryField"},
		},
		{
			"16", namespaceAdmin, "switches reclaim off by large annotations", "annotations are dropped first, and the largest namespace is reduced",
			[]string{"controller/waiting TestLargeObjectsOfATenant"},
		},
		{
			"17", namespaceAdmin, "keeps devices by a long grace period", "a cap in the values of the chart",
			[]string{"controller/reclaims TestGrace"},
		},
		{
			"18", namespaceAdmin, "leads a cluster preset to /etc by a link", "what others than root can change is mounted as a copy, without links",
			[]string{
				"pkg/preset/hostfiles TestTenantLinksWhatAClusterPresetMounts",
				"pkg/preset/hostfiles TestContainersReadOnlyWhatWasPrepared",
			},
		},
		{
			"19", namespaceAdmin, "spoils shared GPUs by another strategy", "the policy alone says what shares have",
			[]string{"kubeletplugin/sharing TestTenantSpoilsNoShare"},
		},
		{
			"20", container, "leaves ACLs in a host directory", "the marks of the directory are noted and restored",
			[]string{"pkg/hostdir TestTenantLeavesNothingOnTheDirectory"},
		},
		{"21", podMaker, "reads others' names by errors of CEL", "slices have a keyed hash", []string{"kubeletplugin/fpgas TestMemoryTenant"}},
		{
			"22", reader, "learns whose cluster a redacted snapshot is of", "every text is replaced but those of a list",
			[]string{"pkg/plan/saved TestRedactHidesWhatIsPlanted", "pkg/plan/saved TestRedactedPlansTheSameWithAnySelector"},
		},
		{
			"23", policyWriter, "gives pods a toleration of somebody else's taint", "a taint that a node has from somebody else is not tolerated",
			[]string{"controller/partitionpolicies TestForeignTaints"},
		},
		{
			"24", namespaceAdmin, "evades Enforce by a mirror's own name", "policies of an origin hold at its mirrors",
			[]string{"pkg/trust TestMirrorByItsOwnName"},
		},
		{
			"25", podMaker, "slows the webhook by pods with many claims", "a bound of reads, and turns of namespaces",
			[]string{"controller/webhook TestPodOfManyClaims", "controller/webhook TestNamespacesTakeTurns"},
		},
		{
			"26", podMaker, "slows scrapes by random tokens", "one request of a stranger at a time",
			[]string{"cmd/internal/metricsauth TestRandomTokens"},
		},
		{
			"27", namespaceAdmin, "starves others' presets", "queues serve namespaces in turn",
			[]string{"controller/reconciler TestManyObjectsOfOneNamespace"},
		},
		{
			"a", program, "rewrites pods from the webhook", "no pods but those that may get devices, and none of Kubernetes and of Fettle",
			[]string{"test/chart TestReachOfWebhook"},
		},
		{
			"b", program, "follows links into other claims' directories from the MPS daemon", "directories are opened beneath one, without links",
			[]string{
				"pkg/mps/supervise TestTakenOverDaemonLeadsTheSupervisorNowhere",
				"pkg/mps/supervise TestLinkOfAContainerLeadsItsDaemonNowhere",
			},
		},
		{"c", controller, "gives a CRD a conversion webhook", "the whole CRD is fenced", []string{walker}},
		{
			"d", controller, "puts a NoExecute taint on any node", "no key but those that the chart's values list",
			[]string{walker, "test/chart TestNodeFence"},
		},
		{
			"e", namespaceAdmin, "reads images by a mirror's credentials", "the registry itself is asked first",
			[]string{"pkg/artifact/registry TestMirrorLendsNoCredentials"},
		},
		{
			"f", namespaceAdmin, "takes all workers of the resolver", "turns for each namespace",
			[]string{"controller/artifacts TestSlowRegistriesOfManyNamespaces"},
		},
		{
			"g", namespaceAdmin, "inherits memory by a namespace made again", "a tenant is the namespace's UID",
			[]string{"kubeletplugin/fpgas TestMemoryBetweenNamespaces", "kubeletplugin/prepare TestTenantOfNamespaceMadeAgain"},
		},
		{
			"h", namespaceAdmin, "mounts trees of the node that the guard lacks", "more trees are guarded",
			[]string{"kubeletplugin TestConfigValidate"},
		},
		{
			"i", namespaceAdmin, "makes pods hang by a claim deleted under a pod", "the device is tainted, at the next Prepare at the latest",
			[]string{"kubeletplugin/prepare TestDeletedUnderItsPod", "kubeletplugin/prepare TestRefusalFindsDeleted"},
		},
		{
			"j", container, "fills the node's /run by its MPS pipe directory", "the directory is memory of the claim's own, with a bound",
			[]string{"pkg/mps/supervise TestContainerFillsItsOwnMemory"},
		},
	}
}

// TestAttacksHaveTests: each attack has tests, and they exist.
func TestAttacksHaveTests(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks() {
		if seen[a.id] {
			t.Errorf("two attacks are called %s", a.id)
		}
		seen[a.id] = true
		if len(a.tests) == 0 {
			t.Errorf("attack %s has no test", a.id)
		}
		for _, test := range a.tests {
			if !exists(t, test) {
				t.Errorf("attack %s (%s %s): there is no test %s", a.id, a.attacker, a.what, test)
			}
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

// SPDX-License-Identifier: Apache-2.0

// Package e2e proves what Fettle promises, from inside the containers of a real Kubernetes with simulated machines.
//
// E2E_KEEP=1 leaves the cluster running, E2E_REUSE=1 uses one that runs. E2E_NODES=3 has it of three nodes, for the specs of stacks.
//
// Run by Ginkgo's own command, the specs are shared among processes, each with a cluster of its own: a spec waits most of its time, and
// it has the nodes of its cluster for itself. "go test" runs all of them one after the other.
//
// Every spec is there twice. Those with the label older come after all others, on the same cluster, whose objects are gone and whose API
// is that of Kubernetes 1.34 then; EMULATE has another version, and the cluster begin with it. A spec with the label differs shows what is
// different there. One with the label node shows what kubelet, the container runtime, the kernel and the plugin do, which are the same
// whatever version the API server emulates.
//
// A spec with the label all is in the second tier, and later says why: make test leaves it to make test-all.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/again"
	"github.com/fettle-dev/fettle/test/e2e/repeat"
	"github.com/fettle-dev/fettle/test/harness"
)

// The cluster of this run, and where it is simulated what.
var (
	h *harness.Harness
	// artifacts is where failures leave what explains them.
	artifacts string
	// older is set where the cluster serves an API that lacks what is newer than 1.34, and while the specs for it are declared.
	older bool
	// oldest is the minor of that API.
	oldest = cmp.Or(os.Getenv("EMULATE"), "1.34")
	// kernels are the registries of kernel caches, which are there for all specs.
	kernels kernelCaches
)

const (
	// gpuNode has eight H100 and four local SSDs, mixedNode eight MI300X, two Intel GPUs and two A100.
	gpuNode, mixedNode = "node1", "node2"
	// soon is for what takes a second where nothing else runs.
	soon = 60 * time.Second
)

func TestE2E(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	config := harness.ConfigFrom(root, os.Environ())
	suite, reporter := GinkgoConfiguration()
	config.Name, config.State, config.Nodes = "e2e", filepath.Join(config.Cache, "e2e", "cluster"), 2
	if os.Getenv("E2E_NODES") == "3" {
		config.Nodes = 3
	}
	if suite.ParallelTotal > 1 {
		process := fmt.Sprintf("-%d", suite.ParallelProcess)
		config.Name, config.State = config.Name+process, config.State+process
	}
	artifacts = config.Artifacts("e2e")
	h = harness.New(config, GinkgoWriter)
	err = h.Check(t.Context())
	switch {
	case errors.Is(err, harness.ErrUnable) && os.Getenv("CI") != "true":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	RegisterFailHandler(Fail)
	suite.Timeout = h.Patient(110 * time.Minute)
	RunSpecs(t, "Fettle on a real cluster", suite, reporter)
}

// ofNode is for specs that the API server's version is nothing to.
var ofNode = Label("node")

// differs is for specs of what an older API lacks: they show what happens there instead.
var differs = Label("differs")

// later is for specs of the second tier, and says why. docs/design/testing.md has all specs by feature and tier.
func later(string) Labels { return Label("all") }

var _ = SynchronizedBeforeSuite(func(ctx SpecContext) {
	if os.Getenv("E2E_REUSE") != "1" {
		Expect(os.RemoveAll(artifacts)).To(Succeed())
		Expect(h.Tools(ctx)).To(Succeed())
	}
}, func(ctx SpecContext) {
	begin := time.Now()
	SetDefaultEventuallyTimeout(h.Patient(soon))
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyPollingInterval(h.Pace(100 * time.Millisecond))
	if os.Getenv("E2E_REUSE") == "1" {
		Expect(h.Connect()).To(Succeed())
		version, err := h.Kube.Discovery().ServerVersion()
		Expect(err).NotTo(HaveOccurred())
		if h.Emulate = ""; version.EmulationMinor != version.Minor {
			h.Emulate = version.EmulationMajor + "." + version.EmulationMinor
		}
		older = h.Emulate != ""
		kernels.start(ctx)
		Expect(h.Install(ctx, values())).To(Succeed()) // the registries are other ones
		kernels.trusted(ctx)
		return
	}
	if os.Getenv("E2E_KEEP") != "1" {
		DeferCleanup(func(ctx SpecContext) { Expect(h.Down(ctx)).To(Succeed()) }, NodeTimeout(h.Patient(time.Minute)))
	}
	Expect(h.Up(ctx)).To(Succeed())
	older = h.Emulate != ""
	kernels.start(ctx)
	furnish(ctx)
	tell("ready", time.Since(begin), "the cluster and the chart")
}, NodeTimeout(time.Hour)) // on the slowest machine: how slow this one is isn't known yet where this is declared

// furnish gives a cluster without objects what all specs expect.
func furnish(ctx context.Context) {
	GinkgoHelper()
	if older {
		version, err := h.Kube.Discovery().ServerVersion()
		Expect(err).NotTo(HaveOccurred())
		Expect(version.EmulationMajor+"."+version.EmulationMinor).To(Equal(oldest), "the API is the older one")
	}
	placeAll(ctx)
	_, err := h.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: configMapNamespace}},
		metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Install(ctx, values())).To(Succeed())
	kernels.trusted(ctx)
}

// serves has the cluster serve an API before a spec. Where it serves another one, everything that is there goes.
func serves(emulate string) func(SpecContext) {
	return func(ctx SpecContext) {
		if h.Emulate == emulate {
			return
		}
		begin := time.Now()
		Expect(h.Renew(ctx, emulate)).To(Succeed())
		older = emulate != ""
		furnish(ctx)
		h.Emulate = emulate
		tell("ready", time.Since(begin), "the cluster as Kubernetes "+cmp.Or(emulate, "of now"))
	}
}

var unsafe = regexp.MustCompile(`[^a-zA-Z0-9]+`)

var _ = JustAfterEach(func(ctx SpecContext) {
	if !CurrentSpecReport().Failed() {
		return
	}
	if err := h.Dump(ctx, artifactsOf(CurrentSpecReport())); err != nil {
		AddReportEntry("some of what explains the failure could not be had", err)
	}
}, NodeTimeout(10*time.Minute)) // as above

// artifactsOf is where the failure of a spec leaves what explains it.
func artifactsOf(report SpecReport) string {
	return filepath.Join(artifacts, strings.Trim(unsafe.ReplaceAllString(report.LeafNodeText, "-"), "-"))
}

// A line for each spec as it ends, so that a run that is cut off shows how far it came and where its time went.
var _ = ReportAfterEach(func(report SpecReport) {
	if report.State != types.SpecStateSkipped {
		tell(report.State.String(), report.RunTime, report.FullText())
	}
	if report.Failed() {
		fmt.Fprintf(os.Stdout, "FAILED: %s: %s\n", report.FullText(), whyFailed(report))
	}
})

// tools/stages reads the names of the specs that may run once more. They are written last.
var _ = ReportAfterSuite("specs that may run once more", func(report Report) {
	Expect(again.Write(os.Stdout, h.Stage, repeat.Specs(report, h.Root, artifactsOf))).To(Succeed())
})

// whyFailed is in one line what a spec was doing when it failed, where and why: the report's own lines are far above the end of a long run.
func whyFailed(report SpecReport) string {
	step := ""
	for _, event := range report.SpecEvents {
		if event.SpecEventType == types.SpecEventByStart {
			step = event.Message + ": "
		}
	}
	const most = 1500
	message := strings.Join(strings.Fields(report.FailureMessage()), " ")
	if len(message) > most {
		message = message[:most] + " …"
	}
	at := strings.Fields(report.Failure.Location.FullStackTrace)
	return fmt.Sprintf("%s%s (%s; %s)", step, message, report.FailureLocation(), strings.Join(at[:min(len(at), 24)], " "))
}

// tell writes a line of the run's progress.
func tell(state string, took time.Duration, what string) {
	fmt.Fprintf(os.Stdout, "%s %s %6.1f s  %s\n", time.Now().UTC().Format(time.TimeOnly), state, took.Seconds(), what)
}

// Each spec stands alone; those that share what takes long to set up are in one ordered container, which one process runs. What takes
// longest comes first, so that no process is left with it at the end.
var _ = Describe("Fettle", SpecPriority(1), func() {
	BeforeEach(serves(""), NodeTimeout(h.Patient(10*time.Minute)))
	declare()
})

// A process turns its cluster once: specs are taken in this order by all.
var _ = Describe("Fettle as Kubernetes "+oldest, Label("older"), func() {
	BeforeEach(serves(oldest), NodeTimeout(h.Patient(10*time.Minute)))
	older = true
	declare()
	older = false
})

// declare has all specs.
func declare() {
	Describe("is upgraded", ofNode, Ordered, ContinueOnFailure, upgrades)
	Describe("warms pods with kernel caches", Ordered, ContinueOnFailure, warmsPods)
	Describe("survives faults of its node", ofNode, survivesFaults)
	Describe("divides GPUs", Ordered, ContinueOnFailure, dividesGPUs)
	Describe("divides other devices", ofNode, Ordered, ContinueOnFailure, dividesOthers)
	Describe("programs FPGAs", Ordered, ContinueOnFailure, programsFPGAs)
	Describe("programs other FPGAs", ofNode, Ordered, ContinueOnFailure, programsOthers)
	Describe("reserves nodes for pods with devices", reservesNodes)
	Describe("comes and goes", comesAndGoes)
	Describe("presets", presetsForPods)
	Describe("refuses what is wrong", refusesWrongConfigs)
	Describe("copes with machines of all kinds", copesWithMachines)
	Describe("watches the health of devices", tellsOfFailures)
	Describe("shows how far nodes are", showsStacks)
	Describe("lends directories of the host", lendsDirectories)
	Describe("follows claims to their end", followsClaims)
	Describe("is understood by other runtimes", ofNode, otherRuntimes)
	Describe("gives devices to pods", givesDevices)
	Describe("gives accelerators to pods", givesAccelerators)
	Describe("plans ahead", plansAhead)
	Describe("is monitored", isMonitored)
	Describe("takes over from other drivers", takesOverFromOthers)
}

// usual are the machines of most specs, by node.
func usual() map[string][]string {
	return map[string][]string{
		gpuNode: {"8xh100-sxm", "4xlocalssd"}, mixedNode: {"8xmi300x", "2xintel-gpu", "2xa100-2xn6000"}, "node3": {"8xh100-sxm"},
	}
}

// placed are the machines that each node is made of now.
var placed = usual()

// placeAll puts the machines of most specs on the nodes.
func placeAll(ctx context.Context) {
	GinkgoHelper()
	for _, node := range h.NodeNames() {
		place(ctx, node, usual()[node]...)
	}
}

// place makes a node be some machines, and returns what they are together.
func place(ctx context.Context, node string, machines ...string) *sim.Machine {
	GinkgoHelper()
	m, err := h.LoadMachine(machines...)
	Expect(err).NotTo(HaveOccurred())
	placeChanged(ctx, node, m, machines...)
	return m
}

// placeChanged makes a node be a machine that has the devices of those that are named. The claims of specs that ended need the devices
// of the machine before until they are gone.
func placeChanged(ctx context.Context, node string, m *sim.Machine, machines ...string) {
	GinkgoHelper()
	endedGone(ctx)
	Expect(h.Place(ctx, node, m)).To(Succeed())
	placed[node] = machines
}

// endedGone waits until the namespaces that are being deleted have no claims. Some end only when their device is gone or is proven to work,
// so it does not wait for long.
func endedGone(ctx context.Context) {
	GinkgoHelper()
	err := h.Poll(ctx, "the claims of ended specs to go", 10*time.Second, func(ctx context.Context) error {
		namespaces, err := h.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range namespaces.Items {
			if ns := &namespaces.Items[i]; ns.DeletionTimestamp != nil {
				claims, err := h.Kube.ResourceV1().ResourceClaims(ns.Name).List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				if len(claims.Items) > 0 {
					return fmt.Errorf("claim %s/%s is there", ns.Name, claims.Items[0].Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		say("the machine changes under a claim that did not end: %v", err)
	}
}

// hostDevices is what the chart is told of the disks: two alike, and two that a claim can name.
func hostDevices() []discover.HostDevice {
	return []discover.HostDevice{
		{Name: "ssd", Directories: []string{"/mnt/disks/ssd[01]"}},
		{Name: "solo", Directories: []string{"/mnt/disks/ssd2"}, ContainerPath: "/scratch"},
		{Name: "kept", Directories: []string{"/mnt/disks/ssd3"}, ContainerPath: "/scratch"},
	}
}

// values are the chart's values of this suite.
func values() harness.Values {
	return h.BaseValues().Merge(harness.Values{
		"hostDevices": hostDevices(), "reconcileInterval": "2s", "health": harness.Values{"interval": "2s"},
		"kernelCaches": harness.Values{"enabled": true},
		"artifacts":    harness.Values{"keepFree": "16Mi"},
		"bitstreams": harness.Values{
			"registries":           harness.Values{"plainHTTP": []string{kernels.Host, kernels.spelled(), kernels.bare.Host}},
			"resolveInterval":      "10s",
			"pullSecretNamespaces": []string{"*"},
		},
		"presets": harness.Values{
			"hostDirectories": []string{"/mnt/disks"}, "configMapNamespaces": []string{configMapNamespace}, "scratch": true,
			"allowedHostPaths": []harness.Values{{"path": teamFiles}, {"path": teamFiles + "/own", "writable": true}, {"path": readOnlyFiles}},
		},
	})
}

// say is a step of a spec in the report.
func say(format string, args ...any) { By(fmt.Sprintf(format, args...)) }

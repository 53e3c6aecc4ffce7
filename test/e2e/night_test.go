// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/fettle-dev/fettle/test/harness"
)

// The specs that make a symptom of docs/user/night.md run the command of that part, and hold what it prints against the page.
// TestNightIsTried of demo wants one for each part.

// userPage is the text of a user's page.
func userPage(name string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(h.Root, "docs", "user", name))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// section is a part of a user's page.
func section(name, title string) string {
	GinkgoHelper()
	_, part, found := strings.Cut(userPage(name), "\n## "+title+"\n")
	Expect(found).To(BeTrue(), "%s has no part %q", name, title)
	part, _, _ = strings.Cut(part, "\n## ")
	return part
}

// shownAtNight is the command of a part of the page for nights, and the lines that the page shows of its output.
func shownAtNight(title string) (command string, out []string) {
	GinkgoHelper()
	_, block, found := strings.Cut(section("night.md", title), "\n```\n$ ")
	Expect(found).To(BeTrue(), "no command under %q", title)
	block, _, _ = strings.Cut(block, "\n```")
	shown := strings.Split(block, "\n")
	return shown[0], shown[1:]
}

// atNight runs the command of a part of the page for nights and returns the lines that it prints. The names are those for which POD, NS and
// NODE stand, in pairs.
func atNight(ctx context.Context, title string, names ...string) []string {
	GinkgoHelper()
	command, _ := shownAtNight(title)
	// The programs are the suite's, and so is the cluster.
	run := exec.CommandContext(ctx, "sh", "-c", strings.NewReplacer(names...).Replace(command))
	run.Env = append(os.Environ(), "KUBECONFIG="+h.Kubeconfig(), "PATH="+strings.Join([]string{
		filepath.Join(h.Root, "dist", "linux_"+goruntime.GOARCH), filepath.Join(h.Cache, "bin"), os.Getenv("PATH"),
	}, string(os.PathListSeparator)))
	out, err := run.Output()
	if run.ProcessState == nil || run.ProcessState.ExitCode() != 3 { // as fettle explain ends where a pod waits
		Expect(err).NotTo(HaveOccurred(), "%s", command)
	}
	return lines(string(out))
}

// columnOf is what a table says in one column, without its head. A table that is not there yet says nothing.
func columnOf(table []string, head string) (values []string) {
	if len(table) == 0 {
		return nil
	}
	at := strings.Index(table[0], head)
	for _, line := range table[1:] {
		if at < 0 || at >= len(line) {
			return nil
		}
		value, _, _ := strings.Cut(line[at:], " ")
		values = append(values, value)
	}
	return values
}

// headOf is the names of a table's columns.
func headOf(table []string) []string {
	if len(table) == 0 {
		return nil
	}
	return strings.Fields(table[0])
}

// explainedAtNight expects that each reason of a refused claim is one that the page leads to.
func explainedAtNight(ctx context.Context, namespace, reason string) {
	GinkgoHelper()
	const title = "ContainerCreating"
	known := section("troubleshooting.md", "The claim cannot be prepared")
	_, shown := shownAtNight(title)
	Eventually(ctx, func(g Gomega) {
		table := atNight(ctx, title, "NS", namespace)
		g.Expect(headOf(table)).To(Equal(headOf(shown)))
		g.Expect(columnOf(table, "REASON")).To(ContainElement(reason))
		for _, told := range columnOf(table, "REASON") {
			g.Expect(known).To(ContainSubstring("`" + told + "`"))
		}
	}).Should(Succeed())
}

// pluginAtNight expects to see the plugin of a node whose pods do not end.
func pluginAtNight(ctx context.Context, node string) {
	GinkgoHelper()
	const title = "Terminating"
	_, shown := shownAtNight(title)
	table := atNight(ctx, title, "NODE", node)
	Expect(table).To(HaveLen(2))
	Expect(headOf(table)[:len(headOf(shown))]).To(Equal(headOf(shown)))
	Expect(columnOf(table, "NODE")).To(ConsistOf(node))
	Expect(columnOf(table, "NAME")).To(ConsistOf(HavePrefix("fettle-kubeletplugin-")))
}

// evictedAtNight expects that the page knows why a pod was evicted.
func evictedAtNight(ctx context.Context, namespace, pod, reason string) {
	GinkgoHelper()
	const title = "Evicted"
	Expect(section("night.md", title)).To(ContainSubstring("`" + reason + "`"))
	_, shown := shownAtNight(title)
	Eventually(ctx, func(g Gomega) {
		table := atNight(ctx, title, "NS", namespace, "POD", pod)
		g.Expect(headOf(table)).To(Equal(headOf(shown)))
		g.Expect(columnOf(table, "REASON")).To(ContainElement(reason))
	}).Should(Succeed())
}

// goneAtNight expects a line for each device with a problem, and that pages explain its reason.
func goneAtNight(ctx context.Context, node string, subjects ...string) {
	GinkgoHelper()
	known := userPage("troubleshooting.md") + userPage("health.md")
	Eventually(ctx, func(g Gomega) {
		told := atNight(ctx, "A device is gone", "NODE", node)
		for _, subject := range subjects {
			g.Expect(told).To(ContainElement(HavePrefix(subject + " ")))
		}
		for _, line := range told {
			words := strings.Fields(line)
			g.Expect(len(words)).To(BeNumerically(">", 2), line)
			g.Expect(known).To(ContainSubstring(strings.TrimSuffix(words[1], ":")), line)
		}
	}).Should(Succeed())
}

// withoutDevicesAtNight expects the page's table of a node without GPUs.
func withoutDevicesAtNight(ctx context.Context, node string) {
	GinkgoHelper()
	const title = "A node has no devices"
	_, shown := shownAtNight(title)
	Eventually(ctx, func(g Gomega) {
		table := atNight(ctx, title, "NODE", node)
		g.Expect(headOf(table)).To(Equal(headOf(shown)))
		g.Expect(columnOf(table, "NAME")).To(ConsistOf(node))
		g.Expect(columnOf(table, "GPUS")).To(ConsistOf("0"))
	}).Should(Succeed())
}

// pendingAtNight expects the line that the page shows, of a pod whose claim names a DeviceClass that there is not.
func pendingAtNight(ctx context.Context, namespace, pod, class string) {
	GinkgoHelper()
	const title = "Pending"
	_, shown := shownAtNight(title)
	Eventually(ctx, func(g Gomega) {
		said := atNight(ctx, title, "NS", namespace, "POD", pod)
		g.Expect(said).NotTo(BeEmpty())
		g.Expect(said[0]).To(Equal(strings.ReplaceAll(shown[0], "gpus.fettle.dev", class)))
	}).Should(Succeed())
	Expect(harness.Namespace).To(Equal("fettle-system"), "the page says it")
}

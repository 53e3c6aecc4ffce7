// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/objects"
)

// What is written for other drivers, and the classes of vendors that it becomes claims for.
func takesOverFromOthers() {
	It("gives GPUs of one vendor by the vendor's class, and never one of another", differs, vendorClasses)
	It("gives GPUs beside a device plugin, and takes one over from it without a restart of the node",
		later("unit tests show each step by itself"), ofNode, movesIn, SpecTimeout(h.Patient(faultLimit)))
	It("runs the examples of other projects that the page says run", later("starts many pods that are alike to Fettle"), ofNode, runsExamples)
}

func vendorClasses(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "eight", spec(request("gpus", "amd.gpu.fettle.dev", count(8))))
	newTemplate(ctx, ns, "nine", spec(request("gpus", "amd.gpu.fettle.dev", count(9))))
	eight := newPod(ctx, ns, "eight", withTemplate("eight"))
	running(ctx, eight)
	for _, r := range results(onlyClaim(ctx, eight)) {
		Expect(r.Device).To(HavePrefix("amd-"))
	}
	eventuallyUnschedulable(ctx, newPod(ctx, ns, "nine", withTemplate("nine")), "cannot allocate")
	if older {
		return
	}
	pod := newPod(ctx, ns, "extended", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"fettle.dev/intel-gpu": resource.MustParse("1")}
	})
	running(ctx, pod)
	got := results(onlyClaim(ctx, pod))
	Expect(got).To(HaveLen(1))
	Expect(got[0].Device).To(HavePrefix("intel-"))
}

// foreignExample is one of the examples in pkg/convert/testdata/examples that the page says runs.
type foreignExample struct {
	name, shape, class, driver, mapped string
	// converted says that it runs after fettle convert, otherwise it runs as it is.
	converted bool
}

// foreignExamples returns the examples of other drivers whose note on the user's page contains need, such as "needs shares". An empty need
// selects the examples that need nothing. Each shape is there once for each class.
func foreignExamples(need string) []foreignExample {
	GinkgoHelper()
	page, err := os.ReadFile(filepath.Join(h.Root, "pkg", "convert", "testdata", "examples", "results.md"))
	Expect(err).NotTo(HaveOccurred())
	list, err := os.ReadFile(filepath.Join(h.Root, "pkg", "convert", "testdata", "examples", "list.txt"))
	Expect(err).NotTo(HaveOccurred())
	row := regexp.MustCompile("(?m)^\\| `([^`]+)`[^|]*\\| runs( after `fettle convert`)? \\|([^|]*)\\|$")
	var found []foreignExample
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		if need == "" && strings.Contains(m[3], "needs ") || !strings.Contains(m[3], need) {
			continue
		}
		for line := range strings.Lines(string(list)) {
			f := append(strings.Fields(line), "")
			if strings.HasPrefix(line, "#") || !strings.HasSuffix("/"+strings.Split(f[1], ",")[0], "/"+strings.TrimPrefix(m[1], "/")) {
				continue
			}
			e := foreignExample{name: m[1], shape: f[3], class: f[4], driver: f[5], mapped: f[6], converted: m[2] != ""}
			same := func(o foreignExample) bool {
				return o.shape == e.shape && o.class == e.class && o.converted == e.converted
			}
			if !slices.ContainsFunc(found, same) {
				found = append(found, e)
			}
		}
	}
	return found
}

func runsExamples(ctx SpecContext) {
	classesOfOthers(ctx)
	Expect(runForeign(ctx, "", "", exampleLook{nodes: wholeNodes})).To(BeNumerically(">", 12), "the page has so many that run")
	if older {
		return
	}
	for _, need := range []string{"needs extended resources", "needs device taints"} {
		Expect(runForeign(ctx, need, "", exampleLook{nodes: wholeNodes})).To(BeNumerically(">=", 1), need)
	}
}

// runForeign runs the examples that need something, on a node or on any, and returns how many there are. only selects some of them.
func runForeign(ctx context.Context, need, node string, look exampleLook, only ...func(foreignExample) bool) int {
	GinkgoHelper()
	shapes, err := txtar.ParseFile(filepath.Join(h.Root, "pkg", "convert", "testdata", "examples", "shapes.txtar"))
	Expect(err).NotTo(HaveOccurred())
	examples := slices.DeleteFunc(foreignExamples(need), func(e foreignExample) bool {
		return slices.ContainsFunc(only, func(is func(foreignExample) bool) bool { return !is(e) })
	})
	podSpec := regexp.MustCompile(`(?m)^( +)containers:$`)
	for _, e := range examples {
		at := slices.IndexFunc(shapes.Files, func(f txtar.File) bool { return f.Name == e.shape+"/in.yaml" })
		Expect(at).NotTo(BeNumerically("<", 0), e.shape)
		say("%s: %s of class %s, converted: %t", e.name, e.shape, e.class, e.converted)
		text := string(shapes.Files[at].Data)
		if node != "" {
			text = podSpec.ReplaceAllString(text, "${1}nodeSelector: {"+corev1.LabelHostname+": "+node+"}\n${0}")
		}
		runExample(ctx, e, text, look)
	}
	return len(examples)
}

// classesOfOthers makes the classes that the page shows, under the names that the examples ask for.
func classesOfOthers(ctx context.Context) {
	GinkgoHelper()
	classes := h.Kube.ResourceV1().DeviceClasses()
	for vendor, extended := range map[string]string{
		"nvidia": "nvidia.com/gpu", "amd": "", "intel": "intel.com/gpu", "example": "example.com/gpu",
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu." + vendor + ".com"}}
		conditions := []string{`device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "gpu"`}
		if vendor != "example" {
			conditions = append(conditions, onVendor(vendor))
		}
		class.Spec.Selectors = objects.Selectors(conditions...)
		if extended != "" {
			class.Spec.ExtendedResourceName = &extended
		}
		_, err := classes.Create(ctx, class, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(classes.Delete(ctx, class.Name, metav1.DeleteOptions{})).To(Succeed()) })
	}
}

// runExample applies an example in a namespace of its own, waits until its pods run with what it asks for, and takes it away.
func runExample(ctx context.Context, e foreignExample, text string, look exampleLook) {
	GinkgoHelper()
	ns := newNamespace(ctx, map[string]string{"resource.kubernetes.io/admin-access": "true"})
	command, err := json.Marshal([]string{"sh", "-c", stay})
	Expect(err).NotTo(HaveOccurred())
	const user = `image: registry\.example/user:1`
	text = strings.NewReplacer("CLASS", e.class, "DRIVER", e.driver).Replace(text)
	text = regexp.MustCompile(`(?m)(- name: before\n)( +)`+user+`$`).ReplaceAllString(text,
		"${1}${2}image: "+image+"\n${2}imagePullPolicy: Never\n${2}command: [\"true\"]")
	text = regexp.MustCompile(`(?m)^( +)`+user+`$`).ReplaceAllStringFunc(text, func(line string) string {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		return fmt.Sprintf("%simage: %s\n%simagePullPolicy: Never\n%scommand: %s", indent, image, indent, indent, command)
	})
	asked := askedBy(text)
	file := filepath.Join(GinkgoT().TempDir(), "example.yaml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	if e.converted {
		args := []string{"convert", "-f", file}
		if e.mapped != "" {
			args = append(args, "--map", e.mapped)
		}
		Expect(os.WriteFile(file, []byte(fettle(ctx, args...)), 0o600)).To(Succeed())
	}
	_, err = h.Kubectl(ctx, "apply", "--namespace", ns, "-f", file)
	Expect(err).NotTo(HaveOccurred())
	Expect(h.Poll(ctx, "the pods of "+e.name, soon, func(ctx context.Context) error { return exampleRuns(ctx, ns) })).To(Succeed())
	checkExample(ctx, e, ns, asked, look)
	_, err = h.Kubectl(ctx, "delete", "--namespace", ns, "--grace-period", "1", "-f", file)
	Expect(err).NotTo(HaveOccurred())
}

// exampleRuns wants every pod of a namespace ready, and as many as its Deployments ask for.
func exampleRuns(ctx context.Context, ns string) error {
	pods, err := h.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := h.Kube.AppsV1().Deployments(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range deployments.Items {
		if d.Status.ReadyReplicas < *d.Spec.Replicas {
			return fmt.Errorf("%d of %d pods of Deployment %s are ready", d.Status.ReadyReplicas, *d.Spec.Replicas, d.Name)
		}
	}
	if len(pods.Items) == 0 {
		return errors.New("there is no pod yet")
	}
	for _, p := range pods.Items {
		if err := h.PodDone(ctx, ns, p.Name, corev1.PodRunning); err != nil {
			return err
		}
	}
	return nil
}

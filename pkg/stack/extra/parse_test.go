// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	namespace = "fettle-drivers"
	exporter  = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter, labels: {app: exporter}}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      containers:
      - name: exporter
        image: registry.example/exporter:${KERNEL}-${OS}
        args: ['--kernel=${KERNEL}', '--literally=$${KERNEL}', '--home=${HOME}', '--config=/etc/config-${PLATFORM}']
        env: [{name: DRIVER, value: '${DRIVER_VERSION}'}]
`
	settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {'${KERNEL}': plain}\n"
)

func pod(spec string) string {
	return "selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {" + spec + ", containers: [{name: a, image: b}]}}"
}

// TestParse: what is read of manifests, and what is refused.
func TestParse(t *testing.T) {
	job := func(spec string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {" + spec + "}"
	}
	set := func(kind, spec string) string {
		return "apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: a}\nspec: {" + pod(spec) + "}"
	}
	meta := func(metadata string) string {
		return "apiVersion: v1\nkind: ServiceAccount\nmetadata: {" + metadata + "}"
	}
	const affinity = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: " +
		"[{key: a, operator: Exists}]}]}}}"
	for _, tc := range []struct{ name, text, want, fault string }{
		{"objects in their order", exporter + "---\n" + settings + "---\n# nothing\n", "ConfigMap settings, DaemonSet exporter each", ""},
		{"keys are no texts", settings, "ConfigMap settings", ""},
		{"our namespace", meta("name: a, namespace: fettle-drivers"), "ServiceAccount a", ""},
		{"a Deployment", set("Deployment", affinity), "Deployment a", ""},
		{"a Job for all", job("template: {spec: {restartPolicy: Never, " + affinity + ", containers: [{name: a, image: b}]}}"), "Job a", ""},
		{
			"a Job for a platform", job("template: {spec: {restartPolicy: Never, containers: [{name: a, image: 'b:${KERNEL}'}]}}"),
			"Job a each", "",
		},
		{"nothing", "# nothing", "", "there is no object"},
		{"a text", "hello", "", "expected an object"},
		{"a list", "[a]", "", "expected an object"},
		{"no YAML", "a: [", "", "line 1: read the object"},
		{"a key twice", "apiVersion: v1\nkind: ConfigMap\nkind: Pod", "", "already set"},
		{"another kind", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}", "", `"Secret" is no kind that a stack makes`},
		{"a pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}", "", "no kind that a stack makes"},
		{
			"rights", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: a}", "",
			"the controller has rights for ConfigMap, Service, ServiceAccount, DaemonSet, Deployment, Job only, in the namespace fettle-drivers",
		},
		{"a list of objects", "apiVersion: v1\nkind: List\nitems: []", "", "no kind that a stack makes"},
		{"another group", "apiVersion: extensions/v1\nkind: DaemonSet\nmetadata: {name: a}", "", "no kind that a stack makes"},
		{"an unknown field", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndate: {}", "", `unknown field "date"`},
		{"another namespace", meta("name: a, namespace: kube-system"), "", "is for the namespace kube-system"},
		{"no name", meta("labels: {a: b}"), "", "metadata.name:"},
		{"a variable in the name", meta("name: 'a-${KERNEL}'"), "", "metadata.name:"},
		{"a long name", meta("name: " + strings.Repeat("a", maxName+1)), "", "longer than 48"},
		{"a made name", meta("name: a, generateName: b"), "", "leave out generateName"},
		{"an owner", meta("name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: a, uid: b}]"), "", "leave out generateName"},
		{"a finalizer", meta("name: a, finalizers: [example.com/a]"), "", "finalizers"},
		{"a label of ours", meta("name: a, labels: {fettle.dev/state: b}"), "", "of Fettle's own"},
		{"an annotation of ours", meta("name: a, annotations: {fettle.dev/retire: ''}"), "", "of Fettle's own"},
		{"a hook", meta("name: a, annotations: {helm.sh/hook: test}"), "", "--no-hooks"},
		{"one twice", settings + "---\n" + settings, "", "line 6: ConfigMap settings is there twice"},
		{"a status", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nstatus: {}", "", "leave status out"},
		{"a node", set("DaemonSet", "nodeName: a"), "", "leave nodeName out"},
		{"nodes of its own", set("DaemonSet", affinity), "", "use a nodeSelector"},
		{"a Deployment for a platform", set("Deployment", "hostname: '${KERNEL}'"), "", "a Deployment cannot be for one platform"},
		{"a Job that goes", job("ttlSecondsAfterFinished: 1, template: {spec: {containers: []}}"), "", "ttlSecondsAfterFinished"},
		{"a Job's selector", job("selector: {}, template: {spec: {containers: []}}"), "", "selector of a Job"},
		{"deep", "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), "", "nested more than"},
		{"too many", strings.Repeat("---\na: b\n", MaxObjects+1), "", "more than 64 objects"},
		{"too long", "# " + strings.Repeat("a", MaxBytes), "", "at most 262144"},
		{"every fault", "a: b\n---\nc: d\n", "", "line 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			manifests, err := Parse(map[string]string{"a.yaml": tc.text}, namespace)
			if (err == nil) != (tc.fault == "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Fatalf("error %v, want %q", err, tc.fault)
			}
			var got []string
			for _, m := range manifests {
				text := m.Kind.Kind + " " + m.Name
				if m.PerPlatform {
					text += " each"
				}
				got = append(got, text)
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("read %q, want %q", got, tc.want)
			}
		})
	}
}

// TestExpanded: aliases that stand for many times their text.
func TestExpanded(t *testing.T) {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: &a " + strings.Repeat("a", 64<<10) + "\n"
	for i := range 20 {
		text += fmt.Sprintf("  a%d: *a\n", i)
	}
	if _, err := Parse(map[string]string{"a": text}, namespace); err == nil || !strings.Contains(err.Error(), "once they are read") {
		t.Errorf("read %d bytes: %v", len(text), err)
	}
}

// TestExpandedBeforeItIsMade: the controller would end before it could refuse a text of the size that is allowed.
func TestExpandedBeforeItIsMade(t *testing.T) {
	const header = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	for name, text := range map[string]string{
		"a long text": header + "data:\n  a: &a " + strings.Repeat("a", 60<<10) + "\n  b: [" + strings.Repeat("*a,", 3000) + "]\n",
		"of each other": header + "a: &a [" + strings.Repeat("x,", 20) + "]\nb: &b [" + strings.Repeat("*a,", 20) + "]\nc: [" +
			strings.Repeat("*b,", 4000) + "]\n",
		"of itself":      header + "a: &a [*a]\n",
		"of itself deep": header + "a: &a {b: {c: *a}}\n",
	} {
		var err error
		allocated := check.Allocated(func() { _, err = Parse(map[string]string{"a": text}, namespace) })
		if err == nil || allocated > 64<<20 {
			t.Errorf("%s: %d bytes took %d MiB: %v", name, len(text), allocated>>20, err)
		}
	}
}

func values() *Values {
	return &Values{
		Platform:      stack.Platform{OS: "ubuntu24.04", KernelVersion: "6.1.0+", Architecture: "amd64"},
		DriverVersion: "580", Suffix: "0123456789",
	}
}

// TestFor: variables are put into texts. A value never changes what an object is, and in images it is a part of a tag.
func TestFor(t *testing.T) {
	manifests, err := Parse(map[string]string{"a": exporter, "b": settings}, namespace)
	if err != nil {
		t.Fatal(err)
	}
	m := manifests[1]
	if !m.PerPlatform || !m.NeedsOS || !m.NeedsVersion || !m.Placed() {
		t.Errorf("noticed %+v", m)
	}
	text, err := json.Marshal(m.For(values()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"image":"registry.example/exporter:6.1.0_-ubuntu24.04"`, `"--kernel=6.1.0+"`, `"--literally=${KERNEL}"`, `"--home=${HOME}"`,
		`"--config=/etc/config-0123456789"`, `"value":"580"`, `"name":"exporter-0123456789"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	v := values()
	v.KernelVersion = "x\"}\n---\nkind: Secret # ${OS}"
	object := m.For(v)
	if diff := cmp.Diff("DaemonSet", object["kind"]); diff != "" || strings.Contains(fmt.Sprint(object), "# ubuntu24.04") {
		t.Errorf("a value changed the object: %v", object)
	}
	if of := manifests[0].For(values()); of["metadata"].(map[string]any)["name"] != "settings" ||
		fmt.Sprint(of["data"]) != "map[${KERNEL}:plain]" {
		t.Errorf("the ConfigMap is %v", of)
	}
	if again := m.For(values()); !strings.Contains(fmt.Sprint(again), "${KERNEL}") || strings.Contains(fmt.Sprint(m.object), "6.1.0+") {
		t.Error("the manifest was changed")
	}
}

// FuzzParse: foreign bytes never panic, and what is read is of a kind and a name that a stack makes.
func FuzzParse(f *testing.F) {
	f.Add(exporter + "---\n" + settings)
	f.Add("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: a, image: 'b:${ARCH}'}]}}}")
	f.Add("a: &a [*a]")
	f.Add("--- {a: 1}\n...\n%YAML 1.2\n")
	f.Add("apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec: {ports: [{port: 1e9999}]}")
	f.Fuzz(func(t *testing.T, text string) {
		manifests, err := Parse(map[string]string{"a": text}, namespace)
		if err != nil {
			return
		}
		for i := range manifests {
			m := &manifests[i]
			object := m.For(values())
			if !slices.Contains(Kinds(), m.Kind) || object["kind"] != m.Kind.Kind || len(validation.IsDNS1123Label(m.NameFor("0123456789"))) > 0 {
				t.Errorf("read %s %q", m.Kind, m.Name)
			}
			if _, err := json.Marshal(object); err != nil {
				t.Error(err)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apiadmission "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// fence is a policy of the chart, in the engine of an API server.
type fence struct {
	policy   admissionregistrationv1.ValidatingAdmissionPolicy
	resource schema.GroupVersionResource
	compiled plugincel.ConditionEvaluator
}

type celExpression struct {
	name, text string
	returns    *cel.Type
}

func (e celExpression) GetName() string          { return e.name }
func (e celExpression) GetExpression() string    { return e.text }
func (e celExpression) ReturnTypes() []*cel.Type { return []*cel.Type{e.returns} }

// newFence compiles a policy that the chart renders with args, for an API server of a version.
func newFence(t *testing.T, of *version.Version, name string, args ...string) *fence {
	t.Helper()
	f := &fence{}
	object := find(t, renderObjects(t, args...), "ValidatingAdmissionPolicy", name)
	check.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &f.policy))
	rule := f.policy.Spec.MatchConstraints.ResourceRules[0]
	f.resource = schema.GroupVersionResource{Group: rule.APIGroups[0], Version: rule.APIVersions[0], Resource: rule.Resources[0]}
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(of))
	check.Must(t, err)
	var declared plugincel.OptionalVariableDeclarations
	for _, v := range f.policy.Spec.Variables {
		variable := celExpression{name: v.Name, text: v.Expression, returns: cel.AnyType}
		if got := compiler.CompileAndStoreVariable(variable, declared, environment.NewExpressions); got.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, got.Error)
		}
	}
	var all []plugincel.ExpressionAccessor
	for _, v := range f.policy.Spec.Validations {
		all = append(all, celExpression{text: v.Expression, returns: cel.BoolType})
	}
	f.compiled = compiler.CompileCondition(all, declared, environment.NewExpressions)
	if errs := f.compiled.CompilationErrors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return f
}

// refuses returns the message by which the policy refuses the controller the change of an object, empty if it lets it pass. Old is nil at
// its creation, and object is nil when it is deleted.
func (f *fence) refuses(t *testing.T, namespace string, object, old map[string]any) string {
	t.Helper()
	request := &admissionv1.AdmissionRequest{Operation: admissionv1.Create, Namespace: namespace}
	request.UserInfo.Username = "system:serviceaccount:" + namespace + ":fettle-controller"
	var now, before runtime.Object
	var kind schema.GroupVersionKind
	if old != nil {
		request.Operation, before = admissionv1.Delete, &unstructured.Unstructured{Object: old}
		kind = before.GetObjectKind().GroupVersionKind()
	}
	if object != nil {
		now = &unstructured.Unstructured{Object: object}
		kind = now.GetObjectKind().GroupVersionKind()
		if old != nil {
			request.Operation = admissionv1.Update
		}
	}
	versioned := &apiadmission.VersionedAttributes{
		Attributes: apiadmission.NewAttributesRecord(now, before, kind, namespace, "", f.resource, "",
			apiadmission.Operation(request.Operation), nil, false, nil),
		VersionedKind: kind, VersionedObject: apiadmission.NewLazyObject(now), VersionedOldObject: apiadmission.NewLazyObject(before),
	}
	results, _, err := f.compiled.ForInput(context.Background(), versioned, request, plugincel.OptionalVariableBindings{}, nil,
		celconfig.RuntimeCELCostBudget)
	check.Must(t, err)
	for i, r := range results {
		if r.Error != nil { // the policy fails closed
			return "error: " + r.Error.Error()
		}
		if r.EvalResult.Value() != true {
			return f.policy.Spec.Validations[i].Message
		}
	}
	return ""
}

// versions are the oldest API server that Fettle supports, and the newest.
func versions() []*version.Version {
	return []*version.Version{version.MajorMinor(1, 34), version.MajorMinor(1, 37)}
}

// jobs are what the controller makes, by the name of the golden file of controller/volumes.
func jobs(t *testing.T) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, name := range []string{"plain", "full"} {
		content, err := os.ReadFile(repository + "/controller/volumes/testdata/" + name + ".yaml")
		check.Must(t, err)
		var object map[string]any
		check.Must(t, yaml.Unmarshal(content, &object))
		out[name] = object
	}
	return out
}

// at returns the map at a path of an object; numbers are places of lists.
func at(t *testing.T, object any, path ...any) map[string]any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object = object.(map[string]any)[step] //nolint:forcetypeassert // or it panics
		case int:
			object = object.([]any)[step] //nolint:forcetypeassert // or it panics
		}
	}
	found, ok := object.(map[string]any)
	if !ok {
		t.Fatalf("%v is %v", path, object)
	}
	return found
}

// fieldNames are the names that the fields of a struct have in JSON.
func fieldNames(of reflect.Type) (out []string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}

const fillImage = "--set=kernelCaches.volumes.enabled=true,kernelCaches.volumes.image.repository=registry.example/fettle," +
	"kernelCaches.volumes.image.tag=v1"

// TestJobFence: the policy takes the Jobs that the controller builds. With the controller's token, stolen, no field can be added to one,
// whichever fields the API has.
func TestJobFence(t *testing.T) {
	for _, of := range versions() {
		f := newFence(t, of, "fettle-controller-jobs", fillImage)
		for name, job := range jobs(t) {
			if why := f.refuses(t, "team", job, nil); why != "" {
				t.Errorf("%s: the %s Job is refused: %s", of, name, why)
			}
		}
		if why := f.refuses(t, "kube-system", jobs(t)["plain"], nil); !strings.Contains(why, "namespaces of Kubernetes' own") {
			t.Errorf("in kube-system: %q", why)
		}
		pod := []any{"spec", "template", "spec"}
		for _, place := range []struct {
			path []any
			of   reflect.Type
			free []string // the user's choice, and what the API server writes
		}{
			{[]any{"spec"}, reflect.TypeFor[batchv1.JobSpec](), []string{
				"activeDeadlineSeconds", "backoffLimit", "completionMode", "podReplacementPolicy", "selector", "suspend", "ttlSecondsAfterFinished",
			}},
			{pod, reflect.TypeFor[corev1.PodSpec](), []string{"affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "tolerations"}},
			{append(slices.Clone(pod), "securityContext"), reflect.TypeFor[corev1.PodSecurityContext](), nil},
			{append(slices.Clone(pod), "containers", 0), reflect.TypeFor[corev1.Container](), []string{"imagePullPolicy"}},
			{append(slices.Clone(pod), "containers", 0, "securityContext"), reflect.TypeFor[corev1.SecurityContext](), nil},
			{append(slices.Clone(pod), "containers", 0, "volumeMounts", 0), reflect.TypeFor[corev1.VolumeMount](), []string{
				"readOnly", "recursiveReadOnly",
			}},
			{append(slices.Clone(pod), "volumes", 1, "emptyDir"), reflect.TypeFor[corev1.EmptyDirVolumeSource](), []string{"sizeLimit"}},
			{append(slices.Clone(pod), "volumes", 0), reflect.TypeFor[corev1.Volume](), nil},
		} {
			for _, field := range append(fieldNames(place.of), "aFieldOfALaterAPI") {
				if field == "" || slices.Contains(place.free, field) {
					continue
				}
				job := jobs(t)["plain"]
				at(t, job, place.path...)[field] = map[string]any{"other": "x"}
				if why := f.refuses(t, "team", job, nil); why == "" {
					t.Errorf("%s: a Job with %v.%s passes", of, place.path, field)
				}
			}
		}
	}
}

// TestJobFenceAttacks: what a stolen token of the controller would write into the fields that a Job has.
func TestJobFenceAttacks(t *testing.T) {
	f := newFence(t, versions()[0], "fettle-controller-jobs", fillImage)
	container := []any{"spec", "template", "spec", "containers", 0}
	set := func(field string, value any, path ...any) func(map[string]any) {
		return func(job map[string]any) { at(t, job, path...)[field] = value }
	}
	arg := func(i int, value string) func(map[string]any) {
		return func(job map[string]any) { at(t, job, container...)["args"].([]any)[i] = value } //nolint:forcetypeassert // or it panics
	}
	volume := func(name string, source map[string]any) func(map[string]any) {
		return func(job map[string]any) {
			spec := at(t, job, "spec", "template", "spec")
			source["name"] = name
			spec["volumes"] = append(spec["volumes"].([]any), source) //nolint:forcetypeassert // or it panics
		}
	}
	projected := func(source map[string]any) map[string]any {
		return map[string]any{"projected": map[string]any{"sources": []any{source}}}
	}
	for name, change := range map[string]func(map[string]any){
		"prints a Secret from a variable": func(job map[string]any) {
			at(t, job, container...)["env"] = []any{map[string]any{"name": "S", "valueFrom": map[string]any{
				"secretKeyRef": map[string]any{"name": "db", "key": "password"},
			}}}
			at(t, job, container...)["command"] = []any{"/fettle", "$(S)"}
		},
		"runs another program":                set("command", []any{"/bin/sh"}, container...),
		"runs another command":                arg(1, "shell"),
		"reads variables by an argument":      arg(2, "registry.example/$(S)@sha256:aa"),
		"has a flag taken for an image":       arg(2, "--plain-http@sha256:aa"),
		"writes elsewhere":                    arg(3, "/tmp"),
		"adds lines to an argument":           arg(2, "a@sha256:aa\n/cache"),
		"takes another image":                 set("image", "registry.example/fettle:v2", container...),
		"tells of a file of the container":    set("terminationMessagePath", "/credentials/00.json", container...),
		"takes another pull policy of files":  set("terminationMessagePolicy", "File", container...),
		"mounts where programs are":           set("mountPath", "/usr", append(slices.Clone(container), "volumeMounts", 0)...),
		"mounts all of a Secret":              volume("credentials", projected(map[string]any{"secret": map[string]any{"name": "db"}})),
		"mounts another key of a Secret":      volume("credentials", projected(secretItem("password"))),
		"mounts a token":                      volume("credentials", projected(map[string]any{"serviceAccountToken": map[string]any{}})),
		"mounts a ConfigMap":                  volume("credentials", projected(map[string]any{"configMap": map[string]any{"name": "c"}})),
		"mounts a Secret as a volume":         volume("credentials", map[string]any{"secret": map[string]any{"secretName": "db"}}),
		"mounts a path of the node":           volume("cache", map[string]any{"hostPath": map[string]any{"path": "/"}}),
		"mounts a path of the node as memory": volume("tmp", map[string]any{"hostPath": map[string]any{"path": "/"}}),
		"runs as many":                        set("parallelism", int64(1000), "spec"),
		"takes pods of another Job":           set("manualSelector", true, "spec"),
		"is before all pods":                  set("priorityClassName", "system-node-critical", "spec", "template", "spec"),
		"is another scheduler's":              set("schedulerName", "mine", "spec", "template", "spec"),
		"answers for the webhook":             set("app.kubernetes.io/name", "fettle", "spec", "template", "metadata", "labels"),
		"has devices by an annotation": func(job map[string]any) {
			at(t, job, "spec", "template", "metadata")["annotations"] = map[string]any{"cdi.k8s.io/x": "fettle.dev/gpu=a"}
		},
		"has two containers": func(job map[string]any) {
			spec := at(t, job, "spec", "template", "spec")
			spec["containers"] = append(spec["containers"].([]any), maps.Clone(at(t, job, container...))) //nolint:forcetypeassert // or it panics
		},
	} {
		job := jobs(t)["plain"]
		change(job)
		if why := f.refuses(t, "team", job, nil); why == "" || strings.HasPrefix(why, "error") {
			t.Errorf("a Job that %s: %q", name, why)
		}
	}
}

func secretItem(key string) map[string]any {
	return map[string]any{"secret": map[string]any{"name": "db", "items": []any{map[string]any{"key": key, "path": "00.json"}}}}
}

// TestCheckFence: the policies take the pods and templates of checks that the controller builds. With its token, stolen, nobody's device is
// opened by another program, with the admin access that checks have.
func TestCheckFence(t *testing.T) {
	read := func(name string) map[string]any {
		content, err := os.ReadFile(repository + "/controller/stacks/testdata/" + name + ".yaml")
		check.Must(t, err)
		var object map[string]any
		check.Must(t, yaml.Unmarshal(content, &object))
		return object
	}
	const enabled = "--set=selfTest.namespace=checks,kubeletPlugin.image.repository=registry.example/plugin,kubeletPlugin.image.tag=v1"
	for _, of := range versions() {
		pods := newFence(t, of, "fettle-controller-pods", enabled)
		templates := newFence(t, of, "fettle-controller-resourceclaimtemplates", enabled)
		if why := pods.refuses(t, "checks", read("pod"), nil) + templates.refuses(t, "checks", read("template"), nil); why != "" {
			t.Errorf("%s: a check is refused: %s", of, why)
		}
		if why := pods.refuses(t, "team", read("pod"), nil); !strings.Contains(why, "in the namespace of the self-test") {
			t.Errorf("%s: a pod elsewhere: %q", of, why)
		}
		added := []string{ // by the API server and its plugins
			"affinity", "dnsPolicy", "imagePullSecrets", "nodeSelector", "preemptionPolicy", "priority", "priorityClassName", "restartPolicy",
			"schedulerName", "serviceAccount", "terminationGracePeriodSeconds", "tolerations",
		}
		for _, field := range append(fieldNames(reflect.TypeFor[corev1.PodSpec]()), "aFieldOfALaterAPI") {
			pod := read("pod")
			at(t, pod, "spec")[field] = map[string]any{"other": "x"}
			if why := pods.refuses(t, "checks", pod, nil); why == "" && !slices.Contains(added, field) {
				t.Errorf("%s: a pod with %s passes", of, field)
			}
		}
		for _, field := range append(fieldNames(reflect.TypeFor[corev1.Container]()), "aFieldOfALaterAPI") {
			pod := read("pod")
			at(t, pod, "spec", "containers", 0)[field] = map[string]any{"other": "x"}
			free := []string{"imagePullPolicy", "name", "resources", "terminationMessagePolicy"}
			if why := pods.refuses(t, "checks", pod, nil); why == "" && !slices.Contains(free, field) {
				t.Errorf("%s: a container with %s passes", of, field)
			}
		}
		for _, field := range append(fieldNames(reflect.TypeFor[resourceapi.DeviceClaim]()), "aFieldOfALaterAPI") {
			template := read("template")
			at(t, template, "spec", "spec", "devices")[field] = []any{}
			if why := templates.refuses(t, "checks", template, nil); why == "" {
				t.Errorf("%s: a template with %s passes", of, field)
			}
		}
		template := read("template")
		delete(at(t, template, "spec", "spec", "devices", "requests", 0, "exactly"), "adminAccess")
		if why := templates.refuses(t, "checks", template, nil); why == "" {
			t.Errorf("%s: a template that takes a device from others passes", of)
		}
	}
}

// TestPresetFence: with the controller's token, stolen, no ClusterDevicePreset can be made or changed but to what is shipped.
func TestPresetFence(t *testing.T) {
	content, err := os.ReadFile(chartDir + "/files/presets.yaml")
	check.Must(t, err)
	shipped := func(name string) map[string]any {
		var specs map[string]any
		check.Must(t, yaml.Unmarshal(content, &specs))
		return map[string]any{
			"apiVersion": "fettle.dev/v1alpha1", "kind": "ClusterDevicePreset", "spec": specs[name],
			"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": "fettle-controller"}},
		}
	}
	for _, of := range versions() {
		f := newFence(t, of, "fettle-controller-clusterdevicepresets")
		for _, name := range []string{"amd.fettle.dev", "intel.fettle.dev", "nvidia.fettle.dev", "opae.fettle.dev", "xrt.fettle.dev"} {
			older := shipped(name)
			at(t, older, "spec")["priority"] = int64(-5)
			if why := f.refuses(t, "", shipped(name), nil) + f.refuses(t, "", shipped(name), older); why != "" {
				t.Errorf("%s: %s as it is shipped: %s", of, name, why)
			}
			if why := f.refuses(t, "", older, shipped(name)); !strings.Contains(why, "only as they are shipped") {
				t.Errorf("%s: %s with another priority: %q", of, name, why)
			}
		}
		for what, test := range map[string]struct {
			want   string
			change func(map[string]any)
		}{
			"mounts all programs": {"only as they are shipped", func(p map[string]any) {
				at(t, p, "spec")["mounts"] = []any{map[string]any{"hostPath": "/usr", "containerPath": "/h", "readOnly": false}}
			}},
			"sets LD_PRELOAD": {"only as they are shipped", func(p map[string]any) {
				at(t, p, "spec")["env"] = []any{map[string]any{"name": "LD_PRELOAD", "value": "/x"}}
			}},
			"is for all devices": {"only as they are shipped", func(p map[string]any) { delete(at(t, p, "spec"), "deviceSelector") }},
			"has another name":   {"that it ships", func(p map[string]any) { at(t, p, "metadata")["name"] = "mine" }},
			"has another's spec": {"only as they are shipped", func(p map[string]any) { at(t, p, "metadata")["name"] = "xrt.fettle.dev" }},
			"has no label":       {"that it ships", func(p map[string]any) { delete(at(t, p, "metadata"), "labels") }},
		} {
			preset := shipped("amd.fettle.dev")
			test.change(preset)
			if why := f.refuses(t, "", preset, nil); !strings.Contains(why, test.want) {
				t.Errorf("%s: a preset that %s: %q", of, what, why)
			}
		}
		edited := shipped("amd.fettle.dev")
		delete(at(t, edited, "metadata"), "labels")
		if why := f.refuses(t, "", shipped("amd.fettle.dev"), edited); !strings.Contains(why, "that it ships") {
			t.Errorf("%s: an administrator's preset is taken over: %q", of, why)
		}
	}
}

// TestNodeFence: with the controller's token, stolen, no node gets a taint that ends pods, but with the keys that the administrator lists.
func TestNodeFence(t *testing.T) {
	const note = "fettle.dev/taints"
	node := func(noted string, taints ...string) map[string]any {
		list := []any{}
		for _, text := range taints {
			key, rest, _ := strings.Cut(text, "=")
			value, effect, _ := strings.Cut(rest, ":")
			list = append(list, map[string]any{"key": key, "value": value, "effect": effect})
		}
		return map[string]any{
			"apiVersion": "v1", "kind": "Node", "spec": map[string]any{"taints": list},
			"metadata": map[string]any{"name": "a", "annotations": map[string]any{note: noted}},
		}
	}
	const (
		ends   = "puts taints with the effect NoExecute"
		puts   = "notes the taints that it puts on a node"
		stays  = "example.com/there=a:NoExecute"
		passes = ""
	)
	tests := map[string]struct {
		had, gets []string
		want      string
		listed    string // what it is where the key is listed
	}{
		"NoSchedule":           {nil, []string{"example.com/gpu=a:NoSchedule"}, passes, passes},
		"NoExecute":            {nil, []string{"example.com/gpu=a:NoExecute"}, ends, passes},
		"beside one that was":  {[]string{stays}, []string{stays, "example.com/gpu=a:NoExecute"}, ends, passes},
		"one that was stays":   {[]string{stays}, []string{stays, "example.com/gpu=a:NoSchedule"}, passes, passes},
		"one that was goes":    {[]string{stays}, []string{"example.com/gpu=a:NoSchedule"}, passes, passes},
		"another effect":       {[]string{"example.com/gpu=a:NoSchedule"}, []string{"example.com/gpu=a:NoExecute"}, ends, passes},
		"another value":        {[]string{stays}, []string{"example.com/there=b:NoExecute"}, ends, ends},
		"a key like a listed":  {nil, []string{"example.com/gpu2=a:NoExecute"}, ends, ends},
		"a value like a key":   {nil, []string{"gpu=example.com:NoExecute"}, ends, ends},
		"one of Kubernetes'":   {nil, []string{"node.kubernetes.io/x=:NoExecute"}, puts, puts},
		"without a value":      {nil, []string{"example.com/gpu=:NoExecute"}, ends, passes},
		"none of NoExecute is": {[]string{stays}, nil, passes, passes},
	}
	for _, of := range versions() {
		for args, listed := range map[string]bool{"": false, "--set=partitions.noExecuteTaintKeys={example.com/team,example.com/gpu}": true} {
			f := newFence(t, of, "fettle-controller-nodes", strings.Fields(args)...)
			for what, test := range tests {
				want := test.want
				if listed {
					want = test.listed
				}
				why := f.refuses(t, "", node(strings.Join(test.gets, ","), test.gets...), node(strings.Join(test.had, ","), test.had...))
				if !strings.Contains(why, want) || (want == "") != (why == "") {
					t.Errorf("%s, %q: %s: %q, want %q", of, args, what, why, want)
				}
			}
		}
		const taint = "example.com/gpu=a:NoSchedule"
		switchedOff := newFence(t, of, "fettle-controller-nodes", "--set=drivers.enabled=true,partitions.nodes=false")
		if why := switchedOff.refuses(t, "", node(taint, taint), node("")); !strings.Contains(why, puts) {
			t.Errorf("%s: with partitions.nodes false a taint is put: %q", of, why)
		}
	}
}

// TestClassFence: with the controller's token, stolen, no DeviceClass hands out other devices than it is for, or whole PCI functions, and
// none loses what an administrator wrote.
func TestClassFence(t *testing.T) {
	content, err := os.ReadFile(chartDir + "/files/classes.yaml")
	check.Must(t, err)
	shipped := func(name string) map[string]any {
		var specs map[string]any
		check.Must(t, yaml.Unmarshal(content, &specs))
		return map[string]any{
			"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "spec": specs[name],
			"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": "fettle-controller"}},
		}
	}
	narrowed := func(name string) map[string]any {
		class := shipped(name)
		at(t, class, "spec")["config"] = []any{map[string]any{"opaque": map[string]any{
			"driver": "fettle.dev", "parameters": map[string]any{"policy": map[string]any{"allowedNamespaces": []any{"team-a"}}},
		}}}
		return class
	}
	older := func(class map[string]any) map[string]any {
		at(t, class, "spec")["selectors"] = []any{map[string]any{"cel": map[string]any{"expression": "false"}}}
		return class
	}
	const onlyShipped = "only what is shipped, and none that are switched off"
	const gpu, mig, vfio = "gpu.fettle.dev", "mig.gpu.fettle.dev", "vfio.gpu.fettle.dev"
	for _, of := range versions() {
		closed, open := newFence(t, of, "fettle-controller-deviceclasses"),
			newFence(t, of, "fettle-controller-deviceclasses", "--set=deviceClasses.vfio=true")
		for what, test := range map[string]struct {
			f        *fence
			now, old map[string]any
			want     string
		}{
			"made":                            {closed, shipped(gpu), nil, ""},
			"of a part":                       {closed, shipped(mig), nil, ""},
			"of VFIO, switched on":            {open, shipped(vfio), nil, ""},
			"of VFIO, switched off":           {closed, shipped(vfio), nil, onlyShipped},
			"renewed":                         {closed, narrowed(gpu), older(narrowed(gpu)), ""},
			"of VFIO, narrowed and renewed":   {open, narrowed(vfio), older(narrowed(vfio)), ""},
			"with a policy of the attacker's": {closed, narrowed(gpu), nil, onlyShipped},
			"that lets all namespaces in":     {closed, shipped(gpu), narrowed(gpu), onlyShipped},
			"of VFIO, that lets all in":       {open, shipped(vfio), narrowed(vfio), onlyShipped},
			"of other devices":                {closed, older(shipped(gpu)), shipped(gpu), onlyShipped},
			"deleted":                         {closed, nil, narrowed(mig), "only DeviceClasses that are switched off"},
			"deleted that is switched off":    {closed, nil, shipped(vfio), ""},
		} {
			if why := test.f.refuses(t, namespace, test.now, test.old); why != test.want && (test.want == "" || !strings.Contains(why, test.want)) {
				t.Errorf("%s: a class %s: %q, want %q", of, what, why, test.want)
			}
		}
		for name, extended := range map[string]string{gpu: "example.com/gpu", mig: "fettle.dev/gpu"} {
			class := shipped(name)
			at(t, class, "spec")["extendedResourceName"] = extended
			if why := closed.refuses(t, namespace, class, nil); !strings.Contains(why, onlyShipped) {
				t.Errorf("%s: %s as %s: %q", of, name, extended, why)
			}
		}
	}
}

// TestDefinitionFence: with the controller's token, stolen, the CustomResourceDefinitions that are shipped can be written, and none with
// another version, a conversion webhook or another name.
func TestDefinitionFence(t *testing.T) {
	files, err := os.ReadDir(repository + "/deployments/crds")
	check.Must(t, err)
	f := newFence(t, versions()[0], "fettle-controller-customresourcedefinitions")
	seen := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".yaml") {
			continue
		}
		seen++
		read := func() map[string]any {
			content, err := os.ReadFile(repository + "/deployments/crds/" + file.Name())
			check.Must(t, err)
			var object map[string]any
			check.Must(t, yaml.Unmarshal(content, &object))
			return object
		}
		if why := f.refuses(t, "", read(), nil) + f.refuses(t, "", read(), read()); why != "" {
			t.Errorf("%s: %s", file.Name(), why)
		}
		for what, change := range map[string]func(map[string]any){
			"has a conversion webhook": func(d map[string]any) { at(t, d, "spec")["conversion"] = map[string]any{"strategy": "Webhook"} },
			"has a second version": func(d map[string]any) {
				spec := at(t, d, "spec")
				second := maps.Clone(at(t, d, "spec", "versions", 0))
				second["name"] = "v1"
				spec["versions"] = append(spec["versions"].([]any), second) //nolint:forcetypeassert // or it panics
			},
			"has another name":             func(d map[string]any) { at(t, d, "metadata")["name"] = "others.fettle.dev" },
			"has another plural":           func(d map[string]any) { at(t, d, "spec", "names")["plural"] = "others" },
			"is of another group":          func(d map[string]any) { at(t, d, "spec")["group"] = "example.com" },
			"has its status with the rest": func(d map[string]any) { delete(at(t, d, "spec", "versions", 0), "subresources") },
		} {
			d := read()
			change(d)
			if why := f.refuses(t, "", d, nil); !strings.Contains(why, "Fettle's controller writes only") {
				t.Errorf("%s that %s: %q", file.Name(), what, why)
			}
		}
	}
	if seen != 10 {
		t.Errorf("%d definitions, want 10", seen)
	}
}

// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	repository = "../.."
	release    = "fettle-system"
	allowed    = "testdata/allowed.txt"
)

// namespaces are those in which targets of a namespace are tried: a tenant's, Kubernetes' own and Fettle's.
func namespaces() []string { return []string{"team-a", "kube-system", release} }

// TestAPI tries with the token of each account of the chart to write objects that are not its own, in every way that the API has, as dry
// runs. What is allowed is the table testdata/allowed.txt, and each line has a reason there.
func TestAPI(t *testing.T) {
	found := map[string][]string{} // the versions in which a line is allowed
	versions := []string{"newest", "1.34"}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			flags := map[string]string{}
			if version != "newest" {
				flags["emulated-version"] = version
			}
			c := start(t, flags)
			for _, a := range accounts() {
				for _, line := range c.walk(t, a) {
					found[line] = append(found[line], version)
				}
			}
		})
	}
	if (t.Failed() && !check.Updating()) || len(found) == 0 {
		return
	}
	var table strings.Builder
	for _, line := range slices.Sorted(maps.Keys(found)) {
		why := reasonOf(line)
		if why == "" {
			t.Errorf("allowed without a reason: %s", line)
		}
		if len(found[line]) < len(versions) {
			line += " (" + found[line][0] + " only)"
		}
		fmt.Fprintf(&table, "%s: %s\n", line, why)
	}
	check.Golden(t, allowed, table.String())
}

// reasonOf is why a line may be allowed, "" if there is no reason.
func reasonOf(line string) string {
	for _, r := range reasons() {
		if matches(r.pattern, line) {
			return r.why
		}
	}
	return ""
}

// matches compares a text with a pattern in which * is any text.
func matches(pattern, text string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	for ok {
		if matches(rest, text) {
			return true
		}
		if text == "" {
			return false
		}
		text = text[1:]
	}
	return false
}

// TestReasonsAreUsed: a reason for what is not allowed any more goes.
func TestReasonsAreUsed(t *testing.T) {
	lines := tableLines(t)
	for _, r := range reasons() {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, ": "+r.why) }) {
			t.Errorf("nothing is allowed by the reason %q for %q: take it out", r.why, r.pattern)
		}
	}
}

// account is a service account of the chart, with the node that its token is bound to.
type account struct{ name, node string }

func accounts() []account {
	return []account{
		{"fettle-controller", ""},
		{"fettle-webhook", ""},
		{"fettle-kubeletplugin", "node1"},
		{"fettle-kubeletplugin", ""},
		{"fettle-uninstall", ""},
		{"fettle-mps", ""},
		{"default", ""},
	}
}

func (a account) String() string {
	if a.name == "fettle-kubeletplugin" && a.node == "" {
		return a.name + " without a node"
	}
	return a.name
}

// cluster is an API server with the chart.
type cluster struct {
	config *rest.Config
	admin  dynamic.Interface
	mapper meta.RESTMapper
	// settled is true once something was allowed for as long as policies may take to count.
	settled bool
}

// start installs the chart with all that adds rights, and makes the targets.
func start(t *testing.T, flags map[string]string) *cluster {
	t.Helper()
	c := &cluster{config: apitest.Start(t, flags)}
	c.config.QPS = -1
	crds := envtest.CRDInstallOptions{Paths: []string{repository + "/deployments/crds"}, ErrorIfPathMissing: true}
	_, err := envtest.InstallCRDs(c.config, crds)
	check.Must(t, err)
	c.admin, err = dynamic.NewForConfig(c.config)
	check.Must(t, err)
	clients, err := kubernetes.NewForConfig(c.config)
	check.Must(t, err)
	groups, err := restmapper.GetAPIGroupResources(clients.Discovery())
	check.Must(t, err)
	c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	for _, name := range []string{"team-a", release} {
		c.create(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n", "")
	}
	helm := exec.CommandContext(t.Context(), check.Helm(t, repository), "template", "fettle", repository+"/deployments/helm/fettle",
		"--namespace="+release, "--set=drivers.enabled=true,kernelCaches.enabled=true,kernelCaches.volumes.enabled=true,mps.enabled=true",
		"--set=bitstreams.pullSecretNamespaces={*},presets.configMapNamespaces={*},uninstall.force=true,uninstall.deleteCRDs=true",
		"--set=nvidia.enabled=true,fpga.programming=true,fpga.bindingConditions=true",
		"--set=kernelCaches.volumes.image.repository=registry.example/fettle,kernelCaches.volumes.image.tag=v1")
	chart, err := helm.Output()
	check.Must(t, err)
	for _, document := range manifest.Split(chart) {
		c.create(t, string(document.Text), "")
	}
	for _, namespace := range namespaces() {
		c.create(t, grantedRole, namespace)
	}
	for _, target := range targets() {
		if target.there || target.createOnly {
			continue
		}
		for _, namespace := range c.places(t, target) {
			c.create(t, target.manifest, namespace)
		}
	}
	return c
}

// create makes an object of a manifest, unless it is there, with its status.
func (c *cluster) create(t *testing.T, text, namespace string) {
	t.Helper()
	o := parse(t, text)
	if o == nil {
		return
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	mapping := c.mapping(t, o)
	if mapping == nil {
		return
	}
	client := at(c.admin, mapping.Resource, o.GetNamespace())
	made, err := client.Create(t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	if err != nil {
		t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
	}
	if status, has := o.Object["status"]; has && o.GetKind() == "ResourceClaim" {
		made.Object["status"] = status
		_, err := client.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		check.Must(t, err)
	}
}

// mapping is the resource of an object's kind, nil if the server has no such kind.
func (c *cluster) mapping(t *testing.T, o *unstructured.Unstructured) *meta.RESTMapping {
	t.Helper()
	kind := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return nil
	}
	check.Must(t, err)
	return mapping
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	check.Must(t, yaml.Unmarshal([]byte(text), &o.Object))
	if len(o.Object) == 0 {
		return nil
	}
	return o
}

// at is the client of a resource in a namespace, or of the cluster.
func at(client dynamic.Interface, resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return client.Resource(resource)
	}
	return client.Resource(resource).Namespace(namespace)
}

// places are the namespaces in which a target is tried, or "" for the cluster.
func (c *cluster) places(t *testing.T, x target) []string {
	t.Helper()
	if x.in != "" {
		return []string{x.in}
	}
	o := parse(t, x.manifest)
	if o.GetKind() == "Eviction" {
		return namespaces()
	}
	mapping := c.mapping(t, o)
	if mapping == nil || mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return []string{""}
	}
	return namespaces()
}

// walk tries all targets of the resources that an account has any right to, and returns what is allowed.
func (c *cluster) walk(t *testing.T, a account) []string {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + release + ":" + a.name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + release, "system:authenticated"},
	}
	if a.node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {a.node}}
	}
	client, err := dynamic.NewForConfig(config)
	check.Must(t, err)
	clients, err := kubernetes.NewForConfig(config)
	check.Must(t, err)
	var lines []string
	known := map[string]bool{}
	for _, x := range targets() {
		known[x.resource] = true
		for _, namespace := range c.places(t, x) {
			for verb, try := range c.attempts(t, client, x, namespace) {
				line := fmt.Sprintf("%s | %s | %s | %s", a, verb, x.resource, x.what)
				if namespace != "" {
					line += " | in " + namespace
				}
				if c.allows(t, line, try) {
					lines = append(lines, line)
				}
			}
		}
	}
	for _, resource := range written(t, clients) {
		if !known[resource] && c.serves(resource) {
			t.Errorf("%s may write %s, and there is no target of that kind: add one", a, resource)
		}
	}
	return lines
}

// serves says whether the server has the resource.
func (c *cluster) serves(resource string) bool {
	plural, group, _ := strings.Cut(resource, ".")
	plural, _, _ = strings.Cut(plural, "/")
	_, err := c.mapper.ResourceFor(schema.GroupVersionResource{Group: group, Resource: plural})
	return err == nil
}

// written lists what the caller may write in any of the namespaces.
func written(t *testing.T, clients kubernetes.Interface) []string {
	t.Helper()
	out := map[string]bool{}
	for _, namespace := range append(namespaces(), "fettle-selftest", "fettle-drivers") {
		review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(context.Background(), &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
		}, metav1.CreateOptions{})
		check.Must(t, err)
		for _, rule := range review.Status.ResourceRules {
			writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
			if !writes {
				continue
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if strings.HasPrefix(resource, "selfsubject") || resource == "resourceclaims/driver" {
						continue // what every user may ask, and what is no resource: a right that the API server asks for beside another
					}
					out[strings.TrimSuffix(resource+"."+group, ".")] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

type attempt func(ctx context.Context) error

// attempts are all ways to write a target, as dry runs.
func (c *cluster) attempts(t *testing.T, client dynamic.Interface, x target, namespace string) map[string]attempt {
	t.Helper()
	resource, subs := c.resource(t, x)
	own, admin := at(client, resource, namespace), at(c.admin, resource, namespace)
	o := parse(t, x.manifest)
	o.SetNamespace(namespace)
	dry := []string{metav1.DryRunAll}
	out := map[string]attempt{}
	create := func(verb string, o *unstructured.Unstructured) {
		out[verb] = func(ctx context.Context) error {
			_, err := own.Create(ctx, o, metav1.CreateOptions{DryRun: dry}, subs...)
			return err
		}
	}
	switch {
	case len(subs) > 0 && x.createOnly: // an eviction
		out["create"] = func(ctx context.Context) error {
			o := o.DeepCopy()
			unstructured.SetNestedStringSlice(o.Object, dry, "deleteOptions", "dryRun") //nolint:errcheck // the manifest has none
			_, err := own.Create(ctx, o, metav1.CreateOptions{DryRun: dry}, subs...)
			return err
		}
		return out
	case len(subs) == 0 && !x.changeOnly && !x.there:
		create("create", o)
		if o.GetName() != "" && o.GetKind() != "CustomResourceDefinition" {
			generated := o.DeepCopy()
			generated.SetGenerateName(o.GetName() + "-")
			generated.SetName("")
			create("create with generateName", generated)
		}
	}
	if x.createOnly {
		return out
	}
	patch := x.patch
	if patch == "" {
		patch = note
	}
	out["patch"] = func(ctx context.Context) error {
		_, err := own.Patch(ctx, o.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry}, subs...)
		return err
	}
	changed := func(ctx context.Context) (*unstructured.Unstructured, error) {
		return admin.Patch(ctx, o.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry}, subs...)
	}
	out["update"] = func(ctx context.Context) error {
		o, err := changed(ctx)
		if err != nil {
			return err
		}
		_, err = own.Update(ctx, o, metav1.UpdateOptions{DryRun: dry}, subs...)
		return err
	}
	out["apply"] = func(ctx context.Context) error {
		o, err := changed(ctx)
		if err != nil {
			return err
		}
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		_, err = own.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{DryRun: dry, Force: true, FieldManager: "attack"}, subs...)
		return err
	}
	if len(subs) > 0 || x.changeOnly {
		return out
	}
	out["delete"] = func(ctx context.Context) error {
		return own.Delete(ctx, o.GetName(), metav1.DeleteOptions{DryRun: dry})
	}
	out["deletecollection"] = func(ctx context.Context) error {
		return own.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dry}, metav1.ListOptions{})
	}
	return out
}

// resource is that of a target, and its subresource.
func (c *cluster) resource(t *testing.T, x target) (schema.GroupVersionResource, []string) {
	t.Helper()
	full, group, _ := strings.Cut(x.resource, ".")
	plural, sub, found := strings.Cut(full, "/")
	resource, err := c.mapper.ResourceFor(schema.GroupVersionResource{Group: group, Resource: plural})
	check.Must(t, err)
	if !found {
		return resource, nil
	}
	return resource, []string{sub}
}

// allows says whether the server allows an attempt. Policies count only a moment after they were made, so what is allowed and is not in the
// table is tried again.
func (c *cluster) allows(t *testing.T, line string, try attempt) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		switch {
		case refusal(err):
			return false
		case err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil:
			t.Errorf("%s: neither allowed nor refused: %v", line, err)
			return false
		}
		if c.settled || reasonOf(line) != "" {
			return true
		}
		select {
		case <-ctx.Done():
			c.settled = true
			return true
		case <-tick.C:
		}
	}
}

// patience is how long policies may take to count.
const patience = 10 * time.Second

// refusal says whether RBAC or a policy refused.
func refusal(err error) bool {
	if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
		return true
	}
	// The last is of 1.34, which has no perDeviceNodeSelection.
	return apierrors.IsInvalid(err) && slices.ContainsFunc(
		[]string{"ValidatingAdmissionPolicy", ": Forbidden: ", "exactly one of `nodeName`"},
		func(text string) bool { return strings.Contains(err.Error(), text) })
}

// tableLines are those of the table.
func tableLines(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(allowed)
	check.Must(t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

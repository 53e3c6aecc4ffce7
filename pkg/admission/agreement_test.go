// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	crds "github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// served is what the API server says of an object of a kind, without an API server.
type served struct {
	openAPI validation.SchemaValidator
	schema  *schema.Structural
	rules   *cel.Validator
}

// definition reads the definition of a kind, and wants it to be one that an API server takes.
func definition(t *testing.T, plural string) *served {
	t.Helper()
	text, err := crds.Files.ReadFile(v1alpha1.GroupVersion.Group + "_" + plural + ".yaml")
	check.Must(t, err)
	var d apiextensionsv1.CustomResourceDefinition
	check.Must(t, yaml.Unmarshal(text, &d))
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&d)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
	d.Status.StoredVersions = []string{d.Spec.Versions[0].Name}
	var internal apiextensions.CustomResourceDefinition
	check.Must(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&d, &internal, nil))
	if faults := definitions.ValidateCustomResourceDefinition(t.Context(), &internal); len(faults) > 0 {
		t.Fatalf("an API server refuses the definition of %s: %v", plural, faults.ToAggregate())
	}
	var props apiextensions.JSONSchemaProps
	check.Must(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		d.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil))
	s := &served{}
	s.schema, err = schema.NewStructural(&props)
	check.Must(t, err)
	s.openAPI, _, err = validation.NewSchemaValidator(&props)
	check.Must(t, err)
	s.rules = cel.NewValidator(s.schema, true, celconfig.PerCallLimit)
	return s
}

// accepts says whether the API server takes an object with a spec.
func (s *served) accepts(ctx context.Context, spec string) bool {
	var object map[string]any
	if json.Unmarshal([]byte(`{"apiVersion":"fettle.dev/v1alpha1","kind":"K","metadata":{"name":"n"},"spec":`+spec+`}`), &object) != nil {
		return false
	}
	if len(validation.ValidateCustomResource(nil, object, s.openAPI)) > 0 {
		return false
	}
	faults, _ := s.rules.Validate(ctx, field.NewPath("root"), s.schema, object, nil, celconfig.RuntimeCELCostBudget)
	return len(faults) == 0
}

// accepted says whether the webhook, "fettle validate" and admission take an opaque configuration.
func accepted(config string) bool {
	read, faults := v1alpha1.DecodeConfig([]byte(config), field.NewPath("parameters"))
	return len(faults) == 0 && len(read.Validate(true, field.NewPath("parameters"))) == 0
}

// judgedTwice is a field of an object that is judged when the object is made, and again by what uses its value.
type judgedTwice struct {
	early func(value string) bool
	late  func(value string) error
	// good are values that both take, from which others are made; bad are values that were once taken early and refused late.
	good, bad []string
}

// quoted is a value in JSON.
func quoted(value string) string {
	text, _ := json.Marshal(value)
	return string(text)
}

const someDigest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func judgedFields(t *testing.T) map[string]judgedTwice {
	t.Helper()
	object := func(plural, format string) func(string) bool {
		kind := definition(t, plural)
		return func(value string) bool { return kind.accepts(t.Context(), fmt.Sprintf(format, quoted(value))) }
	}
	config := func(format string) func(string) bool {
		return func(value string) bool { return accepted(fmt.Sprintf(format, quoted(value))) }
	}
	reference := func(value string) error {
		_, err := artifact.ParseReference(value)
		return err
	}
	mount := func(value string) error {
		_, err := (&kernelcache.Cache{Type: kernelcache.Generic}).Plan(value)
		return err
	}
	arch := func(backend string) func(string) error {
		return func(value string) error {
			_, _, err := kernelcache.ParseArch(backend, value)
			return err
		}
	}
	images := []string{
		"registry.example/team/cache:v1", "registry.example:5000/a/b-c__d.e" + someDigest, "docker.io/library/busybox:1.0" + someDigest,
		"localhost/x", "10.0.0.1:65535/x:" + strings.Repeat("t", 128), "docker.io/" + strings.Repeat("x", 255),
	}
	noImages := []string{
		"registry.example:99999/x:v1", "registry.example:0/x:v1", "registry.example:65536/x", "registry.example/" + strings.Repeat("x", 256),
		"registry.example/x@sha256:" + strings.Repeat("0", 64),
	}
	paths := []string{"/mnt/cache", "/root/.triton/cache", "/home/é x/.cache", "/var/cache/fettle", "/opt/" + strings.Repeat("a", 251)}
	noPaths := []string{
		"/etc/cache", "/etc", "/usr", "/var/run/x", "/run", "/mnt/../etc", "/mnt/./x", "/mnt/\u202e", "/mnt/\u00a0", "/mnt/a\x7fb",
		"/mnt/" + strings.Repeat("é", 250),
	}
	target := `{"image":"registry.example/x:v1","compatibility":{"targets":[{"backend":"%s","arch":%%s}]}}`
	archs := []string{"90", "sm_90", "sm_90a", "sm_100f", "compute_80", "gfx942", "gfx90a", "gfx1100", "gfx942:sramecc+:xnack-"}
	return map[string]judgedTwice{
		"GPUKernelCache image": {object("gpukernelcaches", `{"image":%s}`), reference, images, noImages},
		"ClusterGPUKernelCache image": {
			object("clustergpukernelcaches", `{"workloadNamespaces":["*"],"image":%s}`), reference, images, noImages,
		},
		"FPGABitstream image":        {object("fpgabitstreams", `{"image":%s}`), reference, images, noImages},
		"ClusterFPGABitstream image": {object("clusterfpgabitstreams", `{"namespaces":["*"],"image":%s}`), reference, images, noImages},
		"GPUKernelCache mount.path": {
			object("gpukernelcaches", `{"image":"registry.example/x:v1","mount":{"path":%s}}`), mount, paths, noPaths,
		},
		"GPUKernelCache targets, cuda": {object("gpukernelcaches", fmt.Sprintf(target, "cuda")), arch(kernelcache.CUDA), archs[:5], archs[5:]},
		"GPUKernelCache targets, hip":  {object("gpukernelcaches", fmt.Sprintf(target, "hip")), arch(kernelcache.HIP), archs[5:], archs[:5]},
		"GPUConfig mountPath": {
			config(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[{"name":"c","mountPath":%s}]}`), mount, paths, noPaths,
		},
		"FPGAConfig bitstream.ref": {
			config(`{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":{"ref":%s}}`), reference,
			[]string{"registry.example/team/nlb0" + someDigest, "docker.io/library/x" + someDigest, "localhost:5000/x" + someDigest},
			append([]string{"registry.example:99999/x" + someDigest}, noImages...),
		},
	}
}

// hostFileFields are fields of a bitstream that an administrator staged on the nodes. That there is no such file is said of the node.
func hostFileFields(t *testing.T) map[string]judgedTwice {
	t.Helper()
	kind, root := definition(t, "clusterfpgabitstreams"), t.TempDir()
	of := func(format string, late func(value string) error, good, bad []string) judgedTwice {
		return judgedTwice{
			func(value string) bool {
				return kind.accepts(t.Context(), `{"namespaces":["*"],"hostFile":{`+fmt.Sprintf(format, quoted(value))+`}}`)
			}, late, good, bad,
		}
	}
	opens := func(name string) error {
		if _, err := region.OpenHostFile(root, name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	inStore := func(store, id string) error { return opens(path.Join(store, strings.Repeat("0", 32), id+".aocx")) }
	parses := func(digest string) error {
		_, err := artifact.ParseDigest(digest)
		return err
	}
	paths := []string{"/srv/a.gbs", "/srv/intel.com/fpga", "/a-b/c_d/e=f@g+h", "/" + strings.Repeat("a", 255)}
	noPaths := []string{"/", "a", "/a/", "/a//b", "/a/../b", "/./a", "/a b", "/" + strings.Repeat("a", 256), "/a/." + strings.Repeat("b", 300)}
	ids := []string{strings.Repeat("0a", 16), strings.Repeat("0a", 20)}
	return map[string]judgedTwice{
		"ClusterFPGABitstream hostFile.path": of(`"path":%s,"digest":"`+someDigest[1:]+`"`, opens, paths, noPaths),
		"ClusterFPGABitstream hostFile.store": of(`"store":%s,"id":"`+ids[0]+`"`,
			func(v string) error { return inStore(v, ids[0]) }, paths, noPaths),
		"ClusterFPGABitstream hostFile.id": of(`"store":"/srv","id":%s`, func(v string) error { return inStore("/srv", v) }, ids,
			[]string{"", "..", "a/b", strings.ToUpper(ids[0])}),
		"ClusterFPGABitstream hostFile.digest": of(`"path":"/srv/a","digest":%s`, parses, []string{someDigest[1:]},
			[]string{"", "sha256:" + strings.Repeat("0", 64), "sha512:" + strings.Repeat("a", 128), "sha256:" + strings.Repeat("A", 64)}),
	}
}

// TestEarlyAndLateAgree: what the API server, the webhook and "fettle validate" take, nothing refuses later that uses the value: such a
// refusal would come on a node, after a pod was placed there.
func TestEarlyAndLateAgree(t *testing.T) {
	random := seed.New(t)
	fields := judgedFields(t)
	maps.Copy(fields, presetFields(t))
	maps.Copy(fields, trustFields(t))
	maps.Copy(fields, hostFileFields(t))
	for _, name := range slices.Sorted(maps.Keys(fields)) { // in one order, as the seed says
		f := fields[name]
		taken := 0
		try := func(value string) {
			if !f.early(value) {
				return
			}
			taken++
			if err := f.late(value); err != nil {
				t.Errorf("%s %q is taken when the object is made, and refused later: %v", name, value, err)
			}
		}
		for _, value := range f.good {
			before := taken
			if try(value); taken == before {
				t.Errorf("%s %q is refused", name, value)
			}
		}
		for _, value := range f.bad {
			try(value)
		}
		for range 400 {
			try(seed.Worse(random, f.good))
		}
	}
}

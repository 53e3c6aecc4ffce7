// SPDX-License-Identifier: Apache-2.0

// Package large makes objects of which one field is as large as the API server takes it, and looks how much of them a program keeps.
package large

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	crds "github.com/fettle-dev/fettle/deployments/crds"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	// size is that of a text. Labels, owners and finalizers of an object may be as large as the object, which is a megabyte and a half.
	size = 300_000
	// little is what may be kept of the object around it.
	little = 64 << 10
)

// KeepsLittle fills each text of an object that its definition does not bound, one at a time, and wants little of it to be kept. Nobody but
// controllers writes a status, and the API server some of the metadata.
func KeepsLittle(t *testing.T, object client.Object, keep func(any) (any, error)) {
	t.Helper()
	kind := reflect.TypeOf(object).Elem()
	d := definitionOf(t, kind.Name())
	var paths []string
	visit(reflect.New(kind).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	filled := 0
	for _, path := range paths {
		if strings.HasPrefix(path, ".status") || byServer(path) || d.bounds(path) {
			continue
		}
		filled++
		large := reflect.New(kind)
		visit(large.Elem(), "", func(at string, text reflect.Value) {
			if at == path {
				text.SetString(strings.Repeat("a", size))
			}
		})
		kept, err := keep(large.Interface())
		check.Must(t, err)
		if data, err := json.Marshal(kept); err != nil || len(data) > little {
			t.Errorf("%s: %d bytes are kept of one with %d in %s (%v)", kind.Name(), len(data), size, path, err)
		}
	}
	if filled < 10 {
		t.Errorf("%s: only %d fields were filled", kind.Name(), filled)
	}
}

// Paged reads from another reader, and wants lists of a kind that tenants make to be asked for in pages of no more than so many objects.
func Paged(t *testing.T, reader client.Reader, most int64) client.Reader {
	t.Helper()
	return pagedReader{Reader: reader, t: t, most: most}
}

type pagedReader struct {
	client.Reader
	t    *testing.T
	most int64
}

// List lists.
func (r pagedReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	switch list.(type) {
	case *corev1.PodList, *appsv1.DaemonSetList, *resourceapi.ResourceClaimList, *resourceapi.ResourceClaimTemplateList,
		*v1alpha1.FPGABitstreamList, *v1alpha1.GPUKernelCacheList, *v1alpha1.DevicePresetList:
		if o.Limit == 0 || o.Limit > r.most {
			r.t.Errorf("%T: %d objects are asked for at once, want no more than %d", list, o.Limit, r.most)
		}
	}
	return r.Reader.List(ctx, list, options...)
}

// Unstructured has what keeps unstructured objects of Fettle's kinds keep one.
func Unstructured(keep func(any) (any, error)) func(any) (any, error) {
	return func(object any) (any, error) {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(reflect.TypeOf(object).Elem().Name()))
		return keep(u)
	}
}

// byServer are fields that the API server writes, or of which it knows all values.
func byServer(path string) bool {
	return slices.Contains([]string{
		".kind", ".apiVersion", ".metadata.name", ".metadata.namespace", ".metadata.uid", ".metadata.resourceVersion",
		".spec.accessModes[]", ".spec.storageClassName",
	}, path)
}

// visit calls look with each text that a value has or may have, and its path. What is above a text that look sets is made.
func visit(v reflect.Value, path string, look func(path string, text reflect.Value)) {
	switch v.Interface().(type) {
	case metav1.Time, metav1.MicroTime, metav1.Duration, resource.Quantity:
		return
	}
	made := func(t reflect.Type, path string) reflect.Value {
		into := reflect.New(t).Elem()
		visit(into, path, look)
		return into
	}
	switch v.Kind() {
	case reflect.String:
		look(path, v)
	case reflect.Struct:
		fields(v, path, look)
	case reflect.Pointer:
		if into := made(v.Type().Elem(), path); !into.IsZero() {
			v.Set(into.Addr())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if text := made(reflect.TypeFor[string](), path); text.Len() > 0 {
				v.SetBytes([]byte(strconv.Quote(text.String())))
			}
		} else if into := made(v.Type().Elem(), path+"[]"); !into.IsZero() {
			v.Set(reflect.Append(v, into))
		}
	case reflect.Map:
		key, into := made(v.Type().Key(), path+"{key}"), made(v.Type().Elem(), path+"{}")
		if !key.IsZero() || !into.IsZero() {
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, into)
		}
	default: // no text
	}
}

func fields(v reflect.Value, path string, look func(string, reflect.Value)) {
	for i := range v.NumField() {
		switch name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); {
		case name != "" && name != "-":
			visit(v.Field(i), path+"."+name, look)
		case v.Type().Field(i).Anonymous || v.Type() == reflect.TypeFor[runtime.RawExtension]():
			visit(v.Field(i), path, look)
		}
	}
}

// definition is that of a kind of Fettle's; nil for those of Kubernetes.
type definition struct {
	schema *apiextensionsv1.JSONSchemaProps
}

func definitionOf(t *testing.T, kind string) *definition {
	t.Helper()
	text, err := crds.Files.ReadFile(v1alpha1.GroupVersion.Group + "_" + strings.ToLower(kind) + "s.yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	check.Must(t, err)
	var d apiextensionsv1.CustomResourceDefinition
	check.Must(t, yaml.Unmarshal(text, &d))
	return &definition{d.Spec.Versions[0].Schema.OpenAPIV3Schema}
}

// bounds says whether the API server takes no long text at a path: because of the schema, or of a rule.
func (d *definition) bounds(path string) bool {
	if d == nil {
		return false
	}
	at := d.schema
	for name := range strings.SplitSeq(strings.NewReplacer("[]", ".[]", "{key}", ".{key}", "{}", ".{}").Replace(path)[1:], ".") {
		for _, rule := range at.XValidations {
			if name == "[]" && strings.Contains(rule.Rule, "s.name.size() <= ") || strings.Contains(rule.Rule, "self[k].size() <= ") {
				return true
			}
		}
		switch name {
		case "[]":
			at = at.Items.Schema
		case "{}":
			at = at.AdditionalProperties.Schema
		default:
			next, has := at.Properties[name]
			if !has { // a key of a map, or a field of the metadata
				return false
			}
			at = &next
		}
	}
	return at.MaxLength != nil || at.Enum != nil
}

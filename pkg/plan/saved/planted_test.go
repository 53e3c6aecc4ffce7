// SPDX-License-Identifier: Apache-2.0

package saved_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/saved"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/seed"
)

// planter writes a name of its own into every text.
type planter struct{ planted int }

// plant fills a value to a depth, so that every field of every type in it has a text. A text is a word, or what a structured name is like.
func (p *planter) plant(v reflect.Value, depth int) {
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return
	}
	switch v.Kind() { //nolint:exhaustive // what objects of the API have
	case reflect.String:
		p.planted++
		forms := []string{"acme-%d", "acme-%d.example/acme", "ACME_%d", "a/acme-%d", "requests.acme-%d", `device.driver == "acme-%d"`}
		v.SetString(fmt.Sprintf(forms[p.planted%len(forms)], p.planted))
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			p.plant(v.Elem(), depth-1)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(`{"acme":"acme"}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			p.plant(v.Index(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range 6 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			p.plant(key, depth-1)
			if i == 0 { // a name that another driver may use, too
				key.SetString("productName")
			}
			p.plant(value, depth-1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				p.plant(v.Field(i), depth-1)
			}
		}
	case reflect.Int64:
		v.SetInt(1)
	}
}

// TestRedactHidesWhatIsPlanted: a name that somebody puts into any field of any object of a snapshot, known to this version or not, is not
// in the redacted one.
func TestRedactHidesWhatIsPlanted(t *testing.T) {
	p := &planter{}
	var s plan.Snapshot
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Slice {
			continue
		}
		for range 2 {
			o := reflect.New(v.Field(i).Type().Elem().Elem())
			p.plant(o.Elem(), 14)
			v.Field(i).Set(reflect.Append(v.Field(i), o))
		}
	}
	if p.planted < 5000 {
		t.Fatalf("only %d names planted", p.planted)
	}
	saved.Redact(t.Context(), s)
	planted := regexp.MustCompile(`(?i).{0,60}acme.{0,20}`)
	for i := range v.NumField() {
		text, err := json.Marshal(v.Field(i).Interface())
		if err != nil {
			t.Fatal(err)
		}
		if found := planted.FindAllString(string(text), 5); found != nil {
			t.Errorf("%s: %q", v.Type().Field(i).Name, found)
		}
	}
}

// expressions compare what is replaced by order, by pattern and by hash, and some fail or cannot be read.
func expressions(attribute, value string) []string {
	at := fmt.Sprintf("device.attributes[%q].%s", "gpu.example.com", attribute)
	return []string{
		at + " == " + fmt.Sprintf("%q", value), at + ".startsWith(" + fmt.Sprintf("%q", value[:1]) + ")", at + ` > "g"`,
		at + `.matches("[0-4]$")`, "!(" + at + fmt.Sprintf(" in [%q, \"x\"])", value), `device.driver.contains("example")`, "true", "false",
		fmt.Sprintf(`"%s" in device.attributes["gpu.example.com"]`, attribute), at + " ==", `device.attributes["gpu.example.com"].nothing == 1`,
		fmt.Sprintf(`"%s" in device.attributes["gpu.example.com"] && %s.endsWith("%s")`, attribute, at, value[len(value)-1:]),
	}
}

// TestRedactedPlansTheSameWithAnySelector adds random selectors to the snapshots of the plans' tests.
func TestRedactedPlansTheSameWithAnySelector(t *testing.T) {
	random := seed.New(t)
	placed, refused := 0, 0
	for range 8 {
		for name, s := range snapshots(t) {
			addSelectors(random, s)
			redacted := saved.Trim(s)
			saved.Redact(t.Context(), redacted)
			redacted = read(t, write(t, redacted))
			want, got := shape(report(t, s), s), shape(report(t, redacted), redacted)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: the plan of the redacted snapshot differs (-original +redacted):\n%s", name, diff)
			}
			for _, pod := range want {
				if strings.Contains(pod, " on ") {
					placed++
				} else {
					refused++
				}
			}
		}
	}
	if placed < 20 || refused < 20 {
		t.Errorf("%d pods had a node and %d had none: want enough of both", placed, refused)
	}
}

// addSelectors gives some requests selectors by an attribute that some devices of the snapshot have.
func addSelectors(random *rand.Rand, s plan.Snapshot) {
	attribute, value := "uuid", "GPU-0"
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			for name, a := range slice.Spec.Devices[i].Attributes {
				if a.StringValue != nil && *a.StringValue != "" && random.IntN(3) == 0 {
					attribute, value = string(name), *a.StringValue
				}
			}
		}
	}
	add := func(spec *resourceapi.ResourceClaimSpec) {
		for i := range spec.Devices.Requests {
			if r := spec.Devices.Requests[i].Exactly; r != nil && random.IntN(2) == 0 {
				choices := expressions(attribute, value)
				r.Selectors = append(r.Selectors, objects.Selectors(choices[random.IntN(len(choices))])...)
			}
		}
	}
	for _, o := range s.Claims {
		if o.Status.Allocation == nil {
			add(&o.Spec)
		}
	}
	for _, o := range s.Templates {
		add(&o.Spec.Spec)
	}
}

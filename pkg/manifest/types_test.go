// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	strictjson "sigs.k8s.io/json"
)

// TestWrongType: whatever decodes, the words are for people, and have no type of Go's.
func TestWrongType(t *testing.T) {
	type inner struct {
		Text   map[string]string `json:"text"`
		Number int64             `json:"number"`
		Yes    *bool             `json:"yes"`
		List   []string          `json:"list"`
		Object *inner            `json:"object"`
	}
	for value, want := range map[string]string{
		`{"text":{"a":true}}`: "got true or false, want text: YAML takes y, n, ",
		`{"text":{"a":1.5}}`:  "got a number, want text: put the number into quotes",
		`{"text":{"a":[]}}`:   "got a list, want text",
		`{"number":"a"}`:      "got text, want a number",
		`{"number":1e99}`:     "got a number, want a number",
		`{"yes":{}}`:          "got an object, want true or false",
		`{"list":"a"}`:        "got text, want a list",
		`{"object":7}`:        "got a number, want an object",
	} {
		for name, decode := range map[string]func([]byte, any) error{
			"encoding/json": json.Unmarshal,
			"sigs.k8s.io/json": func(data []byte, into any) error {
				_, err := strictjson.UnmarshalStrict(data, into)
				return err
			},
		} {
			_, message, ok := WrongType(fmt.Errorf("wrapped: %w", decode([]byte(value), &inner{})))
			if !ok || !strings.HasPrefix(message, want) || strings.Contains(message, "int64") {
				t.Errorf("%s of %s: %q, %t, want %q", name, value, message, ok, want)
			}
		}
	}
	field, _, _ := WrongType(json.Unmarshal([]byte(`{"object":{"number":"a"}}`), &inner{}))
	if field != "object.number" {
		t.Errorf("field %q", field)
	}
	wrong := json.Unmarshal([]byte(`{"number":"a"}`), &inner{})
	all := WithoutTypes(errors.Join(wrong, errors.New("another"), json.Unmarshal([]byte(`[]`), &inner{})))
	if want := "number: got text, want a number\nanother\ngot a list, want an object"; all.Error() != want {
		t.Errorf("got %q, want %q", all, want)
	}
	if _, _, ok := WrongType(errors.New("another")); ok {
		t.Error("another error is of a type")
	}
}

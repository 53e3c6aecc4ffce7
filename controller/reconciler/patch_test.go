// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"testing"

	"github.com/fettle-dev/fettle/controller/reconciler"
)

// TestMetadataPatch: what is not named is not in the patch, and what is to go is null.
func TestMetadataPatch(t *testing.T) {
	for _, test := range []struct {
		version             string
		labels, annotations reconciler.Named
		want                string
	}{
		{"", nil, reconciler.Named{}.Set("a", "b"), `{"metadata":{"annotations":{"a":"b"}}}`},
		{"7", nil, reconciler.Named{}.Set("a", "").Set("b", "c"), `{"metadata":{"resourceVersion":"7","annotations":{"a":null,"b":"c"}}}`},
		{"", reconciler.Named{}.Set("a", ""), nil, `{"metadata":{"labels":{"a":null}}}`},
	} {
		patch, err := reconciler.MetadataPatch(test.version, test.labels, test.annotations)
		if err != nil {
			t.Fatal(err)
		}
		data, err := patch.Data(nil)
		if err != nil || string(data) != test.want {
			t.Errorf("%s, %v, want %s", data, err, test.want)
		}
	}
}

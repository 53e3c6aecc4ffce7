// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// TestKindsAgree: every kind of device has a row, every kind of configuration is of one, and what is built in holds without any.
func TestKindsAgree(t *testing.T) {
	var configs []string
	for _, kind := range device.Kinds() {
		row, ok := rowOf(kind)
		if !ok {
			t.Errorf("kind %s has no row in kindRows: see docs/design/adding.md", kind)
			continue
		}
		configs = append(configs, row.config)
		e := builtIn(kind)
		if e.GPU == nil && e.FPGA == nil && e.Host == nil && kind != device.KindAccelerator { // it has a policy alone
			t.Errorf("nothing is built in for kind %s", kind)
		}
	}
	slices.Sort(configs)
	if want := v1alpha1.ConfigKinds(); !slices.Equal(configs, want) {
		t.Errorf("rows are for the configurations %v, the API has %v", configs, want)
	}
}

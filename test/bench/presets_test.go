// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// TestPresets measures for real: it needs no cluster.
func TestPresets(t *testing.T) {
	var out bytes.Buffer
	b := &bench{report: newReport(&out), progress: io.Discard, begin: time.Now()}
	check.Must(t, b.measurePresets())
	all := lines(t, out.Bytes())
	if len(all) != 1 || all[0]["name"] != presetSpecClaim || all[0]["met"] != true {
		t.Errorf("%v", all)
	}
}

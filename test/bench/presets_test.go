// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"time"
)

// TestPresets measures for real: it needs no cluster.
func TestPresets(t *testing.T) {
	var out bytes.Buffer
	b := &bench{report: newReport(&out), fast: t.TempDir(), progress: io.Discard, begin: time.Now()}
	must(t, b.measurePresets(t.Context()))
	values := map[string]float64{}
	for lines := json.NewDecoder(&out); lines.More(); {
		var f struct {
			Name, Reason string
			Value        *float64
		}
		must(t, lines.Decode(&f))
		if f.Value == nil {
			t.Errorf("%s: %s", f.Name, f.Reason)
			continue
		}
		values[f.Name] = *f.Value
	}
	if v := values["preset.spec.claim"]; v <= 0 || v > targetClaimSpec {
		t.Errorf("a claim's own spec has %v bytes, want at most %d", v, targetClaimSpec)
	}
	if values["preset.spec.shared"] < 2000 || values["preset.resolve.p50"] <= 0 || values["preset.rescan.inline_over_shared"] <= 1 {
		t.Errorf("%v", values)
	}
	t.Log(values)
}

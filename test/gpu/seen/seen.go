// SPDX-License-Identifier: Apache-2.0

// Package seen has what test/gpu/run wrote on machines with a card (docs/design/hardware.md).
package seen

import (
	"embed"
	"encoding/json"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

//go:embed *.json
var files embed.FS

// Discovery reads what was discovered on a machine, "h100" or "h200", into a struct with some of the fields Report (nvml.Report) and
// Inventory (discover.Inventory).
func Discovery(t testing.TB, card string, facts any) {
	t.Helper()
	data, err := files.ReadFile(card + ".json")
	check.Must(t, err)
	var run struct {
		Parts []struct {
			Name     string
			Findings struct{ Facts json.RawMessage }
		}
	}
	check.Must(t, json.Unmarshal(data, &run))
	for i := range run.Parts {
		if run.Parts[i].Name == "discovery" {
			check.Must(t, json.Unmarshal(run.Parts[i].Findings.Facts, facts))
			return
		}
	}
	t.Fatalf("%s.json has no discovery", card)
}

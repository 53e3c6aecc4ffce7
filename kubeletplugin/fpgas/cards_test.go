// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/check"
)

// TestCardsNotReadYet: a file that the disk does not give when the plugin starts is not replaced by what the machine shows: the regions
// that it hides then are on their cards all the same, once the file is read. A file that says nothing is replaced.
func TestCardsNotReadYet(t *testing.T) {
	shown := []device.Device{{Name: "port0", Region: &fpga.Region{Card: "card-a"}}}
	hidden := map[string]string{"port1": "card-a"}
	path := filepath.Join(t.TempDir(), cardsFile)
	check.Must(t, os.Mkdir(path, 0o700)) // cannot be read as a file
	c := openCards(path)
	if found := c.note(t.Context(), shown); len(found) > 0 {
		t.Errorf("hidden regions %v of a file that cannot be read", found)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		t.Fatalf("what could not be read was replaced: %v, %v", info, err)
	}
	check.Must(t, os.Remove(path), os.WriteFile(path, []byte(`{"port0":"card-b","port1":"card-a"}`), 0o600))
	if diff := cmp.Diff(hidden, c.note(t.Context(), shown)); diff != "" {
		t.Errorf("hidden regions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(hidden, openCards(path).note(t.Context(), shown)); diff != "" {
		t.Errorf("hidden regions of the next process (-want +got):\n%s", diff)
	}
	check.Must(t, os.WriteFile(path, []byte(`{"port0`), 0o600))
	openCards(path).note(t.Context(), shown)
	if found := openCards(path).note(t.Context(), nil); found["port0"] != "card-a" {
		t.Errorf("after a file that says nothing: %v", found)
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestStatusListsPresets: as many as there is room for; the others are counted.
func TestStatusListsPresets(t *testing.T) {
	in := statusInput{snapshot: nodefixture.Snapshot(t, "empty"), now: time.Now()}
	for i := range v1alpha1.MaxNodePresets + 1 {
		in.presets = append(in.presets, v1alpha1.NodePreset{Name: fmt.Sprint(i), Claims: 1})
	}
	many := nodeStatus(in)
	n := len(many.Presets)
	if diff := cmp.Diff(in.presets[:n], many.Presets); diff != "" || many.Rest == nil || n+int(many.Rest.PresetCount) != len(in.presets) {
		t.Errorf("%d listed (-want +got), the rest %+v:\n%s", n, many.Rest, diff)
	}
	in.presets = nil
	if got := nodeStatus(in).Presets; got != nil {
		t.Errorf("listed %v", got)
	}
}

// TestRecords: a claim whose record cannot be understood, or is gone, has none, and hides none of another claim.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	store, err := record.Open(disk.OS{}, dir)
	check.Must(t, err)
	for _, uid := range []string{"u1", "u2"} {
		check.Must(t, store.Create(&record.Record{Namespace: "team-a", Name: uid, UID: uid, Phase: record.Prepared}))
	}
	check.Must(t, os.WriteFile(filepath.Join(dir, "claims", "u5.json"), []byte("garbage"), 0o600))
	r := &Reporter{ReporterConfig: ReporterConfig{Records: store}}
	found, err := r.records([]string{"u1", "u5", "gone", "u2"})
	check.Must(t, err)
	var names []string
	for _, r := range found {
		names = append(names, r.UID)
	}
	if diff := cmp.Diff([]string{"u1", "u2"}, names); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package claim_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/claim"
)

func TestDeviceKeys(t *testing.T) {
	share := "s"
	keys := map[claim.DeviceKey]bool{
		claim.KeyOf("d", "p", "x", nil): true, claim.KeyOf("d", "p", "x", &share): true,
		claim.KeyOf("d", "p", "y", nil): true, claim.KeyOf("d", "q", "x", nil): true,
	}
	if diff := cmp.Diff(4, len(keys)); diff != "" {
		t.Error(diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package kubeletstate writes kubelet's list of prepared claims as kubelet does (kubernetes/pkg/kubelet/cm/dra/state/checkpoint.go).
package kubeletstate

import (
	"encoding/json"
	"hash/crc32"
	"testing"
)

// Version is the version that kubelet writes.
const Version = "checkpoint.dra.kubelet.k8s.io/v1"

// claimInfo has the members of kubelet's own ClaimInfoState.
type claimInfo struct {
	ClaimUID, ClaimName, Namespace string
	PodUIDs                        map[string]struct{}
	DriverState                    map[string]any
}

// File returns the content of a dra_manager_state of some version with claims of these UIDs.
func File(t testing.TB, version string, uids ...string) []byte {
	t.Helper()
	list := []claimInfo{}
	for _, uid := range uids {
		list = append(list, claimInfo{ClaimUID: uid, ClaimName: "claim-" + uid, Namespace: "team-a", PodUIDs: map[string]struct{}{"pod": {}}})
	}
	data, err := json.Marshal(map[string]any{"kind": "DRACheckpoint", "apiVersion": version, "ClaimInfoStateList": list})
	if err != nil {
		t.Fatal(err)
	}
	return Checkpoint(t, string(data))
}

// Checkpoint returns the file around some data: the data as text, and their checksum.
func Checkpoint(t testing.TB, data string) []byte {
	t.Helper()
	out, err := json.Marshal(map[string]any{"Data": data, "Checksum": crc32.ChecksumIEEE([]byte(data))})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

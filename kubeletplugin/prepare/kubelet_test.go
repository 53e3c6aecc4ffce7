// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"encoding/json"
	"hash/crc32"
	"os"
)

// kubeletHolds writes kubelet's state as kubelet of this release does: the claims that its pods need.
func (s *site) kubeletHolds(uids ...string) {
	s.t.Helper()
	must(s.t, os.WriteFile(s.KubeletState, kubeletState("checkpoint.dra.kubelet.k8s.io/v1", uids...), 0o600))
}

// claimInfo has the members of kubelet's own ClaimInfoState.
type claimInfo struct {
	ClaimUID, ClaimName, Namespace string
	PodUIDs                        map[string]struct{}
	DriverState                    map[string]any
}

func kubeletState(version string, uids ...string) []byte {
	list := []claimInfo{}
	for _, uid := range uids {
		list = append(list, claimInfo{ClaimUID: uid, ClaimName: "claim-" + uid, Namespace: "team-a", PodUIDs: map[string]struct{}{"pod": {}}})
	}
	data, err := json.Marshal(map[string]any{"kind": "DRACheckpoint", "apiVersion": version, "ClaimInfoStateList": list})
	if err != nil {
		panic(err)
	}
	return checkpoint(string(data))
}

// checkpoint is the outer half of kubelet's file.
func checkpoint(data string) []byte {
	out, err := json.Marshal(map[string]any{"Data": data, "Checksum": crc32.ChecksumIEEE([]byte(data))})
	if err != nil {
		panic(err)
	}
	return out
}

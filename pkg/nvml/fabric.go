// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"regexp"
	"slices"
)

// Fabric is how far a GPU is in the fabric of NVLink switches, and which one that is (nvmlDeviceGetGpuFabricInfo).
type Fabric struct {
	// State is one of the states below.
	State string `json:"state"`
	// ClusterUUID is the fabric's, where it reaches beyond the machine. Only a GPU in the state FabricCompleted has one.
	ClusterUUID string `json:"clusterUUID,omitempty"`
	// CliqueID is that of the GPUs of a cluster that can reach each other's memory. Other clusters have cliques of the same ids.
	CliqueID uint32 `json:"cliqueID,omitempty"`
}

// The states of a GPU in its fabric. NVLink can be used in FabricCompleted only.
const (
	FabricNotStarted = "notStarted"
	FabricInProgress = "inProgress"
	FabricCompleted  = "completed"
	FabricFailed     = "failed"
)

// Clique names the clique as NVIDIA's label nvidia.com/gpu.clique does, so that no two clusters have cliques of one name. Empty: the fabric
// ends with the machine, or is not ready.
func (f *Fabric) Clique() string {
	if f == nil || f.ClusterUUID == "" {
		return ""
	}
	return fmt.Sprintf("%s.%d", f.ClusterUUID, f.CliqueID)
}

// Settled reports whether no GPU is on its way into its fabric. A GPU that is changes without the kernel saying so.
func (r Report) Settled() bool {
	return !slices.ContainsFunc(r.Devices, func(d Device) bool {
		return d.Fabric != nil && (d.Fabric.State == FabricNotStarted || d.Fabric.State == FabricInProgress)
	})
}

//nolint:gochecknoglobals // a constant that Go cannot express as one
var uuidText = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (f *Fabric) validate() error {
	switch {
	case f == nil:
		return nil
	case !slices.Contains([]string{FabricNotStarted, FabricInProgress, FabricCompleted, FabricFailed}, f.State):
		return fmt.Errorf("state: %q is none", f.State)
	case f.ClusterUUID != "" && !uuidText.MatchString(f.ClusterUUID):
		return fmt.Errorf("clusterUUID: %q is none", f.ClusterUUID)
	case f.ClusterUUID != "" && f.State != FabricCompleted, f.ClusterUUID == "" && f.CliqueID != 0:
		return fmt.Errorf("clique %d of cluster %q in state %s: only a GPU in a cluster has one", f.CliqueID, f.ClusterUUID, f.State)
	}
	return nil
}

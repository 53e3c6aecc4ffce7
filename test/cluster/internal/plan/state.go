// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFile is both the summary for users and the mark of a state directory that is ours to delete.
const stateFile = "cluster.json"

// Save writes STATE/cluster.json whole or not at all.
func (c Cluster) Save() error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode cluster state: %w", err)
	}
	if err := os.MkdirAll(c.State, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	tmp := c.File(stateFile + ".tmp")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	if err := os.Rename(tmp, c.File(stateFile)); err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	return nil
}

// ErrNoCluster means that a state directory holds no cluster.
var ErrNoCluster = errors.New("no cluster here; start one with: cluster up")

// Load reads the cluster of a state directory.
func Load(state string) (Cluster, error) {
	var c Cluster
	data, err := os.ReadFile(filepath.Join(state, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("state directory %s: %w", state, ErrNoCluster)
	}
	if err != nil {
		return c, fmt.Errorf("read cluster state: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("read cluster state %s: %w", filepath.Join(state, stateFile), err)
	}
	return c, nil
}

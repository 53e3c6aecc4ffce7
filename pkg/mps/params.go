// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"encoding/json"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/step"
)

// MemoryDir is the directory of all claims' mounts, as the daemons see it: in the driver root. Each claim has two there, ID/pipe and
// ID/log. They are memory of its own, so what its containers write there fills nothing of the host's. MemoryDir is not in ClaimsDir:
// supervisors of earlier versions remove what they do not know there, and do not start if that is a mount.
const MemoryDir = "/run/fettle/mps-memory"

// directoryBytes bounds each of a claim's two directories, and with it the number of files: 2,048, one for each page. Pipes, sockets and
// locks have no content. NVIDIA lets a GPU have 48 clients (MPS manual), so 16 GPUs have 768, and each may have two files. A log is cut
// beyond 4 MiB, and there are two: the daemon's and its servers'.
const directoryBytes = 8 << 20

// Directories are the names of the directories of a claim.
func Directories() []string { return []string{PipeName, LogName} }

// Params are the parameters of the step: a daemon, and where its directories are. The version before reads the daemon alone. So it serves
// and ends a claim whose directories are in memory, and leaves their empty mounts until the node starts again.
type Params struct {
	Daemon

	// Memory says that the directories are the claim's mounts in MemoryDir, which the step makes before the daemon runs. Otherwise they are
	// plain ones in ClaimsDir, which nothing bounds, as all were before.
	Memory bool `json:"memory,omitempty"`
}

// Step makes the step by which the claim has the daemon.
func (p *Params) Step() (step.Step, error) {
	if err := p.Validate(); err != nil {
		return step.Step{}, err
	}
	return step.New(StepKind, p.ID, p)
}

// Leftover makes a step of a daemon or of mounts that no record tells of. It can be undone and nothing else.
func Leftover(id string) (step.Step, error) {
	if err := validID(id); err != nil {
		return step.Step{}, err
	}
	return step.New(StepKind, id, &Params{Daemon: Daemon{ID: id}})
}

// HostDir returns ClaimsDir as the host, and with it the container runtime, sees it, for a driver root as the host sees it.
func HostDir(driverRoot string) string { return filepath.Join(driverRoot, ClaimsDir) }

// HostMemoryDir returns MemoryDir as the host sees it. The plugin must have it at the same path.
func HostMemoryDir(driverRoot string) string { return filepath.Join(driverRoot, MemoryDir) }

// Edits make a container a client of the daemon, for a driver root as the host sees it. The container's /dev/shm stays as it is: only GPUs
// older than Volta need the daemon's. The mount is writable, since clients lock a file in the directory.
func (p *Params) Edits(driverRoot string) container.Edits {
	dir := HostDir(driverRoot)
	if p.Memory {
		dir = HostMemoryDir(driverRoot)
	}
	return container.Edits{
		Env:    []string{PipeDirectory + "=" + ContainerPath},
		Mounts: []container.Mount{{HostPath: filepath.Join(dir, p.ID, PipeName), ContainerPath: ContainerPath, NonRecursive: true}},
	}
}

// needs returns what the node holds for a claim: what fits into its directories, for as long as it has them.
func needs(raw json.RawMessage) ([]budget.Need, error) {
	p, err := step.Decode[Params](raw)
	if err != nil || !p.Memory {
		return nil, err
	}
	mounts := int64(len(Directories()))
	return []budget.Need{
		{Resource: budget.Mounts, Amount: mounts},
		{Resource: budget.Memory, Amount: mounts * hostmount.MemoryOf(directoryBytes)},
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"fmt"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// surroundings are what the rest of the cluster says.
type surroundings struct {
	Nodes []v1alpha1.AcceleratorNode
	// MissingNamespaces are those of the object's that are not there.
	MissingNamespaces []string
	// Volumes are what there is of volumes, and what keeps them.
	Volumes volumes.Plan
}

// maxVolumes is how many volumes a status lists.
const maxVolumes = 256

// observe writes what the cluster says of an object into its status, and what follows from all of it.
func observe(o object, around surroundings, now time.Time) {
	nodes, volumes := countNodes(around.Nodes, o, around.Volumes), countVolumes(o.Status, around.Volumes)
	o.Status.Counts = nodes.Counts
	o.Status.Volumes = around.Volumes.Volumes[:min(len(around.Volumes.Volumes), maxVolumes)]
	artifacts.SetConditions(
		o.Head(), now, compatible(nodes), distributed(o, nodes, volumes), ready(o), degraded(nodes, volumes),
		missing(o, around.MissingNamespaces),
	)
	o.Status.Phase = phase(o, nodes, volumes, len(around.MissingNamespaces))
}

// list is the first few of many, and how many more there are.
func list(texts []string) string {
	const few = 5
	if len(texts) <= few {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:few], "; "), len(texts)-few)
}

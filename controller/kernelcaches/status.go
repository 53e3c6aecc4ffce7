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

// surroundings are the objects of the cluster that a cache's status depends on.
type surroundings struct {
	Nodes []v1alpha1.AcceleratorNode
	// MissingNamespaces are listed by the object and do not exist.
	MissingNamespaces []string
	// Volumes is the plan for the cache's volumes: their state, and what blocks them.
	Volumes volumes.Plan
}

// maxVolumes is how many volumes a status lists.
const maxVolumes = 256

// observe writes the state of nodes, volumes and namespaces to the status of a cache, and the conditions that follow.
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

// list joins the first few texts and says how many more there are.
func list(texts []string) string {
	const few = 5
	if len(texts) <= few {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:few], "; "), len(texts)-few)
}

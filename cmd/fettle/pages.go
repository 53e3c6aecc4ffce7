// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/pkg/plan/page"
)

// formatPage writes a page that draws the devices.
const formatPage = "html"

// planPage draws a cluster after a plan. Before are the claims that had devices until then.
func planPage(c *plan.Cluster, before map[string]bool, report plan.Report) page.Page {
	in := page.OfCluster(c)
	in.AddReport(report, before)
	without := 0
	for _, pod := range report.Pods {
		if pod.Node == nil {
			without++
		}
	}
	in.Title = "Plan for " + counted(len(report.Pods), "pod")
	switch {
	case len(report.Pods) == 0:
		in.Title, in.Lead = "Devices", "No pod waits for a node."
	case without == 0:
		in.Lead = "All pods have a node."
	default:
		in.Lead = fmt.Sprintf("%d of %s have no node.", without, counted(len(report.Pods), "pod"))
	}
	return page.Of(in)
}

// explanation is one with the cluster that it is about. Before are the claims that had devices until the explanation tried the pod.
type explanation struct {
	explain.Explanation
	cluster *plan.Cluster
	before  map[string]bool
}

// page draws the cluster with what is against each device.
func (e *explanation) page() page.Page {
	in := page.OfCluster(e.cluster)
	in.AddReport(plan.Report{}, e.before)
	in.AddExplanation(e.Explanation)
	return page.Of(in)
}

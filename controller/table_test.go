// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/trustpolicies"
	"github.com/fettle-dev/fettle/controller/volumes"
)

// TestTable: rows can be built without a cluster, their queues have names of their own and something that fills them, and what starts
// before the CRDs are served watches no kind of ours.
func TestTable(t *testing.T) {
	t.Parallel()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	services := reconciler.Services{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clock.RealClock{}, Namespace: "fettle"}
	rows := controller.Table(controller.Parts{
		Services: services, Options: controller.Options{ExplainWaitingPods: true, NodePartitions: true},
		Policies: trustpolicies.NewReader(services.Client, nil, nil),
		Volumes:  volumes.NewPlanner(services, volumes.Options{Enabled: true}),
	})
	names, queues := map[string]bool{}, map[string]bool{}
	registry := prometheus.NewPedanticRegistry()
	for _, row := range rows {
		if row.Name == "" || names[row.Name] || len(row.Queues) == 0 {
			t.Errorf("row %q has %d queues, and its name was there before: %v", row.Name, len(row.Queues), names[row.Name])
		}
		names[row.Name] = true
		for _, m := range row.Metrics {
			if err := registry.Register(m); err != nil {
				t.Errorf("%s: %v", row.Name, err)
			}
		}
		for _, q := range row.Queues {
			if q.Name == "" || queues[q.Name] || q.Reconciler == nil || len(q.Watches) == 0 {
				t.Errorf("%s: queue %q with %d watches, and its name was there before: %v", row.Name, q.Name, len(q.Watches), queues[q.Name])
			}
			queues[q.Name] = true
			for _, w := range q.Watches {
				kind, err := apiutil.GVKForObject(w.Object, scheme)
				if err != nil || row.BeforeCRDs && kind.Group == "fettle.dev" {
					t.Errorf("%s watches %v (%v) before the CRDs: %v", row.Name, kind, err, row.BeforeCRDs)
				}
			}
		}
	}
	for _, name := range []string{ // dashboards have them as the label controller of controller-runtime's metrics
		"acceleratornode", "clusterfpgabitstream", "clustergpukernelcache", "clustergpukernelcachevolumes", "deletedclaim", "deviceclass",
		"devicepreset", "fpgabitstream", "gpukernelcache", "gpukernelcachevolumes", "nodetaint", "partitionpolicy",
		"presetlack", "priorityclass", "acceleratorstack", "shippedpreset", "trustpolicy",
	} {
		if !queues[name] {
			t.Errorf("there is no queue %s any more", name)
		}
	}
}

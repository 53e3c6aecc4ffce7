// SPDX-License-Identifier: Apache-2.0

package attacks

// reason says why an account may do something to an object that is not its own. In the pattern, of a line of the table, * is any text. The
// first that matches counts. A reason that begins with "open" names what is still to be closed.
type reason struct{ pattern, why string }

func reasons() []reason {
	return []reason{
		{"* | tokenreviews.authentication.k8s.io | *", "answers whose token a scraper has, which the asker has, too"},
		{"* | subjectaccessreviews.authorization.k8s.io | *", "answers who may read metrics, stores nothing and gives no right"},

		{"fettle-controller | * | acceleratornodes/status.fettle.dev | of node2, checks", "results of checks are the controller's"},
		{"fettle-controller | patch | */status.fettle.dev | another's*", "it writes this status, and nobody else does"},
		{"fettle-controller | delete | acceleratornodes.fettle.dev | *", "it prunes those of nodes that are gone"},
		{"* | apply | nodes | another's taint taken off", "an apply without a taint of another manager leaves the taint"},
		{"fettle-controller | * | nodes | a NoSchedule taint", "a policy cannot look up PartitionPolicies: the taint is noted, and ends no pod"},
		{"fettle-controller | * | priorityclasses.*", "up to 1,000,000,000, which everybody who makes a class may have; it names no pods"},
		{"fettle-controller | * | events.events.k8s.io | *", "open: no policy narrows the controller's Events"},
		{"* | leases.coordination.k8s.io | another's | in fettle-system", "a new lease locks nobody out: RBAC cannot name what is created"},

		{"fettle-kubeletplugin | * | events.events.k8s.io | about a claim*", "a policy cannot look up where a claim is"},

		{"fettle-uninstall | * | acceleratornodes.fettle.dev | *", "an uninstall retires all nodes and removes their objects"},
		{"fettle-uninstall | delete | deviceclasses.resource.k8s.io | shipped*", "an uninstall removes shipped classes"},
		{"fettle-uninstall | delete | customresourcedefinitions.*", "an uninstall removes the definitions, with deleteCRDs"},
		{"fettle-uninstall | delete | resourceslices.* | of node1 and another driver", "open: slices of other drivers are not fenced"},
		{"fettle-uninstall | delete | resourceslices.*", "an uninstall removes Fettle's slices"},
		{"fettle-uninstall | * | pods*", "open: with uninstall.force, no policy narrows which pods"},
		{"fettle-uninstall | * | events.events.k8s.io | *", "open: no policy narrows the uninstall's Events"},
	}
}

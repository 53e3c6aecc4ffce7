// SPDX-License-Identifier: Apache-2.0

package mutants

// The kinds of faults that docs/design/testing.md names.
const (
	identity   = "identity"
	exclusion  = "exclusion"
	owners     = "owner"
	undo       = "undo"
	opposite   = "opposite"
	noAnswer   = "no-answer"
	evidence   = "evidence"
	meaning    = "meaning"
	noPanic    = "panic"
	selection  = "selection"
	validators = "validators"
	limits     = "limits"
)

func kinds() []string {
	return []string{
		identity, exclusion, owners, undo, opposite, noAnswer, evidence, meaning, noPanic, selection, validators, limits,
	}
}

func table() []mutant {
	return []mutant{
		{
			kind: identity, what: "a directory that another claim has by another name is refused",
			file: "kubeletplugin/prepare/conflict/overlap.go",
			old:  "return SameThing(d, other) })", new: "return false && SameThing(d, other) })",
			pkg: "kubeletplugin/prepare", test: "TestModel", seed: "1",
		},
		{
			kind: identity, what: "a directory is known by what it is, not by its path, when it is emptied",
			file: "pkg/hostdir/place.go",
			old:  "	if !p.Place.is(now.Identity) {", new: "	if false {",
			pkg: "pkg/hostdir", test: "TestDiskNotMounted", seed: "1",
		},
		{
			kind: exclusion, what: "a part of a card is refused while another claim holds what overlaps it",
			file: "kubeletplugin/prepare/conflict/overlap.go",
			old:  "!partition.Excludes(card, d.found, other) {", new: "card.Name == d.found.Name || true {",
			pkg: "kubeletplugin/prepare", test: "TestModel", seed: "1",
		},
		{
			kind: owners, what: "the former setting comes back with the last claim only",
			file: "pkg/restorepoint/shared.go",
			old:  "if len(rest.Sharers) > 0 && p.BootID == s.bootID {", new: "if len(rest.Sharers) > 1 && p.BootID == s.bootID {",
			pkg: "pkg/restorepoint", test: "TestRandomSharers", seed: "1",
		},
		{
			kind: undo, what: "on a full disk what is to be deleted makes room",
			file: "pkg/hostdir/remove.go",
			old:  "		if !disk.NoRoom(err) {\n			return err\n", new: "		if true || !disk.NoRoom(err) {\n			return err\n",
			pkg: "pkg/hostdir", test: "TestFullDisk", seed: "1",
		},
		{
			kind: opposite, what: "calls that want opposite things have their turns in the order in which they came",
			file: "kubeletplugin/prepare/operation.go",
			old:  "return other.verb != c.verb }); i >= 0 {", new: "return other.verb != c.verb }); i > len(before) {",
			pkg: "kubeletplugin/prepare", test: "TestCallsInAnyOrder", seed: "1",
		},
		{
			kind: noAnswer, what: "a node of which the platform is not known keeps the pods that it has",
			file: "controller/stackstates/groups.go",
			old:  "		g.unknown = unknown\n", new: "		g.unknown = nil\n",
			pkg: "controller/stackstates", test: "TestPlatformUnknown", seed: "1",
		},
		{
			kind: evidence, what: "AcceleratorNodes, by which nodes serve again, are deleted after all else",
			file: "controller/uninstall/clean.go",
			old:  "	err := errors.Join(\n		u.classes(ctx),", new: "	err := errors.Join(\n		u.accelerators(ctx), u.classes(ctx),",
			pkg: "controller/uninstall", test: "TestInterrupted", seed: "1",
		},
		{
			kind: meaning, what: "below a ! a missing attribute counts as the original's",
			file: "pkg/convert/drivers/expression.go",
			old:  "func (p polarity) opposite() polarity { return negative - p }", new: "func (p polarity) opposite() polarity { return p }",
			pkg: "pkg/convert/drivers", test: "TestMeaning", seed: "1",
		},
		{
			kind: noPanic, what: "a request with alternatives has no fields of its own",
			file: "pkg/plan/explain/change.go",
			old:  "		if r.Exactly == nil || len(constraint.Requests) > 0 &&", new: "		if len(constraint.Requests) > 0 &&",
			pkg: "pkg/plan/explain", test: "TestRandom", seed: "1",
		},
		{
			kind: selection, what: "a node keeps the driver that it has while its report is missing",
			file: "controller/stacks/observe.go",
			old:  "			seen.AddOwn(node, of, set.Labels[stack.DriverLabel])\n", new: "			_, _ = node, of\n",
			pkg: "controller/stacks", test: "TestMissing", seed: "1",
		},
		{
			kind: validators, what: "the API server and the node judge a path by one function",
			file: "api/v1alpha1/gpuconfig.go",
			old:  "		faults = append(faults, mountpath.Validate(k.MountPath, path.Child(\"mountPath\"))...)\n", new: "		_ = mountpath.Validate\n",
			pkg: "pkg/admission", test: "TestEarlyAndLateAgree", seed: "1",
		},
		{
			kind: limits, what: "an entry that cannot be used keeps the others in use",
			file: "pkg/artifact/registry/credentials.go",
			old:  "			entry.err = fmt.Errorf(\"%s: %w\", c.Name, err)\n", new: "			return nil, err\n",
			pkg: "pkg/artifact/registry", test: "TestOneBadEntry", seed: "1",
		},
		{
			kind: limits, what: "a tree counts for its namespace while it is made",
			file: "pkg/artifact/unpack.go",
			old:  "	if namespace != \"\" {\n		namespace = \".\" + namespace\n	}\n", new: "	namespace = \"\"\n",
			pkg: "pkg/artifact", test: "TestSharesHoldWhileUnpacking", seed: "1",
		},
		{
			kind: limits, what: "a list whose pages are gone begins anew, and nothing of it stays",
			file: "pkg/paging/paging.go",
			old:  "		begin()\n", new: "		if attempt == 1 {\n			begin()\n		}\n",
			pkg: "controller/reconciler", test: "TestPages", seed: "1",
		},
	}
}

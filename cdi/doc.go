// SPDX-License-Identifier: Apache-2.0

// Package cdi turns container edits into Container Device Interface specs and keeps the runtime's spec directory.
//
// kubelet hands the same CDI device names to every restart of a container, so what a name means must not change while a claim
// holds it; and each change of a file makes the runtime read the whole directory again. Hence the files here are immutable and
// few: one for each distinct set of edits, its device named by the hash of the content, and kept while a record names it. A
// claim that needs nothing of its own is answered with such names and writes no file.
package cdi

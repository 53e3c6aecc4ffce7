// SPDX-License-Identifier: Apache-2.0

// Package sim turns a machine written as text into a host tree (sys, proc, dev and whatever else discovery reads), and records
// such a text from a real machine. Only tests, the CLI and the demo use it.
//
// A machine is a txtar archive. A member is a file of the tree, its name the path without a leading slash:
//
//	-- proc/driver/nvidia/version --
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  ...
//
// A member whose name ends in "/*" holds many files of one directory, one a line: a name and the file's single line of text, or a
// name, an arrow and a link's target. Names may have further segments. Empty lines and lines starting with "#" are skipped:
//
//	-- sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/* --
//	vendor 0x10de
//	drm/card0/dev 226:0
//	driver -> ../../../../bus/pci/drivers/nvidia
//
// The text before the first member holds what a member cannot say, one directive a line; "#" starts a comment line:
//
//	dir PATH                   an empty directory
//	char PATH MAJOR:MINOR      a character device node
//	symlink PATH TARGET        a relative link that stays inside the tree; it may dangle
//	bytes PATH HEX             a file of exactly these bytes
//	unreadable PATH            a file whose reading fails, for root as well
//	table NAME COLUMN...       starts a table
//	row VALUE...               a row of the table above it
//
// Tables keep a machine of many near-equal devices short. A directive, or a line of a member, that names a column as
// ${NAME.COLUMN} is repeated for each row, in order. A member whose own name does so is repeated as a whole. One line may name
// one table only. There is no way to write a literal "${" but the bytes directive.
//
// Parse is strict: paths have no ".", ".." or white space, no path is given twice, nothing lies below a file or a link, and a
// link never leads out of the tree. An unreadable file becomes a link to itself, since the root user reads files of any mode:
// opening it fails with ELOOP.
package sim

// SPDX-License-Identifier: Apache-2.0

// Package hostfiles finds on a node what presets name: files, libraries, tools, device nodes, and the files of a vendor's driver. The
// kubelet plugin uses it for claims, and the command line to show what a node would do.
package hostfiles

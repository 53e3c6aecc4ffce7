// SPDX-License-Identifier: Apache-2.0

// Package hostfiles looks up on a node what presets name: files, libraries, tools, device nodes, and the files of a vendor's driver. The
// kubelet plugin does so for claims, and the command line to show what a node would do.
package hostfiles

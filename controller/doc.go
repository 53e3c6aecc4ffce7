// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster side of Fettle. One elected replica applies the CRDs and runs the reconcilers of the [Table]; every
// replica serves the webhook. It never writes what a node's own plugin writes, and no node waits for it.
//
// This package only wires. Each reconciler is a package below it, with its policy beside it in functions that read nothing. All of them
// are built from package reconciler; package artifacts is the pipeline of those whose objects name an image in a registry.
package controller

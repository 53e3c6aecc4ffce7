// SPDX-License-Identifier: Apache-2.0

// Package pull is what the controller does alike for all objects that name an image: it reads their pull secrets, grants these to the
// kubelet plugin, says in a word why a reference could not be resolved, and when to try again.
package pull

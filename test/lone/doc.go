// SPDX-License-Identifier: Apache-2.0

// Package lone runs the shipped kubelet plugin beside an API server, with neither kubelet nor scheduler: who calls it plays both. Programs
// use it, so it wants no *testing.T.
package lone

// SPDX-License-Identifier: Apache-2.0

// Package attacks has the list of the attacks that are known, with the tests that try them, and tries with each account of the chart
// whatever its rights allow on objects that are not its own.
package attacks

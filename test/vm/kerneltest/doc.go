// SPDX-License-Identifier: Apache-2.0

// Package kerneltest has tests of what Fettle expects of the kernel, and of Fettle's own code against it. They run in the virtual machine
// of test/vm ("make test-vm") and are skipped elsewhere: they bind devices to other drivers.
package kerneltest

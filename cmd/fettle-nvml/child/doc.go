// SPDX-License-Identifier: Apache-2.0

// Package child is what the program fettle-nvml does: it prints a report of all GPUs, watches them, lists the files of the driver, and
// makes and destroys MIG instances. The library is given to it, so that the program of the tests has a simulator in its place.
package child

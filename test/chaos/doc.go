// SPDX-License-Identifier: Apache-2.0

// Package chaos runs the kubelet plugin as it is shipped on a simulated machine and does to it whatever a node can: it is killed at
// any moment, rebooted, cut off from the API server, stopped, replaced by another version, and left with a disk that does not
// answer, while many pods come and go.
//
// The test is kubelet, scheduler and tenant at once. What it holds against the plugin is only what those can see: the answers on the
// socket, the API, the CDI directory and the host's tree. How the plugin keeps its books is nothing to it.
//
// A plan says what happens, and a seed makes the plan. What the machine's two schedulers, Go's and the kernel's, make of it differs
// from run to run. Without flags it is a short round of a fifth. make chaos runs a standard one. The longer form, with what happened left
// in a directory:
//
//	go test -count=1 -run '^TestAPI$' -v -timeout 0 ./test/chaos -args -chaos.prepares=5000 -chaos.minutes=60 -chaos.keep
package chaos

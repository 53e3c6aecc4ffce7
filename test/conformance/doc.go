// SPDX-License-Identifier: Apache-2.0

// Package conformance checks any DRA kubelet plugin from outside, over the sockets that kubelet uses, the API server and the CDI
// directories that the container runtime reads. It knows nothing of the plugin's insides and imports nothing of this repository.
//
// A run plays two parts that a cluster has elsewhere:
//
//	scheduler   reads the driver's ResourceSlices, creates ResourceClaims and writes an allocation into their status
//	kubelet     registers the plugin, calls NodePrepareResources and NodeUnprepareResources, watches the devices' health
//
// Checks lists what is checked. Each check makes claims of its own on devices that nobody holds, and each ends with its claims
// unprepared and deleted, also where it fails. [Run] returns one [Result] a check.
package conformance

// SPDX-License-Identifier: Apache-2.0

// Package volumes plans the PersistentVolumeClaims of caches that are put into volumes, and the Jobs that fill them: one claim a
// namespace for ROXVolume, one a namespace and node for RWOPerNode. What is to be done follows from the object and from what is there,
// without asking anything; [Reader] reads what is there. Nothing here writes.
//
// A claim's files never change under a pod: what another digest has is put there only while no pod uses the claim. PersistentVolumes are
// made by nobody here: the storage class has a provisioner, or an administrator makes them.
package volumes

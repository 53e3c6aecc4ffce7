// SPDX-License-Identifier: Apache-2.0

// Package volumes puts kernel caches into volumes: one PersistentVolumeClaim a namespace for ROXVolume, one a namespace and node for
// RWOPerNode, and the Jobs that fill them. [Make] plans from the cache and the observed objects alone, [Reader] reads these objects, and
// the reconciler carries plans out.
//
// A claim's files never change under a pod: a Job writes another digest into a claim only while no pod uses it. PersistentVolumes come
// from the provisioner of the storage class or from an administrator.
package volumes

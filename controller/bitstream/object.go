// SPDX-License-Identifier: Apache-2.0

// Package bitstream is what the controller knows of FPGABitstreams and ClusterFPGABitstreams, apart from its queue: it reads what their
// references mean, says so in their status, and grants the kubelet plugin their pull secrets. The bytes of the files decide what they
// are; tags and configs are only believed as far as they agree with them.
package bitstream

import (
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pull"
)

// Object is a bitstream of either kind. Its image is empty if the bitstream is a file on the nodes.
type Object struct {
	v1alpha1.CommonFPGABitstream

	// Secrets are the names of the pull secrets, and SecretNamespace is where they are.
	Secrets         []string
	SecretNamespace string
}

// Of returns a bitstream whose secrets are beside it, or in the driver's namespace if it is of the cluster.
func Of(b v1alpha1.CommonFPGABitstream, driver string) Object {
	return Object{
		CommonFPGABitstream: b, Secrets: pull.Names(b.Spec.ImagePullSecrets), SecretNamespace: b.ReferenceNamespace(driver),
	}
}

// Grant is what the nodes need to fetch it.
func (o Object) Grant() grant.Request {
	return grant.Request{Owner: o.Object, Kind: o.Kind, Resource: "secrets", Namespace: o.SecretNamespace, Names: o.Secrets}
}

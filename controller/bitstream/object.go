// SPDX-License-Identifier: Apache-2.0

// Package bitstream is what the controller knows of FPGABitstreams and ClusterFPGABitstreams, apart from its queue: it reads what their
// references mean, says so in their status, and grants the kubelet plugin their pull secrets. The bytes of the files decide what they
// are; tags and configs are only believed as far as they agree with them.
package bitstream

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/pull"
)

// Object is what both kinds have in common.
type Object struct {
	// Object is the one of the API; Status is its.
	client.Object
	Status *v1alpha1.FPGABitstreamStatus
	// Kind is FPGABitstream or ClusterFPGABitstream.
	Kind string
	// Image is empty where the bitstream is a file on the nodes.
	Image string
	// Secrets are the names of the pull secrets, and SecretNamespace is where they are.
	Secrets         []string
	SecretNamespace string
}

// OfNamespace is an FPGABitstream, whose secrets are beside it.
func OfNamespace(b *v1alpha1.FPGABitstream) Object {
	return Object{
		Object: b, Status: &b.Status, Kind: v1alpha1.KindFPGABitstream,
		Image: b.Spec.Image, Secrets: pull.Names(b.Spec.ImagePullSecrets), SecretNamespace: b.Namespace,
	}
}

// OfCluster is a ClusterFPGABitstream, whose secrets are in the driver's namespace.
func OfCluster(b *v1alpha1.ClusterFPGABitstream, driver string) Object {
	return Object{
		Object: b, Status: &b.Status, Kind: v1alpha1.KindClusterFPGABitstream,
		Image: b.Spec.Image, Secrets: pull.Names(b.Spec.ImagePullSecrets), SecretNamespace: driver,
	}
}

// Grant is what the nodes need to fetch it.
func (o Object) Grant() grant.Request {
	return grant.Request{Owner: o.Object, Kind: o.Kind, Resource: "secrets", Namespace: o.SecretNamespace, Names: o.Secrets}
}

// SPDX-License-Identifier: Apache-2.0

// Package registry pulls OCI artifacts from registries by digest.
//
// A Client knows the registries as the administrator configured them: which speak plain http, which have mirrors. Load reads that
// configuration from a file. The controller and the kubelet plugin get the same one, so that what the controller resolved the nodes can
// pull. A Source is one reference read with one set of credentials. It resolves a tag to a digest, reads manifests and small blobs into
// memory, each bounded and each compared with its digest, and brings large blobs into a store:
//
//	src := client.Source(ref, keys)
//	d, err := src.Resolve(ctx)          // the digest, and that these credentials may read it
//	m, err := src.Manifest(ctx, d)
//	err = store.Pin(ctx, m.Layers[0].Digest, owner)
//	err = store.Fetch(ctx, src, m.Layers[0])
//	blob, err := store.Open(m.Layers[0].Digest)
//
// What is to become a tree never is a blob of the store: Open reads it as a stream, and artifact.Store.Unpack makes the tree of that.
//
//	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
//	err = store.Pin(ctx, image.Digest, owner)
//	tree, err := store.Unpack(ctx, spec, src.Layers(image.Layers))
package registry

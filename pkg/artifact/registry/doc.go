// SPDX-License-Identifier: Apache-2.0

// Package registry pulls OCI artifacts from registries by digest.
//
// A Client has the administrator's configuration: which registries use plain http, and which have mirrors. LoadConfig reads it from a file.
// The controller and the kubelet plugin get the same file, so a node can pull what the controller resolved. A Source reads one reference
// with one set of credentials. It resolves a tag
// to a digest, reads manifests and small blobs into memory, bounded and compared with their digests, and pulls large blobs into a store:
//
//	src := client.Source(ref, keys)
//	d, err := src.Resolve(ctx)          // the digest, and that these credentials may read it
//	m, err := src.Manifest(ctx, d)
//	err = store.Pin(ctx, m.Layers[0].Digest, owner)
//	err = store.Fetch(ctx, src, m.Layers[0])
//	blob, err := store.Open(m.Layers[0].Digest)
//
// The layers of an image are not kept as blobs: Open reads each as a stream, and artifact.Store.Unpack makes a tree of them.
//
//	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
//	err = store.Pin(ctx, image.Digest, owner)
//	tree, err := store.Unpack(ctx, spec, src.Layers(image.Layers))
package registry

// SPDX-License-Identifier: Apache-2.0

// Package artifact names OCI artifacts and keeps their blobs on the node: bitstreams of FPGAs and images of compiled kernels. Package
// registry pulls them, layout has them in a directory, and push writes them to either.
//
// # The store
//
// A Store is one directory of mode 0700:
//
//	blobs/sha256/HEX   complete blobs; the time of modification is that of the last use
//	tmp/HEX.SIZE       a blob that is being fetched, or was when its process ended; SIZE is reserved for it
//	trees/sha256/HEX   the tree of an image with that digest: metadata.json, and root or an EROFS image in two files
//	tmp/HEX.SIZE.tree  a tree that is being made
//	tmp/HEX.SIZE.layer what came of a large layer, for the next try; HEX is a digest of layer, repository and namespace
//	pins/HEX/OWNER     a file for each owner that needs the blob or tree, with its namespace or empty; the directory stays as long as those
//	trash/HEX.RANDOM   a blob or tree that was evicted, until Sweep deletes it
//	lock               byte ranges of it are locked: one for each digest, and one for the names in the store
//
// A blob gets its name in blobs only after all its bytes were read to the end of the stream, had the declared length and digest, and
// were synced. The bytes of an interrupted fetch are hashed again before a Range request continues it. Locks hold between goroutines and
// between processes, so two versions of a plugin may share a store: a digest is fetched once, and if the first fetch fails, a waiting one
// takes over with its own credentials.
//
// Blobs and trees share a store, so that one quota, one order of eviction and one lock hold for all artifacts of a node. Package unpack
// decides what a layer may hold; it does not know the store. A tree is made in tmp, read to the end of every layer, synced and renamed,
// under the lock of its image's digest. An interrupted tree is not resumed, but the bytes of its large layers are, see KeptLayer.
//
// Nothing is cached in memory, so changes by another process are seen at once and nothing has to be rebuilt at start. Pin, Unpin and Open
// cost the same whatever the store holds; only fetching, unpacking, Digests, Usage and Sweep list it.
//
// The store does not control access. A blob in it was read with the credentials of one object; before the plugin gives it to another
// object, that object's own Source must Resolve. Nor does the store know signatures: a digest proves that the bytes are the requested
// ones, not that they may run.
package artifact

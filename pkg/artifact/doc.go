// SPDX-License-Identifier: Apache-2.0

// Package artifact names OCI artifacts and keeps their blobs on the node: bitstreams of FPGAs and images of compiled kernels. Package
// registry pulls them, layout has them in a directory, and push writes them to either.
//
// # The store
//
// A Store is one directory of mode 0700:
//
//	blobs/sha256/HEX   complete blobs; the time of modification is that of the last use
//	tmp/HEX.SIZE       a blob that is being fetched, or was when the process ended; SIZE is reserved for it
//	trees/sha256/HEX   the tree of an image with that digest: metadata.json, and root or an EROFS image in two files
//	tmp/HEX.SIZE.tree  a tree that is being made
//	pins/HEX/OWNER     an empty file for each owner that needs the blob or tree; the directory stays as long as that is here
//	trash/HEX.RANDOM   what was removed, until Sweep deletes it
//	lock               byte ranges of it are locked, one a digest and one for the names in the store
//
// A blob gets its name in blobs only after all its bytes were read to the end of the stream, had the declared length and digest, and
// were synced. What a fetch left halfway is hashed again before a Range request goes on with it. The locks hold between goroutines and
// processes alike, so two versions of a plugin may share a store: a digest is fetched once, and who waited for it takes over if the
// first one fails, with credentials of its own.
//
// Trees are in the same store and not in one of their own, so that one quota, one order of eviction and one lock hold for all that a node
// keeps. What a layer may hold is for package unpack, which knows no store. A tree is made in tmp, read to the end of every layer, synced
// and renamed, under the lock of its image's digest; it is not resumed.
//
// Nothing is cached in memory, so what another process did is seen at once, and there is nothing to rebuild at start. Pin, Unpin and
// Open cost the same whatever the store holds; only a fetch, Digests, Usage and Sweep list it.
//
// The store does not know who may read what. A blob that is here was read with somebody's credentials: before it is given to another
// object, that object's own Source must Resolve. It is not for signatures either: a digest says that the bytes are those that were
// asked for, not that they may run.
package artifact

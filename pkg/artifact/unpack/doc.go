// SPDX-License-Identifier: Apache-2.0

// Package unpack turns the layers of an image into a tree of directories and regular files while they are read. It trusts nothing that a
// layer says.
//
// Extract reads each layer once, from its first compressed byte to its last. On the way it checks the digest of the compressed bytes, the
// diffID of the plain ones and the tar inside; the tree counts only after all three ended as they should. The content of a layer goes to
// a Sink as it comes: a Directory of files, or an Image, which is an EROFS file system in two files. A sink knows neither layers nor
// rules: it gets names that were checked, and the caller discards all of it if anything is wrong.
//
// # The rules
//
//   - Names are UTF-8 without control characters, relative, without empty parts, "." or "..", of at most 255 bytes a part, 32 parts and
//     4096 bytes, and below one of Options.Paths.
//   - There are directories and regular files. Links of both sorts, devices, pipes, sparse files, extended attributes, global PAX headers
//     and PAX keys other than those that archivers write for the fields of a header are refused, as is a file with setuid or setgid.
//   - A directory becomes 0777 and a file 0666, or 0777 where any execute bit is set, owned by the user of this process, with the time 0.
//     The tree is meant to lie under a directory of mode 0700 and to be the lower side of an overlay, where every user may copy up.
//   - A name occurs once in a layer. A later layer wins over an earlier one, and its whiteouts apply to the earlier ones only; the first
//     layer has none.
//   - A layer is a bare tar, or one or more gzip members or zstd frames that unpack to one, as eStargz and zstd:chunked have them. A zstd
//     frame may ask for a window of 8 MiB at most. Skippable frames are passed over. Only zeros may follow the tar's end, and nothing the
//     last member or frame.
//   - The index and the landmarks that these two formats add to the top of a tar are left out of the tree.
//   - Limits bound the bytes of a layer and of all layers, the ratio of plain to compressed bytes, the bytes of a file, and the number and
//     the names of the entries. A directory that the path of an entry implies counts as an entry. Only the entries are kept in memory.
//
// An Error names the layer, the entry and the rule. It is ErrRefused, ErrMismatch or ErrLimit. Any other error comes from the reader or
// the sink and says nothing about the image.
package unpack

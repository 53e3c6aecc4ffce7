// SPDX-License-Identifier: Apache-2.0

// Package fault makes things go wrong in tests: at a chosen operation on files, host directories, devices or the API server it
// returns an error, writes half, lies about a sync, or ends the process; and it says what a power loss would leave on disk.
//
// An Injector numbers the operations of all that was made from it: FS (for disk.FS), Root (for host directories), Transport (for
// API calls) and Do (for anything else, such as a device). Changes, syncs and calls share one sequence from 1; reads have their
// own, and closing a file is neither. The log has every operation, and a child process's log outlives its kill:
//
//	// Every crash point: the child ends before its first operation, its second, and so on until it finishes.
//	for n := 1; ; n++ {
//		start, err := fault.Snapshot(base)
//		result, err := fault.Child{}.Run(ctx, fault.Plan{Faults: []fault.Fault{fault.Kill(n)}})
//		if result.Killed == nil {
//			break
//		}
//		states, err := fault.Replay(start, result.Log, fault.Options{})
//		for state := range states {
//			err := state.Materialise(dir) // and start again there
//		}
//	}
//
// # Power loss
//
// Replay takes the operations since a snapshot, which counts as durable, and yields what a file system may hold after the power
// went. It is stricter than ext4 or XFS with their defaults, because nothing of that is promised:
//
//   - The content of a file is certain as of its last Sync or Datasync, as far as a name of it survives. Later writes survive up
//     to any of them, and the next one whole, half, or as zeros (its length made it, its data did not); or all did but one in
//     between. What is overwritten in place is old or new, never zeros.
//   - Mode and owner of a file or directory are certain as of its last Sync or SyncDir; later changes survive up to any of them.
//   - A name that was made, moved or removed is certain after SyncDir of its own directory. Syncing the file, the parent of the
//     directory or the whole branch does not help. What was not synced survives or not in any combination, but:
//   - changes to one name survive in order, and none in a directory that is made and does not survive;
//   - a rename is one change, also between two directories, as with a journal: SyncDir of either makes both ends certain;
//   - a directory is removed only with all that was removed from it, and directories move in order.
//   - SyncFS makes all of that certain at once.
//   - After a Sync that failed nothing more of the file becomes certain, since the kernel forgets what it could not write.
//   - Directories named in Options.Volatile, such as one on tmpfs, are empty.
//
// What fits into Options.Limit states is enumerated in full. Otherwise there are all extremes (nothing survives, everything does,
// all up to each operation in order, all but one, only one), and a seeded random sample.
//
// Not modelled: hard links (each name is a file of its own), times, extended attributes, umask (a new file has the mode that was
// asked for), and paths that lead through a symbolic link.
package fault

// SPDX-License-Identifier: Apache-2.0

// Package fpgasim is a machine with DFL cards that reacts: a FUSE tree with the device nodes and attributes of FMEs and ports, so that
// real open, read, write and ioctl calls reach it, and with faults on demand. It models what
// drivers/fpga/dfl-{fme-pr,fme-mgr,afu-main,afu-error}.c do, down to the port's counted disable, the PLL and the frequency counter behind
// the user clocks, and ports that move to virtual functions.
//
// A machine is a few cards, or a host tree as text (FromTree), of which the sys is mounted over that of the expanded tree: discovery and
// pods then have the tree's character devices, and what is programmed are plain files in SysNodes.
//
// It is served by a process of its own (Main), because a program that waits in the kernel for itself hangs. Start runs the test binary
// once more for it; cmd is the same as a program. One process gives it commands as JSON lines and reads the answers: faults, what
// another user does, and the trace of all that was asked of it.
//
// A card has memory, which outlives what is programmed. The logic in each of its ports reaches all of it. The logic of some images clears
// it (ClearingImage), which takes the time that the image says.
//
// Three things differ from hardware. The nodes are plain files, so what is tested needs a way to accept those. The kernel hides O_EXCL from
// a FUSE server: the simulator looks at the system call that its caller is in. And a program reads and writes a card's memory by reading
// and writing the node of a port, where a real card's program maps the port and commands its logic.
package fpgasim

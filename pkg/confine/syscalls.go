// SPDX-License-Identifier: Apache-2.0

package confine

import "strings"

// everyProgram lists the system calls that every program may make: those that container runtimes allow without any capability (containerd
// 2.4, contrib/seccomp), less the 32-bit ones, and less what neither Go nor vendors' programs have a use for: other users' identities,
// System V and POSIX queues, asynchronous I/O of the kernel, clocks to set, file handles, and labels of security modules.
func everyProgram() []string {
	return strings.Fields(`
		accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres clock_gettime
		clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
		epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
		fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork
		fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
		get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
		getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
		gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl ioprio_get
		kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
		llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat
		mknod mknodat mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock munlockall munmap nanosleep newfstatat
		open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
		pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom
		recvmmsg recvmsg removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
		rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_get_priority_max sched_get_priority_min
		sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
		sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select sendfile sendmmsg sendmsg sendto
		set_robust_list set_tid_address setitimer setpgid setpriority setrlimit setsid setsockopt setxattr shmat shmctl shmdt
		shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink symlinkat sync
		sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
		timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat
		utimes vfork wait4 waitid write writev`)
}

// fileModes change the owner and the mode of a file, which Landlock does not decide on. NVIDIA's library sets both on nodes that it made,
// and gives up where it cannot. So a child is told that it did, and they stay what they are.
func fileModes() []string {
	return strings.Fields(`chmod chown fchmod fchmodat fchmodat2 fchown fchownat lchown`)
}

// fileAttributes change what else Landlock does not decide on.
func fileAttributes() []string {
	return strings.Fields(`
		fremovexattr fsetxattr futimesat lremovexattr lsetxattr removexattr setxattr utime utimensat utimes`)
}

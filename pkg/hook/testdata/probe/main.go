// SPDX-License-Identifier: Apache-2.0

// Command probe stands in for ldconfig in a test: it tries what a hostile one would, and writes what succeeded as its cache.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

func main() {
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	say("args %s", strings.Join(os.Args, " "))
	say("environment %d", len(os.Environ()))
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
			say("%s", strings.Join(strings.Fields(line), " "))
		}
	}
	for fd := 3; fd < 64; fd++ {
		// The runtime's own are anonymous.
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && !strings.HasPrefix(name, "anon_inode:") {
			say("descriptor %d %s", fd, name)
		}
	}
	for _, dir := range []string{"/", "/volume", "/etc", "/run", "/proc/sys/kernel"} {
		if f, err := os.Create(dir + "/probe-was-here"); err == nil {
			say("wrote in %s", dir)
			f.Close()
		}
	}
	for name, do := range map[string]func() error{
		"executed":  func() error { return syscall.Exec("/canary", []string{"canary"}, nil) },
		"mounted":   func() error { return syscall.Mount("x", "/etc", "tmpfs", 0, "") },
		"remounted": func() error { return syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_BIND, "") },
		"chrooted":  func() error { return syscall.Chroot("/etc") },
		"changed":   func() error { return os.Chmod("/etc", 0o777) },
		"device":    func() error { return syscall.Mknod("null", syscall.S_IFCHR|0o666, 1<<8|3) },
	} {
		if do() == nil {
			say("%s", name)
		}
	}
	for dir := range 9 {
		if _, err := os.Stat(strings.Repeat("../", dir+1) + "host-secret"); err == nil {
			say("sees the host through ..")
			break
		}
	}
	if pid := os.Getpid(); pid != 1 {
		say("pid %d", pid)
	}
	if err := os.WriteFile("cache", []byte(strings.Join(said, "\n")+"\n"), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package mpssim

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Client is a program that has joined a daemon, as CUDA does at its start.
type Client struct {
	// Said is what the daemon said: "server=7 user=1000 percentage=50.0 pinned:GPU-…=512M devices=GPU-…".
	Said string
	conn net.Conn
}

// Join joins the daemon of a pipe directory. Without one, or without a daemon in it, a CUDA program runs without MPS: the error says so.
func Join(pipes string) (*Client, error) {
	// The lock of a real pipe directory is writable for all. Whether a real client opens it is not known; this one needs that it can.
	lock, err := os.OpenFile(filepath.Join(pipes, lockFile), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("no MPS daemon: %w", err)
	}
	defer lock.Close()
	conn, err := net.Dial("unix", filepath.Join(pipes, controlSocket))
	if err != nil {
		return nil, fmt.Errorf("no MPS daemon: %w", err)
	}
	if _, err := fmt.Fprintf(conn, "client %d\n", os.Getpid()); err != nil {
		return nil, err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the MPS daemon does not answer: %w", err)
	}
	said, ok := strings.CutPrefix(strings.TrimSpace(answer), "ok ")
	if !ok {
		return nil, fmt.Errorf("refused: %s", answer)
	}
	return &Client{Said: said, conn: conn}, nil
}

// Wait returns when the daemon or its server has ended, as when a CUDA call fails then.
func (c *Client) Wait() error {
	_, err := io.Copy(io.Discard, c.conn)
	return err
}

// Leave ends the client.
func (c *Client) Leave() error { return c.conn.Close() }

// ShmSize returns the size of /dev/shm, which a driver that replaces it would change.
func ShmSize() (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &s); err != nil {
		return 0, err
	}
	return s.Blocks * uint64(s.Bsize), nil
}

// SPDX-License-Identifier: Apache-2.0

package kubeletclaims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// patience limits one question and its answer.
const patience = 5 * time.Second

// answer is what Serve writes to each client: the UIDs, or why they are not known.
type answer struct {
	Claims []string `json:"claims"`
	Error  string   `json:"error,omitempty"`
}

// Listen makes the socket, for root only. It replaces one that an earlier process left.
func Listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := disk.RemoveIfThere(disk.OS{}, socket); err != nil {
		return nil, fmt.Errorf("replace the socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the plugin: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the plugin: %w", err), listener.Close())
	}
	return listener, nil
}

// Serve answers each client with the claims that kubelet's file has at that time, one client after the other, until ctx ends.
func Serve(ctx context.Context, listener net.Listener, file string) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for the plugin: %w", err)
		}
		reply(client, file)
	}
}

// reply answers one client. A client that does not get the whole answer knows no claims, and asks again.
func reply(client net.Conn, file string) {
	defer client.Close() //nolint:errcheck // the client checks that the answer is whole
	var a answer
	if known, err := readFile(file); err != nil {
		a.Error = err.Error()
	} else {
		a.Claims = slices.AppendSeq([]string{}, maps.Keys(known))
		slices.Sort(a.Claims)
	}
	if client.SetDeadline(time.Now().Add(patience)) == nil {
		_ = json.NewEncoder(client).Encode(a)
	}
}

// ask reads the answer of Serve.
func ask(socket string) (UIDs, error) {
	const doing = "ask which claims kubelet holds"
	server, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	defer server.Close() //nolint:errcheck // nothing was written
	if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	data, err := io.ReadAll(io.LimitReader(server, maxFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%s: parse the answer: %w", doing, err)
	}
	switch {
	case a.Error != "":
		return nil, fmt.Errorf("%s: %s", doing, a.Error)
	case a.Claims == nil:
		return nil, fmt.Errorf("%s: the answer has no list", doing)
	}
	known := make(UIDs, len(a.Claims))
	for _, uid := range a.Claims {
		known[uid] = true
	}
	return known, nil
}

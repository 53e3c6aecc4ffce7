// SPDX-License-Identifier: Apache-2.0

// Command client stands in for a CUDA program in a pod: it joins the MPS daemon that its environment names, says what it was told, and
// stays until the daemon ends (status 3) or it is asked to end (status 0). Status 4: there is no daemon, so it would run without limits.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fettle-dev/fettle/test/mpssim"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if size, err := mpssim.ShmSize(); err == nil {
		fmt.Println("shm", size)
	}
	client, err := mpssim.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"))
	if err != nil {
		fmt.Println("without", err)
		return 4
	}
	fmt.Println("joined", client.Said)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.Wait()
	}()
	select {
	case <-ctx.Done():
		return 0
	case <-ended:
		fmt.Println("ended")
		return 3
	}
}

// SPDX-License-Identifier: Apache-2.0

// Command xbmgmt stands for XRT's program on a simulated machine, which is its root directory: it makes the card show what it is given.
package main

import (
	"fmt"
	"os"
	"strings"
)

const none = "00000000000000000000000000000000"

func main() {
	args := os.Args[1:]
	if args[0] == "--version" {
		fmt.Println("Version : 2.16.204")
		return
	}
	if err := run(args, none); err != nil {
		fmt.Println("ERROR:", err)
		os.Exit(1)
	}
}

func run(args []string, shows string) error {
	device := args[len(args)-1]
	if args[0] == "program" {
		file, err := os.ReadFile(args[4])
		if err != nil {
			return err
		}
		device, shows = args[2], fmt.Sprintf("%x", file[416:432])
	}
	if _, err := os.Stat("/broken"); err == nil {
		return fmt.Errorf("ICAP of %s", device)
	}
	if _, err := os.ReadFile("/etc/secret"); err == nil {
		return fmt.Errorf("it reads the host's secrets")
	}
	if err := os.WriteFile("/opt/xilinx/left", nil, 0o600); err == nil {
		return fmt.Errorf("it writes to the host")
	}
	user := strings.TrimSuffix(device, "0") + "1"
	return os.WriteFile("/sys/bus/pci/devices/"+user+"/xclbinuuid", []byte(shows+"\n"), 0o600)
}

// SPDX-License-Identifier: Apache-2.0

// Command xbmgmt stands for the program of XRT that manages Alveo cards. It knows the commands that Fettle runs:
//
//	xbmgmt --version
//	xbmgmt program --device ADDRESS --user FILE
//	xbmgmt --force reset --device ADDRESS
//
// The card is the attribute xclbinuuid of its user function below /sys, where the program shows what the card holds. An xclbin with the
// platform "broken" is refused.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The bytes of an xclbin's header that have its platform and its uuid (XRT, src/runtime_src/core/include/xclbin.h).
const (
	platformAt, platformEnd = 352, 416
	uuidAt, uuidEnd         = 416, 432
)

// empty is what a card shows that holds nothing.
const empty = "00000000-0000-0000-0000-000000000000"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "ERROR:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "--version" {
		fmt.Println("Version              : 2.16.204\nBranch               : 2023.2")
		return nil
	}
	if len(args) > 0 && args[0] == "--force" {
		args = args[1:]
	}
	if len(args) < 3 || args[1] != "--device" {
		return fmt.Errorf("arguments %q, want program or reset and --device ADDRESS", args)
	}
	switch args[0] {
	case "reset":
		return show(args[2], empty)
	case "program":
		if len(args) != 5 || args[3] != "--user" {
			return fmt.Errorf("arguments %q, want --user FILE after the device", args)
		}
		return program(args[2], args[4])
	default:
		return fmt.Errorf("there is no command %q", args[0])
	}
}

func program(device, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(data) < uuidEnd || !bytes.HasPrefix(data, []byte("xclbin2")) {
		return errors.New("the file is no xclbin")
	}
	if platform := data[platformAt:platformEnd]; bytes.HasPrefix(platform, []byte("broken\x00")) {
		return errors.New("XCLBIN does not match the shell on the card")
	}
	id := fmt.Sprintf("%x", data[uuidAt:uuidEnd])
	return show(device, strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-"))
}

// show has the user function of a card tell what the card holds. The attribute must be there.
func show(management, id string) error {
	user := strings.TrimSuffix(management, ".0") + ".1"
	attribute, err := os.OpenFile("/sys/bus/pci/devices/"+user+"/xclbinuuid", os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = attribute.WriteString(id + "\n")
	return errors.Join(err, attribute.Close())
}

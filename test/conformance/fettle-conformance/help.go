// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// synopsis has the flags that a run cannot do without.
const synopsis = "fettle-conformance --driver NAME --registration SOCKET|--endpoint SOCKET [FLAG...]"

const introduction = `fettle-conformance checks a DRA kubelet plugin from outside: over the sockets that kubelet uses, against the API
server, and in the directories of CDI specs. Run it on the plugin's node.

Usage:
  ` + synopsis + `
  fettle-conformance --list [--focus EXPRESSION] [--skip EXPRESSION]

Example:
  fettle-conformance --driver gpu.example.com \
    --registration '/var/lib/kubelet/plugins_registry/gpu.example.com*-reg.sock' \
    --restart-command 'systemctl restart example-plugin' --junit report.xml

Choose a node without work for the driver. A run
  * restarts the plugin, as often as its checks need, where --restart-command or --reboot-command says how;
  * deletes CDI spec files that its claims use, also such as other claims share, to see that the plugin writes them again;
  * prepares and unprepares claims on every free device, and may leave one in need of a look where the plugin fails.

Exit status:
  0  no check failed
  1  a check failed, or the run could not be made
  2  the command line is wrong
  3  inconclusive: no check ran, or more than half of them were skipped

Flags:
`

// help prints the help.
func help(out io.Writer) error {
	var text strings.Builder
	text.WriteString(introduction)
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		line := "  --" + f.Name
		if value != "" {
			line += " " + strings.ToUpper(value)
		}
		if f.DefValue != "" && f.DefValue != "false" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(&text, "%s\n      %s\n", line, usage)
	})
	_, err := io.WriteString(out, text.String())
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fettle-dev/fettle/pkg/admission"
)

const validateHelp = `
Checks the ResourceClaims, ResourceClaimTemplates and DeviceClasses of a YAML file as the admission webhook does, the DevicePresets and
ClusterDevicePresets as the API server does, with their CEL, and other fields more strictly than the API server. Needs no cluster. FILE
may be - for standard input. Prints one line a fault.`

// errFaults ends the command with status 1 after the faults were printed.
var errFaults = errors.New("correct the fields above")

func runValidate(_ context.Context, args []string, stdout, _ io.Writer) error {
	operands, err := newArguments("validate FILE", validateHelp).parse(args, stdout)
	if err != nil {
		return err
	}
	in, name := os.Stdin, "stdin"
	if operands[0] != "-" {
		name = operands[0]
		if in, err = os.Open(name); err != nil {
			return fmt.Errorf("validate: %w", err)
		}
		defer in.Close()
	}
	findings, err := admission.ValidateYAML(in, name)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if _, err := fmt.Fprintln(stdout, f); err != nil {
			return err
		}
	}
	if len(findings) > 0 {
		return fmt.Errorf("validate: %d faults: %w", len(findings), errFaults)
	}
	return nil
}

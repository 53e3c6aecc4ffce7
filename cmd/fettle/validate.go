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
Checks the ResourceClaims, ResourceClaimTemplates, DeviceClasses, PartitionPolicies and AcceleratorStacks of YAML files as the admission
webhook does, the DevicePresets, ClusterDevicePresets and TrustPolicies as the API server and the nodes do, and the rest of these
objects more strictly than the API server: unknown fields, names of requests, and CEL, which is compiled against the attributes that
Fettle publishes. It checks configuration files of the kubelet plugin (KubeletPluginConfiguration) as the plugin does when it starts.
Claims are judged by the classes in all files together. Needs no cluster. FILE may be a directory, for the *.yaml, *.yml and *.json in
it and below, or - for standard input. Prints one line a fault or warning, and at the end what was checked. Warnings do not change the
exit status.`

// errFaults ends the command with status 1 after the faults were printed.
var errFaults = errors.New("correct the fields above")

const validateExamples = `
fettle validate claim.yaml
fettle validate classes.yaml manifests/
kubectl get resourceclaimtemplate one-gpu -o yaml | fettle validate -`

func validate(*arguments) action { return validateFiles }

func validateFiles(_ context.Context, operands []string, stdout, _ io.Writer) error {
	manifests, unread := manifestsIn(operands, os.Stdin)
	report := admission.ValidateManifests(manifests)
	addConfigs(manifests, &report)
	for _, f := range report.Findings {
		if _, err := fmt.Fprintln(stdout, f); err != nil {
			return err
		}
	}
	if unread != nil {
		return fmt.Errorf("validate: %w", unread)
	}
	if faults := report.Faults(); faults > 0 {
		return fmt.Errorf("validate: %s: %w", counted(faults, "fault"), errFaults)
	}
	_, err := fmt.Fprintln(stdout, summary(report, len(manifests)))
	return err
}

// summary says in one line what was checked without faults.
func summary(report admission.Report, files int) string {
	if report.Objects == 0 {
		return fmt.Sprintf("nothing to check in %s: no ResourceClaim, ResourceClaimTemplate, DeviceClass, preset, PartitionPolicy, "+
			"AcceleratorStack, TrustPolicy or KubeletPluginConfiguration", counted(files, "file"))
	}
	text := fmt.Sprintf("%s in %s: no faults", counted(report.Objects, "object"), counted(files, "file"))
	if warnings := len(report.Findings); warnings > 0 {
		text += ", " + counted(warnings, "warning")
	}
	return text
}

// counted is "1 file" or "2 files".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

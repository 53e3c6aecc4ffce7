// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// addConfigs judges the kubelet plugin's configuration files among manifests, as the plugin does when it starts.
func addConfigs(manifests []admission.Manifest, report *admission.Report) {
	for _, m := range manifests {
		documents := slices.DeleteFunc(manifest.Split(m.Text), func(d manifest.Document) bool {
			var head struct {
				APIVersion, Kind string
			}
			return yaml.Unmarshal(d.Text, &head) != nil || head.APIVersion != nodeconfig.APIVersion
		})
		for _, d := range documents {
			report.Objects++
			_, err := nodeconfig.Parse(d.Text)
			for _, fault := range faultsOf(err) {
				report.Findings = append(report.Findings, admission.Finding{
					File: m.Name, Line: d.Line, Object: nodeconfig.Kind, Message: fault.Error(),
				})
			}
		}
	}
}

// faultsOf takes apart what errors.Join put together.
func faultsOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

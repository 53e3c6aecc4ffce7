// SPDX-License-Identifier: Apache-2.0

// Package crds carries the CustomResourceDefinitions, which are generated from api/v1alpha1, inside the binaries that apply them.
package crds

import "embed"

// Files holds one YAML file a CustomResourceDefinition.
//
//go:embed *.yaml
var Files embed.FS //nolint:gochecknoglobals // go:embed fills package variables only

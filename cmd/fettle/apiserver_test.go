// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// listedKind is the version and the kind of the objects below a path of an API server. Kinds that are not Kubernetes' own are called
// Custom.
func listedKind(at string) (schema.GroupVersion, string) {
	parts := strings.Split(strings.Trim(at, "/"), "/")
	version := schema.GroupVersion{Version: parts[1]}
	if parts[0] == "apis" {
		version = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	}
	for kind := range scheme.Scheme.KnownTypes(version) {
		if plural, _ := apimeta.UnsafeGuessKindToResource(version.WithKind(kind)); plural.Resource == path.Base(at) {
			return version, kind
		}
	}
	return version, "Custom"
}

// listText is a list in JSON as the API server answers it at a path.
func listText(at string, items ...string) string {
	version, kind := listedKind(at)
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"7"},"items":[%s]}`,
		version.String(), kind, strings.Join(items, ","))
}

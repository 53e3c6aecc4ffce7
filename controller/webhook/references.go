// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/pkg/admission"
)

// references checks the bitstreams that claims name, as they are now. Prepare checks them again.
type references struct{ reader client.Reader }

// check returns the references that cannot work unless another object changes. It only warns of objects that do not exist yet, since
// objects may be created in any order.
func (r references) check(ctx context.Context, namespace string, object runtime.Object) (faults field.ErrorList, warnings []string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, reference := range admission.Bitstreams(object) {
		key := client.ObjectKey{Namespace: namespace, Name: reference.Name}
		if reference.Kind == v1alpha1.KindClusterFPGABitstream {
			key.Namespace = ""
		}
		bitstream, err := pairs.Bitstream(ctx, r.reader, key)
		switch {
		case err == nil && !bitstream.AllowsNamespace(namespace):
			faults = append(faults, field.Forbidden(reference.Path, fmt.Sprintf("%s %s is not for namespace %s: name another, "+
				"or ask an administrator to add the namespace to its spec.namespaces", reference.Kind, reference.Name, namespace)))
		case err == nil && bitstream.Refused() != nil:
			warnings = append(warnings, fmt.Sprintf("%s: %s %s is refused, so pods wait: %s", reference.Path, reference.Kind, reference.Name,
				bitstream.Refused().Message))
		case apierrors.IsNotFound(err):
			warnings = append(warnings, fmt.Sprintf("%s: %s %s does not exist: pods wait until it does", reference.Path, reference.Kind,
				reference.Name))
		case err != nil:
			klog.FromContext(ctx).Error(err, "A bitstream that a claim names was not checked", "kind", reference.Kind, "bitstream", key)
		}
	}
	return faults, warnings
}

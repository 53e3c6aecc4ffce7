// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"errors"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Scheme returns the kinds that the controller and the uninstall read and write.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(
		clientgoscheme.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme),
	)
	return scheme, err
}

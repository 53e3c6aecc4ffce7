// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/test/nodefixture"
)

// The names by which the tests of this package know what package nodefixture has.
const testNode = nodefixture.Node

type apiResult = resourceapi.DeviceRequestAllocationResult

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

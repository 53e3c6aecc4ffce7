// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPI(t *testing.T) { testScenarios(t, "") }

func TestOlderAPI(t *testing.T) { testScenarios(t, "1.34") }

// testScenarios plays every scenario on the real scheduler. With -short, an older one plays those alone in which it does something else.
func testScenarios(t *testing.T, version string) {
	c := startCluster(t, version)
	c.write(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: syncName}})
	c.sync(t)
	for _, s := range scenarios() {
		if testing.Short() && version != "" && s.older == "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) { c.play(t, s.placed()) })
	}
	t.Run("a claim in flight", c.playInFlight)
	t.Run("command", c.playCommand)
	if version == "" {
		t.Run("readers", c.playReaders)
		t.Run("use cases", c.playUseCases)
		t.Run("usage of a quota", c.playUsage)
		t.Run("random shares", c.playRandomShares)
	}
}

// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestCompiledIsBounded: what is kept of long expressions is bounded by memory, however many they are.
func TestCompiledIsBounded(t *testing.T) {
	var c Compiled
	c.Get("true") // the environments are made once
	before, most := check.Heap(), 0
	for i := range 65 {
		c.Get(fmt.Sprintf("%d > 1", i) + strings.Repeat(" || 1+2 > 3", 370))
		most = max(most, len(c.results))
	}
	kept := check.Heap() - before
	t.Logf("%d bytes are kept", kept)
	if kept > maxWeight*5/4 {
		t.Errorf("%d bytes are kept, want at most %d or so", kept, maxWeight)
	}
	if most < 10 {
		t.Errorf("at most %d of 65 were kept at once, want some tens", most)
	}
	runtime.KeepAlive(&c)
}

// TestCompiledOnce: an expression is compiled once, one that is too large to be kept each time.
func TestCompiledOnce(t *testing.T) {
	var c Compiled
	for range 2 {
		if result := c.Get(`device.driver == "fettle.dev"`); result.Error != nil || len(c.results) != 1 {
			t.Errorf("%v; %d are kept", result.Error, len(c.results))
		}
	}
	if result := c.Get("device.nothing"); result.Error == nil || len(c.results) != 2 {
		t.Errorf("what does not compile: %v; %d are kept", result.Error, len(c.results))
	}
	c.Get("true //" + strings.Repeat("x", maxWeight/64))
	if len(c.results) > 2 {
		t.Errorf("%d are kept", len(c.results))
	}
}

// SPDX-License-Identifier: Apache-2.0

package fusetree

import (
	"os"
	"testing"
)

// Need skips the test where no FUSE file system can be mounted, or fails it where CI says that it must be possible.
func Need(t testing.TB) {
	t.Helper()
	why := ""
	if os.Geteuid() != 0 {
		why = "mounting the simulated machine needs root"
	} else if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		why = "mounting the simulated machine needs FUSE: " + err.Error()
	} else {
		f.Close()
	}
	if why == "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

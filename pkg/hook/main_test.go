// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"testing"
)

// TestMain is the program that Program.run starts again, and the one that a test starts in a user namespace.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case Name:
		fmt.Fprintln(os.Stderr, Become())
		os.Exit(1)
	case inUserNamespace:
		if err := asContainer(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

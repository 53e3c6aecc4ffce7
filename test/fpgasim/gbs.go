// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"encoding/binary"
	"fmt"
)

// GBS packs an image as the vendor's tools do: metadata, then what goes to the card. clock is the high user clock in MHz, or "auto".
func GBS(interfaceID, afu, clock string, size int) []byte {
	return pack(interfaceID, afu, clock, Image(interfaceID, afu, size))
}

func pack(interfaceID, afu, clock string, image []byte) []byte {
	if clock == "auto" {
		clock = `"auto"`
	}
	metadata := fmt.Sprintf(`{"version":1,"platform-name":"sim","afu-image":{"clock-frequency-high":%s,"clock-frequency-low":"auto",`+
		`"power":0,"interface-uuid":%q,"magic-no":488605312,"accelerator-clusters":[{"total-contexts":1,"name":"sim",`+
		`"accelerator-type-uuid":%q}]}}`,
		clock, interfaceID, afu)
	file := binary.LittleEndian.AppendUint32([]byte("XeonFPGA\xb7GBSv001"), uint32(len(metadata)))
	return append(append(file, metadata...), image...)
}

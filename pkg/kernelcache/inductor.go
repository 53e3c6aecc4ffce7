// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"encoding/json"
	"regexp"
	"strconv"
)

// inductorBest is the suffix of files with the results of the autotuner (torch/_inductor/runtime/autotune_cache.py).
const inductorBest = ".best_config"

// deviceProperties matches what Inductor writes into the source of each kernel, such as
// DeviceProperties(type='hip', index=0, cc='gfx90a', major=9, warp_size=64). For NVIDIA, cc is a number.
var deviceProperties = regexp.MustCompile(`DeviceProperties\(type='([a-z]{1,16})'[^)\n]{0,512}?\bcc=(?:'([^'\n]{1,64})'|([0-9]{2,3}))` +
	`(?:[^)\n]{0,512}?\bwarp_size=([0-9]{1,4}))?`)

// Bounds of the source files that are read for a cache without Triton's metadata. The device is near the start of every source.
const (
	maxSources    = 64
	longestSource = 256 << 10
)

// parseSource finds the device for which Inductor wrote a source file.
func parseSource(head []byte) (foreignTarget, bool) {
	parts := deviceProperties.FindSubmatch(head)
	if parts == nil {
		return foreignTarget{}, false
	}
	target := foreignTarget{Backend: string(parts[1]), Arch: json.RawMessage(parts[3])}
	if len(parts[2]) > 0 {
		target.Arch, _ = json.Marshal(string(parts[2])) // Text is always JSON.
	}
	target.WarpSize, _ = strconv.Atoi(string(parts[4])) // Missing: 0, which is unknown.
	return target, true
}

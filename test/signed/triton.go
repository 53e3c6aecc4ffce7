// SPDX-License-Identifier: Apache-2.0

package signed

import (
	"fmt"
	"path"
	"strings"
)

const (
	// TritonEntry is the directory of the one kernel of Triton's, and TritonGroup the file that names its files.
	TritonEntry = "CLGERUUZRLHT73J2VAUCCDR5ZG34VIZXGHFLZH6HGZRILMOKHGQQ"
	TritonGroup = TritonEntry + "/__grp__add_kernel.json"
	// TritonFile is one of its files, and TritonText what it has.
	TritonFile = TritonEntry + "/add_kernel.ttir"
	TritonText = "module {}"
)

// Triton are the files of a cache with one kernel for a GPU, as Triton writes them into a directory. Arch is JSON: 90, or "gfx942".
func Triton(home, backend, arch string, warp int) map[string]string {
	files := map[string]string{}
	var children []string
	for _, ending := range []string{".json", map[string]string{"cuda": ".cubin", "hip": ".hsaco"}[backend], ".ttir"} {
		name := "add_kernel" + ending
		children = append(children, fmt.Sprintf("%q: %q", name, path.Join(home, TritonEntry, name)))
		files[TritonEntry+"/"+name] = TritonText
	}
	target := fmt.Sprintf(`{"backend": %q, "arch": %s, "warp_size": %d}`, backend, arch, warp)
	files[TritonEntry+"/add_kernel.json"] = `{"target": ` + target + `, "num_warps": 4, "ptx_version": null, "name": "add_kernel"}`
	files[TritonGroup] = `{"child_paths": {` + strings.Join(children, ", ") + `}}`
	return files
}

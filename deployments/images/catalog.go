// SPDX-License-Identifier: Apache-2.0

package main

// imageSpec says what one container image consists of. Nothing else gets in: there is no shell and no package manager.
type imageSpec struct {
	// Name is the last part of the image's repository and of the archive's file name.
	Name string
	// Title and Description become OCI labels.
	Title, Description string
	// Entrypoint is the binary that the container starts.
	Entrypoint string
	// Static are binaries that must not need a loader; a dynamic one among them is an error.
	Static []string
	// Dynamic are binaries that come with their loader and the libraries they name.
	Dynamic []string
	// Libraries are wanted by what a dynamic binary opens at run time, which no ELF header of ours tells.
	Libraries []string
	// User is the numeric "uid:gid" of the process.
	User string
}

// catalog lists the images of the project.
func catalog() []imageSpec {
	return []imageSpec{
		{
			Name:        "fettle-controller",
			Title:       "Fettle controller",
			Description: "Owns the DeviceClasses and the CRDs of the fettle.dev DRA driver",
			Entrypoint:  "fettle-controller",
			Static:      []string{"fettle-controller"},
			User:        "65532:65532",
		},
		{
			Name:        "fettle",
			Title:       "Fettle command line",
			Description: "Fills the volumes of kernel caches of the fettle.dev DRA driver",
			Entrypoint:  "fettle",
			Static:      []string{"fettle"},
			User:        "65532:65532",
		},
		{
			Name:        "fettle-kubeletplugin",
			Title:       "Fettle kubelet plugin",
			Description: "Publishes and prepares the devices of one node for the fettle.dev DRA driver",
			Entrypoint:  "fettle-kubeletplugin",
			Static:      []string{"fettle-kubeletplugin", "fettle-claims", "fettle-hook", "fettle-mps"},
			Dynamic:     []string{"fettle-nvml"},
			// The host's libnvidia-ml.so.1 names these; since glibc 2.34 most of them are stubs of a few KiB.
			Libraries: []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"},
			// Root: the kubelet's sockets and the runtime's CDI directory belong to root.
			User: "0:0",
		},
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package presets is the feature that gives claims what presets say: variables, mounts, libraries, tools and drivers of the node.
//
//	Plan      which presets match a claim's devices, what they give together, and where that is on the node
//	Hook      the builds of fettle-hook on the host, which make libraries known in a container
package presets

// SPDX-License-Identifier: Apache-2.0

// Package artifacts has the node's store of files from registries, the credentials to fetch them, and the prefetcher, which fetches what
// fits the node before a claim asks for it.
package artifacts

// SPDX-License-Identifier: Apache-2.0

// Package reference writes the pages of docs/user/reference from the code, and fails while one of them is stale. To write them anew:
//
//	go test ./test/reference ./test/monitoring -update
package reference

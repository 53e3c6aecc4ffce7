// SPDX-License-Identifier: Apache-2.0

// Package hygiene holds the rules that the whole repository keeps, as Go tests: who may import whom, what every file begins with,
// what is generated and whether it is up to date. It has no code of its own to import.
package hygiene

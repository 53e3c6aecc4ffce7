// SPDX-License-Identifier: Apache-2.0

package region

// Mode says when a region is programmed. Its values are those of the API's ProgramMode. This package does not import the API, since its
// steps run in a process without the network.
type Mode string

// The modes.
const (
	// ModeIfDifferent keeps a region that is known to hold the same bytes, by their digest.
	ModeIfDifferent Mode = "IfDifferent"
	// ModeAlways programs the region in any case.
	ModeAlways Mode = "Always"
	// ModeNever uses the region only if it already holds the accelerator of the image.
	ModeNever Mode = "Never"
)

// Release says what happens to a region when its claim is released. Its values are those of the API's FPGARelease.
type Release string

// The ways to release a region.
const (
	// ReleaseBlank programs the blank image for the region's interface.
	ReleaseBlank Release = "Blank"
	// ReleaseReset resets the accelerator. Its logic stays until the region is programmed again.
	ReleaseReset Release = "Reset"
	// ReleaseKeep changes nothing.
	ReleaseKeep Release = "Keep"
)

// The attributes by which a claim selects a region that holds its accelerator already, as package device publishes them.
const (
	attributeAFUID  = "afuID"
	attributeDigest = "bitstreamDigest"
)

// Programmed is what a region is known to hold since the Prepare of its claim.
type Programmed struct {
	// Digest is the digest of the programmed file. AFUID is the id that the region shows.
	Digest, AFUID string
}

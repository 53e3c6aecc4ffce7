// SPDX-License-Identifier: Apache-2.0

package region

// Mode says when a region is programmed. Its values are those of the API's ProgramMode, which this package does not import: its steps
// run in a process without the network.
type Mode string

// The modes.
const (
	// ModeIfDifferent leaves a region that is known to hold the same bytes, by their digest, as it is.
	ModeIfDifferent Mode = "IfDifferent"
	// ModeAlways programs in any case.
	ModeAlways Mode = "Always"
	// ModeNever uses the region only if the accelerator in it is the image's already.
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

// Programmed is what a region is known to hold since its claim's Prepare.
type Programmed struct {
	// Digest is that of the file that was programmed, AFUID what the region shows.
	Digest, AFUID string
}

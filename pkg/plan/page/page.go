// SPDX-License-Identifier: Apache-2.0

// Package page draws the devices of a cluster as one HTML page: nodes, PCIe roots and cards with their parts, which pods have them, what a
// plan gives to which pod, and why each device does not do for a pod that waits. The page loads nothing and runs no script.
package page

// Page is what is drawn. Everything in it is in the order in which it is drawn.
type Page struct {
	Title string
	// Lead is the one sentence to read first.
	Lead string
	// Facts are counts: "3 nodes", "8 cards: 2 free, 6 in part".
	Facts []string
	// Waiting are the pods without a node, Placed those with one.
	Waiting, Placed []Pod
	// Said is what Kubernetes said of the pod, and what that means.
	Said []Saying
	// Answers say of nodes why the pod that waits is not there.
	Answers []Answer
	// Reasons are those that several cards have. Cards refer to them by their number.
	Reasons []Reason
	Nodes   []Node
	// Without are nodes that have no devices.
	Without  []string
	Problems []Problem
	// Brief says that there are so many nodes that the devices of a card are only counted.
	Brief bool
	// Marks are the kinds of blocks that the page has.
	Marks Marks
}

// Marks says which marks the legend has to explain.
type Marks struct{ Held, New, Unusable bool }

// Pod is what a pod gets, or why it gets nothing.
type Pod struct {
	Name string
	// Reference is the node. Its anchor is empty if the page does not have it.
	Reference
	Claims []PodClaim
	Reason string
	// Fits are the nodes that would do.
	Fits []string
}

// PodClaim is what a pod has by one of its claims.
type PodClaim struct {
	Name    string
	Devices []string
}

// Saying is a message of Kubernetes.
type Saying struct {
	From, Words string
	Meanings    []string
}

// Answer is what nodes have for a pod, the same for all of them.
type Answer struct {
	Nodes []Reference
	Lines []string
}

// Reference is a node and where it is on the page.
type Reference struct{ Node, Anchor string }

// Reason is why devices do not do.
type Reason struct {
	// Number counts from 1.
	Number  int
	Check   string
	Message string
	Devices int
}

// Problem is something about the objects that the reader should know.
type Problem struct{ Object, Message string }

// Node is a node, or several whose drawings would be the same.
type Node struct {
	Anchor string
	// Names has one name, or those of all nodes that are alike.
	Names []string
	// Notes are about the node itself: "cordoned".
	Notes   []string
	Summary string
	Domains []Domain
	// Open says that it is drawn unfolded.
	Open bool
}

// Domain is a NUMA node.
type Domain struct {
	// Label is empty if it is not known.
	Label string
	Roots []Root
}

// Root is a PCIe root.
type Root struct {
	// Label is empty if the devices have none.
	Label string
	Cards []Card
}

// Card is a physical device with all that is published of it.
type Card struct {
	Name string
	// About has the product and the size.
	About string
	State string
	Bar   Bar
	// Holders have the card or a part of it.
	Holders []Holder
	Sorts   []Sort
	// Published is what Sorts say in short: "26 devices: 9 free, 2 held, 15 taken".
	Published string
	// Taints are those of the devices: "key=value:NoSchedule (all devices)".
	Taints []string
	// Why says of the devices that a pod asks for why they do not do for it. Others are those that it does not ask for, in short OtherCount.
	Why, Others []Refusal
	OtherCount  int
}

// Bar is a card in equal columns, of which blocks take some.
type Bar struct {
	// Caption says what the columns are: "Memory slices".
	Caption string
	Columns int
	// Numbers are written above the columns, if there is something to tell apart.
	Numbers []int
	Blocks  []Block
}

// Block is a part of a card.
type Block struct {
	Span int
	// Text is the keys of the holders, or "free".
	Text string
	Mark Mark
}

// Mark says how a block is drawn, as a class of the style sheet.
type Mark string

// The marks.
const (
	MarkFree Mark = ""
	// MarkHeld: claims have it.
	MarkHeld Mark = "held"
	// MarkNew: the plan gives it.
	MarkNew Mark = "new"
	// MarkUnusable: it cannot be allocated now, because a taint keeps pods off or the pool is incomplete.
	MarkUnusable Mark = "off"
)

// Holder is who has a device.
type Holder struct {
	// Key is a letter that is also in the block.
	Key string
	// What is the sort of the device, Takes what it has of the card.
	What, Takes string
	Who         string
	Claim       string
	// New says that the plan gives it, Admin that it is access beside the one who holds the device.
	New, Admin bool
}

// Sort counts alike devices of a card.
type Sort struct {
	Name string
	// Size is the memory of one.
	Size                               string
	Total, Free, Held, Taken, Unusable int
}

// Refusal is why some devices of a card do not do.
type Refusal struct {
	// Devices names them: "1g.10gb × 7".
	Devices string
	// Reasons are in the order of the scheduler's checks.
	Reasons []CardReason
}

// CardReason is a reason of its own, or a reference to one of the page.
type CardReason struct {
	Check string
	// Message is empty if the reason is the page's: then Number says which.
	Message string
	Number  int
}

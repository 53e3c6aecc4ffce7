// SPDX-License-Identifier: Apache-2.0

// Package kubeletclaims tells which claims kubelet holds. kubelet keeps their list in a file of its own directory, beside its client key
// and the volumes of all pods, and replaces the file at each write. A container that reads it must therefore have the whole directory. So
// a program that has no other task reads it, and answers with the UIDs on a socket: Serve. Read asks it.
package kubeletclaims

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// UIDs is a set of claims.
type UIDs map[string]bool

// Read returns the claims that kubelet holds. The path is that of kubelet's dra_manager_state, or of a socket of Serve. An error means that
// the claims are not known, never that there are none.
func Read(path string) (UIDs, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's claims: %w", err)
	}
	if info.Mode().Type() == fs.ModeSocket {
		return ask(path)
	}
	return readFile(path)
}

// maxFile limits the file. kubelet's has some 300 bytes for each claim, and a node has at most a few hundred pods.
const maxFile = 16 << 20

func readFile(path string) (UIDs, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's state: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("read kubelet's state: %s is %s of %d bytes, want a file of at most %d", path, info.Mode(), info.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's state: %w", err)
	}
	return parse(data)
}

// parse reads the UIDs in kubelet's dra_manager_state (kubernetes/pkg/kubelet/cm/dra/state/checkpoint.go): a JSON object whose Data is JSON
// again and whose Checksum is the CRC-32 (IEEE) of Data.
func parse(data []byte) (UIDs, error) {
	const want = "checkpoint.dra.kubelet.k8s.io/v1"
	var outer struct {
		Data     string
		Checksum uint32
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("parse kubelet's state: %w", err)
	}
	if sum := crc32.ChecksumIEEE([]byte(outer.Data)); sum != outer.Checksum {
		return nil, fmt.Errorf("kubelet's state has checksum %d, expected %d", outer.Checksum, sum)
	}
	var inner struct {
		APIVersion         string `json:"apiVersion"`
		ClaimInfoStateList []struct{ ClaimUID string }
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, fmt.Errorf("parse kubelet's state: %w", err)
	}
	if inner.APIVersion != want {
		return nil, fmt.Errorf("kubelet's state is of version %q, expected %q", inner.APIVersion, want)
	}
	known := make(UIDs, len(inner.ClaimInfoStateList))
	for _, c := range inner.ClaimInfoStateList {
		if c.ClaimUID == "" {
			return nil, errors.New("kubelet's state has a claim without a UID")
		}
		known[c.ClaimUID] = true
	}
	return known, nil
}

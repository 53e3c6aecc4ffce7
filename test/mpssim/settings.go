// SPDX-License-Identifier: Apache-2.0

package mpssim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// SettingsName is the file with the Settings, beside the program. Without it the stand-in is well, and knows any device.
const SettingsName = "nvidia-cuda-mps-control.json"

// Settings change what the stand-in does. They are read at its start, Deaf at each connection.
type Settings struct {
	// StartsWith is a file that has to be there before it answers, relative to the settings' directory.
	StartsWith string `json:"startsWith,omitempty"`
	// FailStart is what it prints before it ends with status 1 at its start.
	FailStart string `json:"failStart,omitempty"`
	// Deaf: it accepts connections and does not answer.
	Deaf bool `json:"deaf,omitempty"`
	// Stubborn: it does not end when it is asked to, nor by SIGTERM.
	Stubborn bool `json:"stubborn,omitempty"`
	// Machine is the file of a machine of nvmlsim, relative to the settings' directory. Devices that are not there are refused.
	Machine string `json:"machine,omitempty"`
	// LimitsFrom is FromVariables or FromCommands: it takes limits of clients from those alone, and the others have no effect. Empty: both.
	LimitsFrom string `json:"limitsFrom,omitempty"`
}

// From where a daemon takes limits of clients.
const (
	FromVariables = "variables"
	FromCommands  = "commands"
)

// Write writes settings for the program in a directory, at once.
func (s Settings) Write(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, SettingsName)
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readSettings(dir string) (Settings, error) {
	var s Settings
	data, err := os.ReadFile(filepath.Join(dir, SettingsName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// checkDevices refuses devices that the machine does not have. Whatever looks like a UUID in the machine's file is one of its devices.
func (s Settings) checkDevices(dir string, uuids []string) error {
	if s.Machine == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, s.Machine))
	if err != nil {
		return fmt.Errorf("read the simulated machine: %w", err)
	}
	known := map[string]bool{}
	for _, uuid := range regexp.MustCompile(`(GPU|MIG)-[0-9A-Za-z/-]+`).FindAllString(string(data), -1) {
		known[uuid] = true
	}
	for _, uuid := range uuids {
		if !known[uuid] {
			return fmt.Errorf("no CUDA-capable device %s is detected", uuid)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// WriteInitramfs makes the file that the kernel unpacks as its first root: the program that becomes the first process, the job, and modules
// in the order of loading. It uses dir, which is empty, and returns the file's path.
func WriteInitramfs(ctx context.Context, dir, program string, job guest.Job, modules []string) (string, error) {
	tree := filepath.Join(dir, "initramfs")
	names, err := fill(tree, program, job, modules)
	if err != nil {
		return "", fmt.Errorf("make the initramfs: %w", err)
	}
	path := tree + ".cpio"
	out, err := os.Create(path)
	if err != nil {
		return "", fmt.Errorf("make the initramfs: %w", err)
	}
	defer out.Close()
	command := exec.CommandContext(ctx, "cpio", "--create", "--format=newc", "--quiet")
	command.Dir, command.Stdout = tree, out
	command.Stdin = strings.NewReader(strings.Join(names, "\n") + "\n")
	var stderr strings.Builder
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("make the initramfs: cpio: %w: %s", err, stderr.String())
	}
	return path, out.Close()
}

// fill makes the files of the initramfs, and returns their names, directories before what is in them.
func fill(tree, program string, job guest.Job, modules []string) ([]string, error) {
	modulesDir := guest.ModulesDir[1:]
	if err := os.MkdirAll(filepath.Join(tree, modulesDir), 0o755); err != nil {
		return nil, err
	}
	names := []string{"init", guest.JobFile[1:], modulesDir}
	if err := copyFile(program, filepath.Join(tree, "init"), 0o755); err != nil {
		return nil, err
	}
	data, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tree, guest.JobFile), data, 0o644); err != nil {
		return nil, err
	}
	for i, module := range modules {
		name := filepath.Join(modulesDir, fmt.Sprintf("%03d-%s", i, filepath.Base(module)))
		if err := copyFile(module, filepath.Join(tree, name), 0o644); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

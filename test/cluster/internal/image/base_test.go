// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/fettle-dev/fettle/test/cluster/internal/image"
)

func TestWriteBase(t *testing.T) {
	if _, err := os.Stat(image.Program); err != nil {
		t.Skip("busybox-static is not installed: run cluster build")
	}
	path := filepath.Join(t.TempDir(), "base.tar")
	if err := image.WriteBase(path); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{image.BusyBox, image.Pause} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/message"
)

const (
	// maxTargets is how many targets a status lists, and maxTarget how long one may be.
	maxTargets = 16
	maxTarget  = 128
)

// readImage reads the size and the labels of an image. Labels are claims of the image's producer, and shown as such.
func readImage(ctx context.Context, src artifact.ImageSource, d artifact.Descriptor) (*v1alpha1.CacheImage, error) {
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if errors.Is(err, artifact.ErrInvalid) {
		return nil, notACache(d.Digest, err)
	}
	if err != nil {
		return nil, err
	}
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil {
		return nil, notACache(image.Digest, err)
	}
	out := &v1alpha1.CacheImage{
		Digest: image.Digest.String(), CompressedBytes: image.Size(), Bytes: max(labels.Size, 0), Type: typeOf(labels.Format),
	}
	for _, t := range labels.Targets[:min(len(labels.Targets), maxTargets)] {
		out.Targets = append(out.Targets, message.Clip(t.String(), maxTarget))
	}
	return out, nil
}

// typeOf returns the name that the API has for a format.
func typeOf(format string) string {
	switch format {
	case "triton":
		return string(v1alpha1.CacheTriton)
	case "vllm":
		return string(v1alpha1.CacheVLLM)
	}
	return format
}

// notACache returns the error of a reference that no node could use.
func notACache(d artifact.Digest, err error) error {
	return &artifacts.Fault{Reason: ReasonNotACache, Err: fmt.Errorf("%s is no image of a kernel cache: %w", d, err)}
}

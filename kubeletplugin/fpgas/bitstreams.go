// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
)

// bitstreams resolves the bitstreams that claims and classes name. It reads objects again for each claim, so that their latest version
// counts; programming takes seconds anyway.
type bitstreams struct {
	dynamic dynamic.Interface
	client  *registry.Client
	// namespace is the driver's, which has the secrets of cluster-wide bitstreams. hostRoot is the host's tree.
	namespace, hostRoot string
	clock               clock.PassiveClock

	mu sync.Mutex
	// read are the artifacts that were read by reference, see fromReference.
	read map[string]readArtifact
}

const (
	// readTTL is how long an artifact that was read counts as readable. It covers the time from the fetch of a claim's files to its plan,
	// which asks no registry while it holds the card.
	readTTL = time.Minute
	// maxRead limits what is kept, since tenants choose the references.
	maxRead = 1024
)

// readArtifact is what a registry said of an artifact.
type readArtifact struct {
	top    artifact.Descriptor
	images []oci.Image
	until  time.Time
}

// bitstream is a bitstream that was resolved for a region.
type bitstream struct {
	identity claim.Bitstream
	image    region.Image
	// signed names the artifact whose signatures count, and manifest is the digest of the bitstream's own manifest in it. They are empty for
	// a file on the host.
	signed   artifact.Reference
	manifest string
	// namespace is that of the object that refers to the artifact, empty for an object of the cluster.
	namespace string
	// refused is the controller's verdict if the TrustPolicies refuse it, else nil.
	refused *v1alpha1.ImageVerdict
	// fetch has what is needed to fetch the file. It is nil for a file on the host.
	fetch *pin.Params
}

var (
	// errNotFound: the object does not exist.
	errNotFound = errors.New("does not exist")
	// errNotResolved: the controller has not resolved the object yet.
	errNotResolved = errors.New("is not resolved yet")
	// errNotStaged: the host file is not on this node.
	errNotStaged = errors.New("is not on this node")
	// errNoImage: the bitstream has no image for the region's interface.
	errNoImage = errors.New("has no image for the region's interface")
)

// find resolves the bitstream that a claim of a namespace names, for a region with an interface id.
func (b *bitstreams) find(ctx context.Context, namespace string, source *v1alpha1.BitstreamSource, interfaceID string) (*bitstream, error) {
	switch {
	case source.Ref != "":
		return b.fromReference(ctx, namespace, source.Ref, interfaceID)
	case source.Kind == v1alpha1.KindClusterFPGABitstream:
		object, err := b.get(ctx, "clusterfpgabitstreams", "", source.Name)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", source.Kind, source.Name, err)
		}
		return b.fromObject(object, interfaceID)
	}
	object, err := b.get(ctx, "fpgabitstreams", namespace, source.Name)
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", v1alpha1.KindFPGABitstream, namespace, source.Name, err)
	}
	return b.fromObject(object, interfaceID)
}

func (b *bitstreams) get(ctx context.Context, resource, namespace, name string) (v1alpha1.CommonFPGABitstream, error) {
	object, err := b.dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return v1alpha1.CommonFPGABitstream{}, fmt.Errorf("%w: create it, or correct the claim's bitstream", errNotFound)
	}
	if err != nil {
		return v1alpha1.CommonFPGABitstream{}, err
	}
	return v1alpha1.DecodeFPGABitstream(object)
}

// blank returns the image that wipes regions of an interface, the first by name with spec.blank that passes a check. Those that clear the
// card's memory come before the others. One that the check refuses does not hide the next; its error is returned if no other passes. It
// returns nil if there is none at all.
func (b *bitstreams) blank(
	ctx context.Context, interfaceID string, check func(context.Context, *bitstream) error,
) (found *bitstream, refused error) {
	list, err := b.dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for a blank image: %w", err)
	}
	objects := make([]v1alpha1.CommonFPGABitstream, 0, len(list.Items))
	for i := range list.Items {
		object, err := v1alpha1.DecodeFPGABitstream(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if object.Spec.Blank {
			objects = append(objects, object)
		}
	}
	slices.SortStableFunc(objects, func(a, b v1alpha1.CommonFPGABitstream) int {
		return clearingFirst(a) - clearingFirst(b)
	})
	for i := range objects {
		found, err := b.fromObject(objects[i], interfaceID)
		if err == nil {
			found.image.ClearTime = clearTime(objects[i])
			err = check(ctx, found)
		}
		switch {
		case err == nil:
			return found, nil
		case errors.Is(err, errRefused) && refused == nil:
			refused = err
		case errors.Is(err, errRefused), errors.Is(err, errNoImage), errors.Is(err, errNotResolved), errors.Is(err, fs.ErrNotExist):
		default:
			return nil, err
		}
	}
	return nil, refused
}

// clearingFirst returns 0 for an image that clears memory and 1 for any other, to sort by.
func clearingFirst(object v1alpha1.CommonFPGABitstream) int {
	if clearTime(object) == 0 {
		return 1
	}
	return 0
}

// clearTime returns how long a blank image needs to clear a card's memory, 0 if it clears none.
func clearTime(object v1alpha1.CommonFPGABitstream) time.Duration {
	if object.Spec.MemoryClearTime == nil {
		return 0
	}
	return object.Spec.MemoryClearTime.Duration
}

// fromObject returns an object's bitstream for an interface.
func (b *bitstreams) fromObject(object v1alpha1.CommonFPGABitstream, interfaceID string) (*bitstream, error) {
	if object.Spec.HostFile != nil {
		return b.fromHostFile(object, interfaceID)
	}
	return b.fromStatus(object, interfaceID)
}

// claimBitstream describes an object in the form that policies are checked against.
func claimBitstream(object v1alpha1.CommonFPGABitstream) claim.Bitstream {
	return claim.Bitstream{
		Kind: object.Kind, Namespace: object.GetNamespace(), Name: object.GetName(), Namespaces: object.Spec.Namespaces,
	}
}

// fromStatus returns the image that the controller resolved.
func (b *bitstreams) fromStatus(object v1alpha1.CommonFPGABitstream, interfaceID string) (*bitstream, error) {
	of, status := claimBitstream(object), object.Status
	if status.ObservedGeneration != object.GetGeneration() || len(status.Images) == 0 {
		why := "wait for the controller"
		if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionResolved); c != nil && c.Message != "" {
			why = c.Message
		}
		return nil, fmt.Errorf("%s %w: %s", &of, errNotResolved, why)
	}
	i := slices.IndexFunc(status.Images, func(image v1alpha1.BitstreamImage) bool { return image.InterfaceID == interfaceID })
	if i < 0 {
		return nil, noImageError(&of, interfaceID, status.Images)
	}
	image := &status.Images[i]
	ref, err := artifact.ParseReference(object.Spec.Image)
	if err != nil {
		return nil, fmt.Errorf("%s: spec.image: %w", &of, err)
	}
	top, err := artifact.ParseDigest(status.Digest)
	if err != nil {
		return nil, fmt.Errorf("%s: status.digest: %w", &of, err)
	}
	of.Repository = ref.Repository()
	config := fpga.Config{Format: fpga.Format(image.Format)}
	of.Raw, of.Digests = config.Format.IsRaw(), digests(config.Format, image.Layer, image.Manifest, status.Digest)
	if config.Format.IsRaw() {
		config.ID, config.InterfaceID = image.ID, image.InterfaceID
	}
	found := &bitstream{
		identity: of,
		image: region.Image{
			Digest: image.Layer, Size: image.Size, InterfaceID: image.InterfaceID, AFUID: image.AFUID, Config: config, Origin: of.String(),
		},
		signed: ref.WithDigest(top), manifest: image.Manifest, namespace: object.GetNamespace(), refused: object.Refused(),
	}
	found.fetch = &pin.Params{
		Reference: of.Repository + "@" + image.Manifest, Digest: image.Layer, Size: image.Size,
		SecretsIn: object.ReferenceNamespace(b.namespace),
	}
	for _, s := range object.Spec.ImagePullSecrets {
		found.fetch.Secrets = append(found.fetch.Secrets, s.Name)
	}
	return found, nil
}

// digests returns the digests by which a policy may list an image. For a raw image these are not the file's, see claim.Bitstream.
func digests(format fpga.Format, file, manifest, artifact string) []string {
	if format.IsRaw() {
		return []string{manifest, artifact}
	}
	return []string{file, manifest, artifact}
}

func noImageError(of *claim.Bitstream, interfaceID string, images []v1alpha1.BitstreamImage) error {
	var has []string
	for i := range images {
		has = append(has, images[i].InterfaceID)
	}
	return fmt.Errorf("%s %w %s; it has images for %q: select a device by the attribute interfaceID", of, errNoImage, interfaceID, has)
}

// fromReference reads an artifact that a claim of the namespace names by digest, without credentials.
func (b *bitstreams) fromReference(ctx context.Context, namespace, text, interfaceID string) (*bitstream, error) {
	ref, err := artifact.ParseReference(text)
	if err != nil {
		return nil, fmt.Errorf("bitstream.ref: %w", err)
	}
	found, err := b.readReference(ctx, ref)
	if err != nil {
		return nil, err
	}
	top, images := found.top, found.images
	of := claim.Bitstream{Repository: ref.Repository()}
	i := slices.IndexFunc(images, func(image oci.Image) bool { return image.Config.InterfaceID == interfaceID })
	if i < 0 {
		return nil, fmt.Errorf("bitstream %s %w %s: select a device by the attribute interfaceID", text, errNoImage, interfaceID)
	}
	image := &images[i]
	afu, err := configAFU(&image.Config)
	if err != nil {
		return nil, fmt.Errorf("bitstream %s: %w", text, err)
	}
	format := image.Config.Format
	of.Raw, of.Digests = format.IsRaw(), digests(format, image.Layer.Digest.String(), image.Manifest.String(), top.Digest.String())
	return &bitstream{
		identity: of,
		image: region.Image{
			Digest: image.Layer.Digest.String(), Size: image.Layer.Size, InterfaceID: interfaceID, AFUID: afu, Config: image.Config,
			Origin: text,
		},
		signed: ref.WithDigest(top.Digest), manifest: image.Manifest.String(), namespace: namespace,
		fetch: &pin.Params{
			Reference: ref.Repository() + "@" + image.Manifest.String(), Digest: image.Layer.Digest.String(), Size: image.Layer.Size,
		},
	}, nil
}

// readReference reads the images of an artifact without credentials. What it read a moment ago is not asked for again: a digest names the
// same bytes, and everybody may read them.
func (b *bitstreams) readReference(ctx context.Context, ref artifact.Reference) (readArtifact, error) {
	key := ref.String()
	b.mu.Lock()
	found, known := b.read[key]
	b.mu.Unlock()
	if known && b.clock.Now().Before(found.until) {
		return found, nil
	}
	source := b.client.TenantSource(ref, nil)
	top, err := source.Resolve(ctx)
	if err != nil {
		return readArtifact{}, err
	}
	images, err := oci.List(ctx, source, top)
	if err != nil {
		return readArtifact{}, fmt.Errorf("bitstream %s: %w", key, err)
	}
	found = readArtifact{top: top, images: images, until: b.clock.Now().Add(readTTL)}
	if ref.Digest().IsZero() {
		return found, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.read) >= maxRead {
		clear(b.read)
	}
	b.read[key] = found
	return found, nil
}

// configAFU returns the AFU id by a config alone: the file, which has it too, is fetched only after its signature was checked. Where the
// file alone states the id, it is "", and the region learns it from the file that the digest stands for: the id of an OpenCL program (aocx)
// in a config is another, its random hash.
func configAFU(c *fpga.Config) (string, error) {
	switch {
	case c.Format.IsRaw() && c.ID == "":
		return "", errors.New("its config does not say the AFU id, and neither does a raw image: push it with \"fettle bitstream push\"")
	case c.Format == fpga.AOCX, c.ID == "":
		return "", nil
	}
	afu, err := v1alpha1.CanonicalID(c.ID)
	if err != nil {
		return "", fmt.Errorf("its config's id, %q, %w: push it with \"fettle bitstream push\"", c.ID, err)
	}
	return afu, nil
}

// fromHostFile reads a file that the administrator staged on this node.
func (b *bitstreams) fromHostFile(object v1alpha1.CommonFPGABitstream, interfaceID string) (*bitstream, error) {
	of, file := claimBitstream(object), object.Spec.HostFile
	paths := []string{file.Path}
	if file.Store != "" {
		paths = []string{path.Join(file.Store, interfaceID, file.ID+".gbs"), path.Join(file.Store, interfaceID, file.ID+".aocx")}
	}
	var missing error
	for _, name := range paths {
		image, err := b.readHostFile(name, file.Digest)
		if errors.Is(err, fs.ErrNotExist) {
			missing = errors.Join(missing, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", &of, err)
		}
		if image.InterfaceID != interfaceID {
			return nil, noImageError(&of, interfaceID, []v1alpha1.BitstreamImage{{InterfaceID: image.InterfaceID}})
		}
		image.Origin = of.String()
		of.Digests = []string{image.Digest}
		return &bitstream{identity: of, image: image}, nil
	}
	return nil, fmt.Errorf("%s %w: stage the file: %w", &of, errNotStaged, missing)
}

func (b *bitstreams) readHostFile(name, digest string) (region.Image, error) {
	file, err := region.OpenHostFile(b.hostRoot, name)
	if err != nil {
		return region.Image{}, err
	}
	defer file.Close()
	if file.Size() > fpga.MaxFile {
		return region.Image{}, fmt.Errorf("host file %s has %d bytes, want at most %d", name, file.Size(), fpga.MaxFile)
	}
	read, err := fpga.Inspect(file, file.Size())
	if err != nil {
		return region.Image{}, fmt.Errorf("host file %s: %w", name, err)
	}
	if digest == "" {
		sum := sha256.New()
		if _, err := io.Copy(sum, io.NewSectionReader(file, 0, file.Size())); err != nil {
			return region.Image{}, fmt.Errorf("read host file %s: %w", name, err)
		}
		digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	}
	return region.Image{Digest: digest, Size: file.Size(), HostFile: name, InterfaceID: read.InterfaceID, AFUID: read.AFUID}, nil
}

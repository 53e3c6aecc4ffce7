// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	resourcePrefix = "fpga.intel.com/"
	envPrefix      = "FPGA_"
	// maxRegions is how many requests a claim may have, and how many devices it may be given.
	maxRegions = 32
)

var (
	// regionName is a resource of mode region: the plugin programs what the environment says.
	regionName = regexp.MustCompile(`^region-(.*)$`)
	// functionName is a resource of mode af: a region that holds a function already. Both ids are in the last part.
	functionName = regexp.MustCompile(`^af-(.*)$`)
	// packedName is the part after af-.
	packedName = regexp.MustCompile(`^([0-9a-fA-F]{3})\.([0-9a-fA-F]{3})\.([A-Za-z0-9_-]{43})$`)
	envName    = regexp.MustCompile(`^FPGA_(REGION|BITSTREAM_ID|AFU|DRIVER_PARAMS)_([0-9]{1,9})$`)
	openCLID   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// region is one region that a container gets.
type region struct {
	// resource is the name that asked for it.
	resource    string
	interfaceID string
	// id is the bitstream's; empty: the region is used as it is.
	id string
	// loaded: the region must hold the function already.
	loaded bool
	params *v1alpha1.FPGADriverParams
	// spoken: the environment spoke of it.
	spoken bool
}

// bitstreamID reads an AFU id or the 40 digits of an OpenCL image. It becomes a part of a path.
func bitstreamID(text string) (string, error) {
	if id := strings.ToLower(text); openCLID.MatchString(id) {
		return id, nil
	}
	id, err := v1alpha1.CanonicalID(text)
	if err != nil {
		return "", fmt.Errorf("%w, or the 40 of an OpenCL image", err)
	}
	return id, nil
}

func parsePacked(text string) (region, error) {
	const idBytes = 16
	expected := errors.New("expected af-XXX.YYY.BASE64, with the first three digits of the interface id and of the AFU id, and both packed")
	m := packedName.FindStringSubmatch(text)
	if m == nil {
		return region{}, expected
	}
	packed, err := base64.RawURLEncoding.Strict().DecodeString(m[3])
	if err != nil || len(packed) != 2*idBytes {
		return region{}, expected
	}
	iface, ifaceErr := v1alpha1.CanonicalID(hex.EncodeToString(packed[:idBytes]))
	id, idErr := v1alpha1.CanonicalID(hex.EncodeToString(packed[idBytes:]))
	if err := errors.Join(ifaceErr, idErr); err != nil {
		return region{}, fmt.Errorf("a packed id %w", err)
	}
	if !strings.HasPrefix(iface, strings.ToLower(m[1])) || !strings.HasPrefix(id, strings.ToLower(m[2])) {
		return region{}, fmt.Errorf("%w: it packs %s and %s, which begin otherwise", expected, iface, id)
	}
	return region{interfaceID: iface, id: id, loaded: true}, nil
}

// wholeQuantity reads how many there are of something.
func wholeQuantity(quantity string, most int64, what string) (int, error) {
	q, err := resource.ParseQuantity(quantity)
	if err != nil {
		return 0, fmt.Errorf("quantity %.40q: expected a number of %s", quantity, what)
	}
	// As the API server has it, 1000m is a whole number.
	count, whole := q.Value(), q.MilliValue()%1000 == 0
	if !whole || count < 0 || count > most {
		return 0, fmt.Errorf("quantity %.40q: expected 0 to %d whole %s", quantity, most, what)
	}
	return int(count), nil
}

// sameAmount reports whether two quantities are the same, however they are written.
func sameAmount(a, b string) bool {
	x, errX := resource.ParseQuantity(a)
	y, errY := resource.ParseQuantity(b)
	return a == b || errX == nil && errY == nil && x.Cmp(y) == 0
}

// wish is what the variables of one number say.
type wish struct {
	number string
	// iface, id and params are nil where no variable says it.
	iface, id, params *variable
}

// variable is an environment variable of a container.
type variable struct{ name, value string }

// wishesOf are what the environment says of regions, by number.
func wishesOf(env []pair) ([]wish, error) {
	by := map[string]*wish{}
	var faults []error
	for _, p := range env {
		name := p.key.Value
		m := envName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		if !isScalar(p.value) || isNull(p.value) {
			faults = append(faults, fmt.Errorf("env %s: expected a value that stands here, since what it is from cannot be looked up", name))
			continue
		}
		if by[m[2]] == nil {
			by[m[2]] = &wish{number: m[2]}
		}
		if err := by[m[2]].set(m[1], &variable{name, p.value.Value}); err != nil {
			faults = append(faults, err)
		}
	}
	var wishes []wish
	for _, w := range by {
		wishes = append(wishes, *w)
	}
	slices.SortFunc(wishes, func(a, b wish) int {
		return cmp.Or(cmp.Compare(len(a.number), len(b.number)), cmp.Compare(a.number, b.number))
	})
	return wishes, errors.Join(faults...)
}

func (w *wish) set(what string, v *variable) error {
	at := &w.id
	switch what {
	case "REGION":
		at = &w.iface
	case "DRIVER_PARAMS":
		at = &w.params
	}
	if *at != nil {
		return fmt.Errorf("env %s: %s says already which it is: keep one", v.name, (*at).name)
	}
	*at = v
	return nil
}

// grant finds the region that a wish is for, and tells it.
func (w *wish) grant(regions []region) error {
	if w.iface == nil {
		name := cmp.Or(w.id, w.params).name
		return fmt.Errorf("env %s: there is no FPGA_REGION_%s, which says for which region it is", name, w.number)
	}
	iface, ifaceErr := read(w.iface, v1alpha1.CanonicalID)
	id, idErr := read(w.id, bitstreamID)
	params, paramsErr := read(w.params, parseParams)
	if err := errors.Join(ifaceErr, idErr, paramsErr); err != nil {
		return err
	}
	at := place(regions, iface, id)
	if at < 0 {
		return fmt.Errorf("env %s: the container's resources have no region left for interface %s%s", w.iface.name, iface, withID(id))
	}
	r := &regions[at]
	r.id, r.params, r.spoken = cmp.Or(r.id, id), params, true
	return nil
}

// read is the value of a variable, and nothing where there is none.
func read[T any](v *variable, parse func(string) (T, error)) (value T, err error) {
	if v == nil {
		return value, nil
	}
	if value, err = parse(v.value); err != nil {
		return value, fmt.Errorf("env %s: %.80q: %w", v.name, v.value, err)
	}
	return value, nil
}

// place finds a region that no variable spoke of yet. A bitstream goes to the region whose resource means it, before one that could take
// any; what names no bitstream goes to the others first.
func place(regions []region, iface, id string) int {
	find := func(fits func(r region) bool) int {
		return slices.IndexFunc(regions, func(r region) bool { return !r.spoken && r.interfaceID == iface && fits(r) })
	}
	at := find(func(r region) bool { return r.id == id })
	switch {
	case at >= 0:
		return at
	case id == "":
		return find(func(region) bool { return true })
	}
	return find(func(r region) bool { return r.id == "" })
}

func withID(id string) string {
	if id == "" {
		return ""
	}
	return " and bitstream " + id
}

// parseParams reads clock=1000,debug=1.
func parseParams(text string) (*v1alpha1.FPGADriverParams, error) {
	params := &v1alpha1.FPGADriverParams{}
	for part := range strings.SplitSeq(text, ",") {
		key, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		var at **int32
		switch key {
		case "clock":
			at = &params.ClockMHz
		case "debug":
			at = &params.Debug
		default:
			return nil, fmt.Errorf("key %.40q: expected clock=MHZ or debug=LEVEL, with commas between", key)
		}
		if *at != nil {
			return nil, fmt.Errorf("key %s: it is there twice", key)
		}
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("key %s: %.40q: expected a whole number", key, number)
		}
		*at = new(int32(n))
	}
	return params, nil
}

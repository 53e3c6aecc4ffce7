// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Need is what the devices of a class need from the node, and no preset gives.
type Need struct {
	// Vendor is the maker of the devices, Needs what they need.
	Vendor, Needs string
}

// Missing returns, by name of the class, the needs that no valid preset meets: the class may give devices of a vendor that is in the
// cluster and that needs something from the node, and no preset that gives files of the node could be for them.
func Missing(
	ctx context.Context, classes []resourceapi.DeviceClass, all []preset.Preset, vendors map[string]bool, c *preset.Conditions,
) map[string][]Need {
	out := map[string][]Need{}
	givers := slices.DeleteFunc(slices.Clone(all), func(p preset.Preset) bool { return !p.GivesFiles() || len(p.Faults(c)) > 0 })
	for _, m := range makers() {
		what, needed := preset.NeedOf(m.device())
		if !needed || !what.FromNode || !vendors[m.vendor] {
			continue
		}
		// Tenants write the conditions, so each is evaluated once and not for each class.
		able := slices.DeleteFunc(slices.Clone(givers), func(p preset.Preset) bool { return !couldHold(ctx, &p, m, c) })
		for i := range classes {
			class := &classes[i]
			could := func(p preset.Preset) bool { return couldBeOf(&p, class.Name) }
			need := Need{Vendor: m.vendor, Needs: what.What}
			if gives(ctx, class, m, c) && !slices.ContainsFunc(able, could) && !slices.Contains(out[class.Name], need) {
				out[class.Name] = append(out[class.Name], need)
			}
		}
	}
	return out
}

// gives says whether a class is for devices of this driver and may give those of a maker. A class whose selectors do not name the driver
// may be for another driver.
func gives(ctx context.Context, class *resourceapi.DeviceClass, m maker, c *preset.Conditions) bool {
	ours := false
	for _, s := range class.Spec.Selectors {
		if s.CEL == nil {
			continue
		}
		if ask(ctx, c, s.CEL.Expression, m) == never {
			return false
		}
		ours = ours || strings.Contains(s.CEL.Expression, v1alpha1.DriverName)
	}
	return ours
}

// couldHold says whether the conditions of a preset may hold for a device of the maker.
func couldHold(ctx context.Context, p *preset.Preset, m maker, c *preset.Conditions) bool {
	s := p.Rules.DeviceSelector
	if s == nil {
		return true
	}
	if s.CEL != "" && ask(ctx, c, s.CEL, m) == never {
		return false
	}
	return s.Absent == nil || s.Absent.CEL == "" || ask(ctx, c, s.Absent.CEL, m) != always
}

// couldBeOf says whether a preset may be for a request of the class.
func couldBeOf(p *preset.Preset, class string) bool {
	s := p.Rules.DeviceSelector
	if s == nil {
		return true
	}
	return (len(s.DeviceClassNames) == 0 || slices.Contains(s.DeviceClassNames, class)) &&
		(s.Absent == nil || !slices.Contains(s.Absent.DeviceClassNames, class))
}

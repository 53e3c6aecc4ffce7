// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// identifiers finds the serial numbers and unique ids in one kind of recorded file. A match's second group is the id.
type identifiers struct {
	file    *regexp.Regexp // of the path
	id      *regexp.Regexp // of the text
	decimal bool           // the id is a number that other files write as 16 hexadecimal digits
}

// wholeFile is the one word of an attribute.
var wholeFile = regexp.MustCompile(`^(\s*)(\S+)`)

var redactions = []identifiers{
	{file: regexp.MustCompile(`/(serial_number|serial_num|unique_id)$`), id: wholeFile},
	{
		file: regexp.MustCompile(`^proc/driver/nvidia/gpus/[^/]+/information$`),
		id:   regexp.MustCompile(`(?m)^(GPU UUID:\s*GPU-|Serial Number:\s*)(\S+)`),
	},
	{
		file:    regexp.MustCompile(`/topology/nodes/[0-9]+/properties$`),
		id:      regexp.MustCompile(`(?m)^(unique_id |hive_id )([0-9]+)`),
		decimal: true,
	},
	{file: regexp.MustCompile(`/topology/system_properties$`), id: regexp.MustCompile(`(?m)^(platform_id )([0-9]+)`), decimal: true},
}

// redact replaces the ids in the entries. The same id is the same number wherever it occurs, so that what belongs together still
// does; zero and unknown ids stay.
func redact(entries map[string]Entry) {
	numbers := map[string]uint64{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		for _, kind := range redactions {
			if e.Kind == File && kind.file.MatchString(e.Path) {
				e.Data = kind.replace(e.Data, numbers)
			}
		}
		entries[name] = e
	}
}

func (k identifiers) replace(data []byte, numbers map[string]uint64) []byte {
	return k.id.ReplaceAllFunc(data, func(match []byte) []byte {
		groups := k.id.FindSubmatch(match)
		prefix, id := string(groups[1]), string(groups[2])
		key := strings.ToLower(id)
		if k.decimal {
			value, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return []byte(prefix + "0")
			}
			key = fmt.Sprintf("%016x", value)
		}
		if strings.Trim(key, "0-?") == "" || strings.HasPrefix(key, "unknown") {
			return match
		}
		if _, ok := numbers[key]; !ok {
			numbers[key] = uint64(len(numbers)) + 1
		}
		if k.decimal {
			return fmt.Appendf([]byte(prefix), "%d", numbers[key])
		}
		return []byte(prefix + shaped(id, numbers[key]))
	})
}

// shaped writes a number in the shape of an id: its letters and digits become the number's hexadecimal digits, with leading
// zeros, and what is between them stays.
func shaped(id string, number uint64) string {
	digits := fmt.Sprintf("%x", number)
	out := []rune(id)
	for i := len(out) - 1; i >= 0; i-- {
		if !unicode.IsLetter(out[i]) && !unicode.IsDigit(out[i]) {
			continue
		}
		out[i] = '0'
		if n := len(digits); n > 0 {
			out[i], digits = rune(digits[n-1]), digits[:n-1]
		}
	}
	return digits + string(out) // an id too short for its number grows
}

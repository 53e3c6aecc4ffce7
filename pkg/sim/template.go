// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// reference is how a line names a column of a table.
var (
	reference  = regexp.MustCompile(`\$\{([a-z][a-z0-9]*)\.([a-z][a-z0-9]*)\}`)
	identifier = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
)

// tables are those of one machine file, by name.
type tables map[string]*table

// table is what lines are repeated over. Each row has a value for every column.
type table struct {
	name    string
	columns []string
	rows    [][]string
}

// declare adds a table from the words after the keyword.
func (ts tables) declare(words []string) (*table, error) {
	if len(words) < 2 {
		return nil, errors.New("directive table: want table NAME and one COLUMN or more")
	}
	for i, w := range words {
		if !identifier.MatchString(w) {
			return nil, fmt.Errorf("table: name %q: want lower-case letters and digits, a letter first", w)
		}
		if i > 0 && slices.Contains(words[1:i], w) {
			return nil, fmt.Errorf("table %s: column %s is given twice", words[0], w)
		}
	}
	if _, ok := ts[words[0]]; ok {
		return nil, fmt.Errorf("table %s is declared twice: keep one", words[0])
	}
	t := &table{name: words[0], columns: words[1:]}
	ts[t.name] = t
	return t, nil
}

// addRow works on a nil table too: then there is no table above the row.
func (t *table) addRow(values []string) error {
	switch {
	case t == nil:
		return errors.New("directive row: want a table above it, such as: table gpu index address")
	case len(values) != len(t.columns):
		return fmt.Errorf("row of table %s has %d values: want %d, one for each of %s",
			t.name, len(values), len(t.columns), strings.Join(t.columns, " "))
	case strings.Contains(strings.Join(values, " "), "${"):
		return fmt.Errorf("row of table %s: want plain values, not references", t.name)
	}
	t.rows = append(t.rows, values)
	return nil
}

// named finds the one table that a text names, or nil when it names none.
func (ts tables) named(text string) (*table, error) {
	var found *table
	rest := reference.ReplaceAllString(text, "")
	if strings.Contains(rest, "${") {
		return nil, fmt.Errorf("%q: want ${TABLE.COLUMN} after every \"${\"", strings.TrimSpace(text))
	}
	for _, ref := range reference.FindAllStringSubmatch(text, -1) {
		t, ok := ts[ref[1]]
		switch {
		case !ok:
			return nil, fmt.Errorf("%s: there is no table %s: declare it with table %s %s", ref[0], ref[1], ref[1], ref[2])
		case !slices.Contains(t.columns, ref[2]):
			return nil, fmt.Errorf("%s: table %s has no column %s: want one of %s",
				ref[0], t.name, ref[2], strings.Join(t.columns, " "))
		case found != nil && found != t:
			return nil, fmt.Errorf("%q names the tables %s and %s: want one", strings.TrimSpace(text), found.name, t.name)
		}
		found = t
	}
	return found, nil
}

// expand gives the text once, or once for each row of the table it names. It ends with the text that exceeds room.
func (ts tables) expand(text string, room int) ([]string, error) {
	t, err := ts.named(text)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return []string{text}, nil
	}
	var out []string
	for _, row := range t.rows {
		out = append(out, t.fill(row, text))
		if room -= len(out[len(out)-1]); room < 0 {
			break
		}
	}
	return out, nil
}

// fill replaces what names this table's columns; the rest stays. It ends where the text alone is larger than a machine may be.
func (t *table) fill(row []string, text string) string {
	size := 0
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		name, column, _ := strings.Cut(strings.Trim(ref, "${}"), ".")
		i := slices.Index(t.columns, column)
		switch {
		case size > maxBytes:
			return ""
		case name != t.name || i < 0:
			return ref
		}
		size += len(row[i])
		return row[i]
	})
}
